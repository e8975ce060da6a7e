"""``steep failures``: the failure mode of every trajectory of a file.

Input: trajectories as JSONL or Parquet, and optionally their questions as the stages
``questions-<split>`` write them (``questions.parquet``), which add MuSiQue's decompositions and the
number of hops. Output: the records with ``failure_mode``, ``failed_hop`` and ``hops``.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.options import Output, Source
from pipeline.cli.records import File, Record, StepView, TrajectoryView, parse_view, read_input
from pipeline.core.errors import InputError
from pipeline.core.input_files import source_name
from pipeline.core.record_io import iterate_records, write_jsonl
from pipeline.core.records import Question, Step, Trajectory
from pipeline.evaluation.failures import FailureMode, diagnose


@dataclasses.dataclass
class WholeStepView(StepView):
    """A step with every field that a policy writes, in all grammars."""

    reasoning: str = ""
    search: str | None = None
    conclusion: str = ""
    think: str = ""
    query: str | None = None

    def record(self) -> Step:
        """The step as trajectories hold it."""
        names = ("reasoning", "search", "conclusion", "think", "query")
        fields = {name: getattr(self, name) for name in names}
        return dataclasses.replace(StepView.record(self), **fields)


@dataclasses.dataclass
class DiagnosedView(TrajectoryView):
    """The fields that ``failures`` reads; missing steps are parsed from ``output``."""

    question: str = ""
    question_id: str = ""
    steps: list[WholeStepView] | None = None  # type: ignore[assignment]


def failures(
    source: Source,
    output: Output = "-",
    questions: Annotated[
        Path | None,
        typer.Option(
            help="questions of the trajectories, as the stages questions-<split> write them"
        ),
    ] = None,
) -> None:
    """Add why trajectories fail: format, stopping, decomposition, retrieval, reading."""
    counts = add_failure_modes(source, output, questions=questions)
    typer.echo(", ".join(f"{n} {mode.value}" for mode, n in counts.items()), err=True)


def add_failure_modes(
    source: File, output: File, *, questions: File | None = None
) -> dict[FailureMode, int]:
    """Add ``failure_mode``, ``failed_hop`` (from 1, or null) and ``hops`` to the records.

    Returns trajectories per mode. Raises InputError for a malformed record, and for a question that
    is not in ``questions``.
    """
    question_of = None
    if questions is not None:
        question_of = {
            question.question_id: question for question in iterate_records(questions, Question)
        }
    counts = Counter[FailureMode]()

    def diagnosed() -> Iterator[Record]:
        for line, record in read_input(source):
            view = parse_view(DiagnosedView, record, source, line)
            if question_of is not None and view.question_id not in question_of:
                problem = f"question_id: no question {view.question_id!r} in {questions}"
                raise InputError.at(source_name(source), line, problem)
            trajectory = _trajectory(view, source, line)
            question = None if question_of is None else question_of[view.question_id]
            diagnosis = diagnose(trajectory, question)
            counts[diagnosis.failure_mode] += 1
            yield record | {
                "failure_mode": diagnosis.failure_mode,
                "failed_hop": diagnosis.hop,
                "hops": diagnosis.hops,
            }

    write_jsonl(output, diagnosed())
    return {mode: counts[mode] for mode in FailureMode if counts[mode]}


def _trajectory(view: DiagnosedView, source: File, line: int) -> Trajectory:
    answer = view.answer
    if not view.question:
        problem = "question: missing; the failure mode depends on the names in it"
        raise InputError.at(source_name(source), line, problem)
    if view.steps is not None:
        steps = [step.record() for step in view.steps]
    elif view.output is not None:
        parsed = view.parsed(view.output, source, line)
        steps, answer = parsed.steps, answer or parsed.answer
    else:
        raise InputError.at(source_name(source), line, "needs output, or steps")
    trajectory = view.record(steps, answer)
    return dataclasses.replace(trajectory, question_id=view.question_id, question=view.question)
