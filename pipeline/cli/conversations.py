"""Records with ``messages``, for ``steep parse --format tools`` and ``steep mask``.

Messages have the form of OpenAI's interface, as agents log them. ``tools`` are the JSON schemas of
the tools that were declared, as a list or as JSON text, which Parquet files hold.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pipeline.cli.records import File, Record, parse_view
from pipeline.core.errors import InputError
from pipeline.core.input_files import parse_json, source_name
from pipeline.corpus.raw_records import encodable

if TYPE_CHECKING:
    from pipeline.conversations.chat_template import ChatTemplate
    from pipeline.grammars.tokenizer import Tokenizer


@dataclasses.dataclass
class ConversationView:
    """The fields of a conversation."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | str = dataclasses.field(default_factory=list)


@contextmanager
def _named(source: File, line: int) -> Iterator[None]:
    """Add file and line to errors in messages and templates."""
    try:
        yield
    except InputError as error:
        raise InputError.at(source_name(source), line, str(error)) from error


def parsed_messages(record: Record, grammar: str, source: File, line: int) -> Record:
    """Steps, answer and format verdict of a conversation."""
    from pipeline.conversations.steps import parse

    view = parse_view(ConversationView, record, source, line)
    with _named(source, line):
        return dataclasses.asdict(parse(grammar, view.messages))


class ConversationMasks:
    """Token ids of conversations under one tokenizer, and the text that each writer has in them.

    ``thinking`` is the chat template's ``enable_thinking``; None leaves it to the template.
    """

    def __init__(self, tokenizer: Tokenizer, thinking: bool | None) -> None:
        self.tokenizer = tokenizer
        self.thinking = thinking
        self._templates: dict[str, ChatTemplate] = {}

    def fields(self, record: Record, source: File, line: int) -> Record:
        """``prompt_ids``, ``token_ids``, ``token_spans``, ``mismatch``, ``trained``, ``masked``."""
        from pipeline.grammars.tokens import decode_mask

        view = parse_view(ConversationView, record, source, line)
        if not encodable([view.messages, view.tools]):
            problem = "half of a surrogate pair has no tokens; replace it"
            raise InputError.at(source_name(source), line, problem)
        with _named(source, line):
            template = self._template(view.tools, source, line)
            built = template.build(view.messages)
        decoded = decode_mask(built.token_ids, built.token_spans, self.tokenizer)
        return dataclasses.asdict(built) | dataclasses.asdict(decoded)

    def _template(self, tools: list[dict[str, Any]] | str, source: File, line: int) -> ChatTemplate:
        from pipeline.conversations.chat_template import ChatTemplate

        declared = parse_json(tools, source, line) if isinstance(tools, str) else tools
        if not isinstance(declared, list):
            raise InputError("tools: expected a list of JSON schemas")
        key = json.dumps(declared)
        if key not in self._templates:
            self._templates[key] = ChatTemplate(self.tokenizer, declared, thinking=self.thinking)
        return self._templates[key]
