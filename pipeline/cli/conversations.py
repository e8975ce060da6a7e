"""Records with ``messages``, for ``steep parse --format tools`` and ``steep mask``.

Messages have the form of OpenAI's interface, as agents log them. ``tools`` are the JSON schemas of
the tools that were declared, as a list or as JSON text, which Parquet files hold.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.cli.records import Record
from pipeline.core.errors import InputError
from pipeline.core.input_files import parse_json
from pipeline.knowledge.corpus.raw_records import encodable

if TYPE_CHECKING:
    from pipeline.llm.tokenizer import Tokenizer
    from pipeline.rollout.conversations.chat_template import ChatTemplate


@dataclasses.dataclass
class ConversationView:
    """The fields of a conversation."""

    messages: list[dict[str, Any]] | str
    tools: list[dict[str, Any]] | str = dataclasses.field(default_factory=list)


def parsed_messages(
    view: ConversationView, grammar: str, search_tools: Sequence[str], *, whole: bool
) -> Record:
    """Steps, answer and format verdict of a conversation.

    ``search_tools`` and ``whole`` are as in `pipeline.rollout.importers.iterate_outputs`.
    """
    from pipeline.rollout.conversations.messages import name_searches, read_messages
    from pipeline.rollout.conversations.steps import parse, tool_format

    form = tool_format(grammar)
    name_searches(messages := read_messages(view.messages), form.name, search_tools)
    return dataclasses.asdict(parse(form, messages, whole=whole))


def conversation_mask(
    view: ConversationView,
    tokenizer: Tokenizer,
    template_of: Callable[[str], ChatTemplate],
) -> Record:
    """``prompt_ids``, ``token_ids``, ``token_spans``, ``mismatch``, ``trained`` and ``masked``.

    The ids of the conversation, and the text that each writer has in them. ``template_of`` gives
    the chat template with tools, by their JSON.
    """
    from pipeline.llm.tokens import decode_mask
    from pipeline.rollout.conversations.messages import read_messages

    if not encodable([view.messages, view.tools]):
        raise InputError("half of a surrogate pair has no tokens; replace it")
    template = template_of(json.dumps(_declared(view.tools)))
    messages = read_messages(view.messages)
    _check_kept(template, messages)
    built = template.build(messages)
    decoded = decode_mask(built.token_ids, built.token_spans, tokenizer)
    return dataclasses.asdict(built) | dataclasses.asdict(decoded)


def _declared(tools: list[dict[str, Any]] | str) -> list[dict[str, Any]]:
    declared = parse_json(tools, "tools") if isinstance(tools, str) else tools
    if not isinstance(declared, list):
        raise InputError("tools: expected a list of JSON schemas")
    for number, tool in enumerate(declared):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InputError(f"tools.{number}: a tool needs function.name")
    return declared


def _check_kept(template: ChatTemplate, messages: Sequence[dict[str, Any]]) -> None:
    """Raise InputError when the chat template leaves out a tool, a message or a call.

    It renders the conversation with a word in place of each text, because templates escape texts.
    """
    from pipeline.rollout.conversations.messages import split_turns

    words: dict[str, str] = {}
    marked = copy.deepcopy(list(messages))
    for number, message in enumerate(marked):
        if message["content"].strip():
            place = f"messages.{number}.content"
            message["content"] = words[place] = f"kept{len(words)}x"
        for index, call in enumerate(message.get("tool_calls", ())):
            place = f"messages.{number}.tool_calls.{index}"
            words[place] = f"kept{len(words)}x"
            call["function"]["arguments"] = {"query": words[place]}
    names = {f"tools.{n}": tool["function"]["name"] for n, tool in enumerate(template.tools)}
    text = template.render(marked, generation_prompt=marked[-1]["role"] != "assistant")
    # Before the first turn, because calls have the names of their tools too.
    prompt = template.render(split_turns(marked)[0], generation_prompt=True)
    for place, mark in (names | words).items():
        if mark not in (prompt if place in names else text):
            raise InputError(
                f"{place}: the chat template leaves it out; name a template that writes it with "
                "--chat-template (in a configuration: model.chat_template)"
            )
