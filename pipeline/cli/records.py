"""The records of a user's file: reading them, and checking the fields that a command needs.

A command describes its fields as a dataclass (a view) and ignores all others, so a file needs only
these fields. A record that does not fit raises InputError with ``file:line: field: problem``.
Steps, answer and format verdict of a trajectory are parsed from ``output`` if a record lacks them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pipeline.core.errors import InputError
from pipeline.core.input_files import source_name
from pipeline.core.methods import DEFAULT_METHOD
from pipeline.core.record_io import iterate_input, parse_record
from pipeline.core.records import ContextItem, GrammarName, HopType, Span, Step, Stop, Trajectory

if TYPE_CHECKING:
    from pipeline.grammars.base import ParsedOutput

View = TypeVar("View")
Record = dict[str, Any]
File = Path | str


def read_input(source: File) -> Iterator[tuple[int, Record]]:
    """(line or row number, record) of a JSONL or Parquet file; ``-`` is standard input."""
    return iterate_input(source, Trajectory)


def parse_view(
    kind: type[View], record: Record, source: File, line: int, **defaults: object
) -> View:
    """The fields of a record that ``kind`` names, checked; null is the same as absent.

    ``defaults`` replace the defaults of the view.
    """
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values = {key: value for key, value in record.items() if key in names and value is not None}
    return parse_record(kind, defaults | values, source_name(source), line)


def check_spans(
    sequence: str | list[int],
    spans: Sequence[Span],
    field: str,
    source: File,
    line: int,
    required: bool = False,
) -> None:
    """Raise InputError unless the spans cover the sequence or, if not ``required``, are empty."""
    from pipeline.grammars.spans import cover_error

    problem = cover_error(spans, len(sequence)) if spans or required else None
    if problem is not None:
        raise InputError.at(source_name(source), line, f"{field}: {problem}")


@dataclasses.dataclass
class ItemView:
    """A retrieved item; only its text is required."""

    text: str
    title: str = ""
    kind: Literal["chunk", "triplet", "hyperedge"] = "chunk"
    id: str = ""
    score: float = 0.0


@dataclasses.dataclass
class StepView:
    """The fields of a step that rewards read."""

    subquery: str = ""
    summary: str = ""
    entities: list[str] = dataclasses.field(default_factory=list)
    context: list[ItemView] | None = None
    search: str | None = None
    conclusion: str = ""
    verdict: Literal["yes", "no", "unknown"] | None = None

    def record(self) -> Step:
        """The step as trajectories hold it."""
        items = [ContextItem(**vars(item)) for item in self.context or ()]
        step = Step(self.entities, self.subquery, items, self.summary)
        return dataclasses.replace(step, search=self.search, conclusion=self.conclusion)


@dataclasses.dataclass(kw_only=True)
class TrajectoryView:
    """The fields that rewards read."""

    hop: HopType
    answers: list[str]
    evidence: list[str] | None = None
    grammar: GrammarName = DEFAULT_METHOD
    output: str | None = None
    spans: list[Span] = dataclasses.field(default_factory=list)
    steps: list[StepView] | None = None
    answer: str | None = None
    format_ok: bool | None = None
    stop: Stop = "answer"

    def parsed(self, output: str, source: File, line: int) -> ParsedOutput:
        """``output`` parsed by the grammar; raises InputError when the spans do not cover it."""
        from pipeline.grammars import grammar

        check_spans(output, self.spans, "spans", source, line)
        return grammar(self.grammar).parse(output, self.spans)

    def record(self, steps: list[Step], answer: str | None) -> Trajectory:
        """A trajectory without ids."""
        return Trajectory(
            trajectory_id="",
            question_id="",
            dataset="",
            question="",
            hop=self.hop,
            answers=self.answers,
            evidence=self.evidence or [],
            grammar=self.grammar,
            output=self.output or "",
            spans=self.spans,
            steps=steps,
            answer=answer,
            stop=self.stop,
        )


@dataclasses.dataclass(kw_only=True)
class JudgedTrajectoryView(TrajectoryView):
    """The fields that rewards without evidence read; HiPRAG's needs a ``verdict`` in each step."""

    hop: HopType = "multi"


def scorable_trajectory(
    kind: type[TrajectoryView],
    record: Record,
    source: File,
    line: int,
    grammar: str = DEFAULT_METHOD,
) -> Trajectory:
    """The trajectory of a record, parsed if the record lacks steps or the format verdict.

    ``grammar`` is the default for a record without a grammar. Raises InputError for a missing or
    malformed field.
    """
    view = parse_view(kind, record, source, line, grammar=grammar)
    if kind is TrajectoryView and view.evidence is None and view.hop == "multi":
        problem = "evidence: missing; multi-hop rewards need it (it may be [])"
        raise InputError.at(source_name(source), line, problem)
    steps = None if view.steps is None else [step.record() for step in view.steps]
    answer, format_ok = view.answer, view.format_ok
    if steps is None or format_ok is None:
        if view.output is None:
            problem = "needs output, or steps with format_ok"
            raise InputError.at(source_name(source), line, problem)
        parsed = view.parsed(view.output, source, line)
        steps = parsed.steps if steps is None else steps
        format_ok = parsed.format_ok if format_ok is None else format_ok
        answer = record.get("answer", parsed.answer)
    return dataclasses.replace(view.record(steps, answer), format_ok=format_ok)
