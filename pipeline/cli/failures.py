"""``steep failures``: the failure mode of every trajectory of a file.

Input: trajectories as JSONL or Parquet, and optionally their questions as the stages
``questions-<split>`` write them (``questions.parquet``), which add MuSiQue's decompositions and the
number of hops. Output: the records with ``failure_mode``, ``failed_hop`` and ``hops``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.options import Output, Source
from pipeline.cli.records import File, Record, read_input, read_trajectory
from pipeline.core.errors import InputError
from pipeline.core.input_files import source_name
from pipeline.core.record_io import iterate_records, write_jsonl
from pipeline.core.records import Question
from pipeline.evaluation.failures import FailureMode, diagnose


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
    known = {}
    if questions is not None:
        known = {
            question.question_id: question for question in iterate_records(questions, Question)
        }
    counts = Counter[FailureMode]()

    def diagnosed() -> Iterator[Record]:
        for line, record in read_input(source):
            view = read_trajectory(record, source, line, required=("question", "hop"))
            if questions is not None and view.question_id not in known:
                problem = f"question_id: no question {view.question_id!r} in {questions}"
                raise InputError.at(source_name(source), line, problem)
            diagnosis = diagnose(view, known.get(view.question_id))
            counts[diagnosis.failure_mode] += 1
            yield record | {
                "failure_mode": diagnosis.failure_mode,
                "failed_hop": diagnosis.hop,
                "hops": diagnosis.hops,
            }

    write_jsonl(output, diagnosed())
    return {mode: counts[mode] for mode in FailureMode if counts[mode]}
