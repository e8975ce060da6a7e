"""Stage ``coverage``: the questions whose gold passages or answers the corpus lacks.

Input: the corpus, and the questions of every split. Output: ``coverage.json`` with ``rows``
(`CoverageRow`), ``uncovered`` (ids of questions by split), and ``titles`` (the first missing gold
passages).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from pipeline.core.atomic import write_json
from pipeline.core.columns import Columns
from pipeline.core.record_io import iterate_records
from pipeline.core.records import Question
from pipeline.corpus.coverage import GoldCoverage, coverage_lines
from pipeline.run.context import StageContext
from pipeline.stages import questions as questions_stage

FILE = "coverage.json"


def run(context: StageContext) -> dict[str, int]:
    """Write the file and return the numbers of questions and of uncovered ones."""
    coverage = GoldCoverage(questions_by_split(context.inputs))
    chunks = Columns(context.inputs["corpus"] / "chunks.arrow", ("title", "text"))
    context.progress.start(len(chunks), "passages")
    for title, text in chunks.iterate():
        coverage.look(title, text)
        context.progress.advance()
    rows = coverage.rows()
    for line in coverage_lines(rows):
        print(line)
    found = {"uncovered": coverage.uncovered(), "titles": coverage.missing_titles()}
    write_json(context.output / FILE, {"rows": [asdict(row) for row in rows], **found})
    return {
        "questions": sum(row.n for row in rows), "uncovered": sum(row.uncovered for row in rows)
    }  # fmt: skip


def questions_by_split(inputs: Mapping[str, Path]) -> dict[str, Iterable[Question]]:
    """The questions of the inputs ``questions-<split>``, by split."""
    return {
        name.removeprefix(questions_stage.PREFIX): iterate_records(
            directory / questions_stage.FILE, Question
        )
        for name, directory in inputs.items()
        if name.startswith(questions_stage.PREFIX)
    }
