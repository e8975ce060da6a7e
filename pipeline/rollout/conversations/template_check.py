"""Check a chat template before a run, and name a template that works in its place.

Input: a `ChatTemplate`. Output: a sentence where the template rewrites earlier turns, or an error
where it drops or refuses tools. The template to use instead passes the same check and is in TRL's
package. Among these, one comes first whose prompt opens no ``<think>`` that the model's own leaves
closed; then the one most like the model's own; then the shortest.
"""

from __future__ import annotations

import copy
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path

from pipeline.core.errors import InputError
from pipeline.core.input_files import read_text
from pipeline.core.model_files import PACKAGE
from pipeline.core.spans import common_length
from pipeline.rollout.conversations.chat_template import ChatTemplate
from pipeline.rollout.conversations.messages import Message
from pipeline.rollout.conversations.turn_parser import TurnParser

_PROMPT: list[Message] = [
    {"role": "system", "content": "Search."},
    {"role": "user", "content": "Who?"},
]


def rewriting_note(template: ChatTemplate) -> str:
    """How a template rewrites earlier turns, and which template does not; empty if it does not.

    Raises InputError for a template without tools, and names a template with tools.
    """
    try:
        difference = template.check()
    except InputError as error:
        raise InputError(f"{error}{_remedy(template)}") from None
    return difference and (
        f"the chat template rewrites earlier turns ({difference}); trajectories keep the sampled "
        f"turns{_remedy(template)}"
    )


def _remedy(template: ChatTemplate) -> str:
    found = working_template(template)
    return f"; this one works: model.chat_template={found}" if found else ""


def working_template(template: ChatTemplate) -> str | None:
    """The setting of the template of TRL's package that works in place of ``template``."""
    package = find_spec("trl")
    if package is None or package.origin is None:
        return None
    own, ranked = _prompt(template), list[tuple[tuple[bool, int, int, str], ChatTemplate]]()
    for file in sorted((Path(package.origin).parent / "chat_templates").glob("*.jinja")):
        tokenizer = copy.copy(template.tokenizer)
        tokenizer.chat_template = read_text(file)
        other = ChatTemplate(
            tokenizer,
            template.tools,
            thinking=template.thinking,
            end_ids=template.end_ids,
        )
        shown = _prompt(other)
        opens = not _opens_thinking(own) and _opens_thinking(shown)
        ranked.append(((opens, -common_length(own, shown), len(shown), file.name), other))
    for rank, other in sorted(ranked, key=itemgetter(0)):
        try:
            if not other.check() and TurnParser(other) is not None:
                return f"{PACKAGE}trl/chat_templates/{rank[-1]}"
        except InputError:
            continue
    return None


def _opens_thinking(prompt: str) -> bool:
    return prompt.rfind("<think>") > prompt.rfind("</think>")


def _prompt(template: ChatTemplate) -> str:
    try:
        return template.render(_PROMPT, generation_prompt=True)
    except InputError:
        return ""
