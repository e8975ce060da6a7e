"""The records of a user's file: reading them, and checking the fields that a command needs.

A command describes its fields as a dataclass (a view) and ignores all others, so a file needs only
these fields. A record that does not fit raises InputError with ``field: problem``, and `read_each`
adds ``file:line``.
Steps, answer and format verdict of a trajectory are parsed from ``output`` if a record lacks them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pipeline.core.errors import InputError, Place
from pipeline.core.methods import DEFAULT_METHOD
from pipeline.core.record_io import iterate_input, parse_record
from pipeline.core.records import ContextItem, GrammarName, HopType, Span, Step, Stop, Trajectory
from pipeline.core.verdicts import Ruling

if TYPE_CHECKING:
    from pipeline.rollout.grammars import ParsedOutput

View = TypeVar("View")
Parsed = TypeVar("Parsed")
Record = dict[str, Any]
File = Path | str


def parse_view(kind: type[View], record: Record, **defaults: object) -> View:
    """The fields of a record that ``kind`` names, checked; null is the same as absent.

    ``defaults`` replace the defaults of the view.
    """
    own = kind.__annotations__  # a record's inherited fields are not read
    values = {key: value for key, value in record.items() if key in own and value is not None}
    return parse_record(kind, defaults | values)


def read_each(source: File, parse: Callable[[Record], Parsed]) -> Iterator[tuple[Record, Parsed]]:
    """The records of a JSONL or Parquet file, each with what ``parse`` makes of it.

    ``-`` is standard input. Errors name file and line.
    """
    with Place(source) as place:
        for place.line, record in iterate_input(source, Trajectory):
            yield record, parse(record)


def extended(source: File, kind: type[View], fields: Callable[[View], Record]) -> Iterator[Record]:
    """The records with the further ``fields`` of their views; errors name file and line."""
    for record, added in read_each(source, lambda record: fields(parse_view(kind, record))):
        yield record | added


def check_spans(
    sequence: str | list[int], spans: Sequence[Span], field: str, required: bool = False
) -> None:
    """Raise InputError unless the spans cover the sequence or, if not ``required``, are empty."""
    from pipeline.core.spans import cover_error

    problem = cover_error(spans, len(sequence)) if spans or required else None
    if problem is not None:
        raise InputError(f"{field}: {problem}")


@dataclasses.dataclass(kw_only=True)
class ItemView(ContextItem):
    """A retrieved item; only its text is required. ``entities`` are its names, for ProGraph-R1."""

    kind: Literal["chunk", "triplet", "hyperedge"] = "chunk"
    id: str = ""
    title: str = ""
    text: str
    score: float = 0.0
    entities: list[str] | None = None


@dataclasses.dataclass(kw_only=True)
class StepView(Step):
    """A step, which may have the verdict on it."""

    context: list[ItemView] | None = None  # type: ignore[assignment]
    verdict: Ruling | None = None

    def __post_init__(self) -> None:
        self.context = self.context or []


@dataclasses.dataclass(kw_only=True)
class TrajectoryView(Trajectory):
    """The fields of a trajectory that rewards and failure modes read.

    For ProGraph-R1's reward texts are searched for the names in ``entities`` and for the entities
    of the items, and ``values`` holds a Monte Carlo value estimate for the state before each step
    and for the end; without it progress is null.
    """

    trajectory_id: str = ""
    question_id: str = ""
    dataset: str = ""
    question: str = ""
    hop: HopType = "multi"
    answers: list[str]
    evidence: list[str] = dataclasses.field(default_factory=list)
    grammar: GrammarName = DEFAULT_METHOD
    output: str = ""
    messages: str | list[dict[str, Any]] = ""  # type: ignore[assignment]
    spans: list[Span] = dataclasses.field(default_factory=list)
    steps: list[StepView] | None = None  # type: ignore[assignment]
    answer: str | None = None
    format_ok: bool | None = None  # type: ignore[assignment]
    stop: Stop = "answer"
    reward: float | None = None
    entities: list[str] = dataclasses.field(default_factory=list)
    values: list[float] | None = None


def _parsed(view: TrajectoryView) -> ParsedOutput:
    from pipeline.rollout.conversations.messages import prompt_and_turns
    from pipeline.rollout.conversations.steps import parse, tool_format
    from pipeline.rollout.grammars import grammar

    if not view.messages:
        return grammar(view.grammar).parse(view.output, view.spans)
    prompt, turns = prompt_and_turns(view.messages)
    return parse(tool_format(view.grammar), [*prompt, *turns])


def read_trajectory(
    record: Record, grammar: str = DEFAULT_METHOD, required: Sequence[str] = ()
) -> TrajectoryView:
    """The trajectory of a record; missing steps, answer or format verdict are parsed.

    ``grammar`` is the default for a record without a grammar. Raises InputError for a missing or
    malformed field; ``required`` names fields that have no default.
    """
    missing = [f"{name}: missing" for name in required if record.get(name) in (None, "")]
    given = record.get("output") is not None or record.get("messages")
    if not given and None in (record.get("steps"), record.get("format_ok")):
        missing.append("needs output, messages, or steps with format_ok")
    view = parse_view(TrajectoryView, record, grammar=grammar)
    if missing:
        raise InputError(missing[0])
    check_spans(view.output, view.spans, "spans")
    if view.steps is None or view.format_ok is None:
        parsed = _parsed(view)
        view.steps = parsed.steps if view.steps is None else view.steps  # type: ignore[assignment]
        view.format_ok = parsed.format_ok if view.format_ok is None else view.format_ok
        view.answer = record.get("answer", parsed.answer)
    return view
