"""The interface of an output grammar, the format in which a policy searches and answers.

A grammar is the only code that depends on the format: it gives the prompt and the stop strings,
decides what follows a generated segment, renders the observation text that the rollout inserts, and
parses and renders whole outputs. The sampler, the rewards, the SFT data, the importers and the
command line share it, so every part of the system reads an output in the same way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from typing import ClassVar

from pipeline.core.errors import InputError
from pipeline.core.methods import METHODS, listed_methods
from pipeline.core.records import ContextItem, Span, Step, Stop
from pipeline.core.sanitize import control_token_error, first_control_token, sanitize
from pipeline.knowledge.retrieval.base import Query

MAX_STEPS = 5  # TeaRAG (arXiv 2511.05385), 5.1.3


@dataclass
class ParsedOutput:
    """The result of parsing an output.

    ``steps`` are the complete steps before the first format error, and ``answer`` is the final
    answer if the parser reached one. ``format_error`` is the first format error with its character
    offset, None when ``format_ok``.
    """

    steps: list[Step] = field(default_factory=list)
    answer: str | None = None
    format_ok: bool = False
    format_error: str | None = None


@dataclass(frozen=True)
class Finish:
    """End the trajectory for the reason ``stop``."""

    stop: Stop


# Retrieve documents and append them, append a text as an observation, or end the trajectory.
NextAction = Query | str | Finish


@dataclass(frozen=True)
class Grammar(ABC):
    """The base of the output grammars, in which a whole trajectory is one assistant turn.

    Grammars keep no state between calls.

    Attributes:
        max_steps: the budget of steps.
        special_tokens: control tokens of the policy's tokenizer. Model text that contains one is
            malformed.
        stop: strings that end a generated segment. They stay in the model text.
        chat_tags: tags of the grammar that have the form of control tokens, ``<|name|>``.
    """

    max_steps: int = MAX_STEPS
    special_tokens: tuple[str, ...] = ()
    name: ClassVar[str]
    stop: ClassVar[tuple[str, ...]]
    chat_tags: ClassVar[tuple[str, ...]] = ()

    @property
    @abstractmethod
    def title_end(self) -> tuple[str, str]:
        """A text, which would end the title of an item early, and its replacement."""

    def clean(self, text: str) -> str:
        """``text`` sanitized for this policy's tokenizer."""
        return sanitize(text, self.special_tokens)

    def opening(self) -> str:
        """Observation text that the rollout inserts before the first model token."""
        return ""

    def next_action(
        self, output: str, finish: str, steps_done: int, max_steps: int, spans: Sequence[Span] = ()
    ) -> NextAction:
        """Decide what follows the model segment at the end of ``output``.

        ``finish`` is the engine's finish reason ("stop", "length" or "eos"), ``steps_done`` the
        number of retrievals in ``output``, and ``spans`` the recorded spans of ``output``. A
        control token or a spent token budget ends the trajectory.
        """
        if first_control_token(output, self.special_tokens, self.chat_tags):
            return Finish("malformed")
        if finish == "length":
            return Finish("max_tokens")
        return self.segment_action(output, finish, steps_done, max_steps, spans)

    @abstractmethod
    def segment_action(
        self, output: str, finish: str, steps_done: int, max_steps: int, spans: Sequence[Span]
    ) -> NextAction:
        """The action after a segment that a stop string or an end-of-sequence token ended."""

    def sanitize_items(self, items: Sequence[ContextItem]) -> list[ContextItem]:
        """Copies with sanitized title and text, as the model sees them; ids and scores are kept."""
        return [
            replace(
                item,
                title=self.clean(item.title).replace(*self.title_end),
                text=self.clean(item.text),
            )
            for item in items
        ]

    @abstractmethod
    def item_lines(self, items: Sequence[ContextItem]) -> str:
        """Sanitized ``items``, one per line: the observation without its tags."""

    @abstractmethod
    def observation(self, items: Sequence[ContextItem], output: str) -> str:
        """Observation text to append to ``output`` for a retrieval: sanitized, with closing tag."""

    @abstractmethod
    def parse(self, output: str, spans: Sequence[Span] = ()) -> ParsedOutput:
        """Parse a whole output; never raises. ``spans``, where given, locate the observations."""

    @abstractmethod
    def spans(self, output: str) -> list[Span]:
        """Spans for an output without recorded ones; they cover ``output`` exactly."""

    @abstractmethod
    def render(self, steps: Sequence[Step], answer: str | None) -> tuple[str, list[Span]]:
        """Output text and spans of the steps, such that ``parse`` returns the same steps."""


class FormatError(Exception):
    """The first format error of an output, with its offset; caught by the grammar."""


@dataclass
class Scanner:
    """A cursor over one output, whose methods consume one part or raise `FormatError`.

    ``observations`` collects the ranges that the rollout inserts in such an output, in order.
    """

    text: str
    spans: Sequence[Span]
    special_tokens: tuple[str, ...]
    position: int = 0
    observations: list[tuple[int, int]] = field(default_factory=list)

    @cached_property
    def recorded(self) -> list[tuple[int, int]]:
        """The observations in the given spans."""
        return [(start, end) for start, end, writer in self.spans if writer == "observation"]

    def error(self, message: str) -> FormatError:
        """The format error at the next text; a control token in that line takes precedence."""
        rest = self.text[self.position :]
        at = self.position + len(rest) - len(rest.lstrip())
        line = self.text[at:].partition("\n")[0]
        control = first_control_token(line, self.special_tokens)
        if control:
            return FormatError(control_token_error(control, at))
        return FormatError(f"{message} at offset {at}")


def grammar(
    name: str, *, max_steps: int = MAX_STEPS, special_tokens: Sequence[str] = ()
) -> Grammar:
    """The grammar called ``name``.

    ``special_tokens`` are the policy tokenizer's. They are escaped in retrieved text, and a
    trajectory in which the model wrote one is malformed. Control tokens of common chat templates
    count as special tokens in any case. Raises InputError for an unknown name.
    """
    if name not in METHODS:
        raise InputError(f"grammar {name!r} is not known; this version has {listed_methods()}")
    made: type[Grammar] = import_module(f"{METHODS[name].package}.grammar").GRAMMAR
    return made(max_steps, tuple(special_tokens))
