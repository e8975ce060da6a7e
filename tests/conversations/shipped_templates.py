"""Which of the chat templates in TRL's package carry conversations with tools, and why others not.

``python -m tests.conversations.shipped_templates`` prints the table of docs/tools.md. A template's
model is replaced by a byte-level tokenizer that has the control tokens of the template.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pipeline.core.errors import InputError
from pipeline.rollout.conversations.chat_template import ChatTemplate
from pipeline.rollout.conversations.turn_parser import TurnParser

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search the encyclopedia.",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "entities": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["query"],
        },
    },
}
_CONTROL = re.compile(
    r"<\|[^\s<>{}'\"|]+\|?>|<[^\s<>{}'\"|]+\|>|<｜[^\s<>]+｜>|\[/?INST\]|</s>"
    r"|</?(?:think|tool_call|tool_response|arg_key|arg_value|start_of_turn|end_of_turn)>"
    r"|<end_of_utterance>"
)
# The ends of turns that the models' generation_config.json name.
_ENDS = {
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|call|>", "<|return|>", "<|observation|>", "<|user|>",
    "<|END_OF_TURN_TOKEN|>", "<｜end▁of▁sentence｜>", "<|tool_response>", "<turn|>", "<end_of_turn>",
    "</s>", "<end_of_utterance>", "<|eot|>", "<|eom|>", "<|end|>",
}  # fmt: skip
_NOT_ENDS = {"gptoss": {"<|end|>"}, "phi3": {"<|user|>"}, "muse": {"<|eom|>"}}


def byte_tokenizer(template: str) -> PreTrainedTokenizerFast:
    """A tokenizer of bytes with the control tokens of a template."""
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({c: n for n, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokens = sorted({"<bos>", "<eos>", *_CONTROL.findall(template)})
    backend.add_tokens([AddedToken(token, special="<|" in token) for token in tokens])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<bos>", eos_token="<eos>"
    )
    tokenizer.chat_template = template
    return tokenizer


def chat_template(file: Path, thinking: bool | None = None) -> ChatTemplate:
    tokenizer = byte_tokenizer(file.read_text(encoding="utf-8"))
    family = next((name for name in _NOT_ENDS if file.stem.startswith(name)), "")
    ends = {"<eos>", *(_ENDS & set(tokenizer.get_vocab()))} - _NOT_ENDS.get(family, set())
    ids = tokenizer.convert_tokens_to_ids(sorted(ends))
    return ChatTemplate(tokenizer, [SEARCH], thinking=thinking, end_ids=ids)


def template_files() -> list[Path]:
    [package] = find_spec("trl").submodule_search_locations
    return sorted((Path(package) / "chat_templates").glob("*.jinja"))


FILES = {file.stem: file for file in template_files()}


def examined(file: Path, thinking: bool | None) -> str:
    """Why the template carries no conversation with tools; empty if it does."""
    try:
        return chat_template(file, thinking).check()
    except InputError as error:
        return str(error)


def verdict(file: Path) -> tuple[str, str]:
    """Whether a template works, and why not."""
    source = re.sub(r"\{#.*?#\}", "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
    modes = {"on": True, "off": False} if "enable_thinking" in source else {"": None}
    reasons = {mode: examined(file, thinking) for mode, thinking in modes.items()}
    failing = [mode for mode, reason in reasons.items() if reason]
    if not failing:
        return "works", _unread(file)
    reason = reasons[failing[0]].partition(";")[0]
    refused = not reason.startswith(("after", "the template"))
    if refused:
        return "refused", reason.removeprefix("the chat template of the tokenizer ")
    what = "differs" if len(failing) == len(modes) else f"differs with thinking {failing[0]}"
    return what, reason.replace("|", "\\|")


def _unread(file: Path) -> str:
    try:
        TurnParser(chat_template(file))
    except InputError:
        return "the tokenizer must have a response_template"
    return ""


def table() -> list[str]:
    """The lines of the table: a verdict with its reason, and the templates that have it."""
    groups: dict[tuple[str, str], list[str]] = {}
    for file in template_files():
        groups.setdefault(verdict(file), []).append(f"`{file.stem}`")
    lines = ["| verdict | why | templates |", "|---|---|---|"]
    for (found, reason), names in sorted(groups.items(), key=lambda group: group[0][0] != "works"):
        lines.append(f"| {found} | {reason and f'`{reason}`'} | {', '.join(names)} |")
    return lines


if __name__ == "__main__":
    print("\n".join(table()))
