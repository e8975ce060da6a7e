"""Stage ``coverage``: the questions whose gold passages or answers the corpus lacks.

Input: the corpus, and the questions of every split. Output: ``coverage.json`` with ``rows``
(`CoverageRow`), ``uncovered`` (ids of questions by split), and ``titles`` (the first missing gold
passages).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING

from pipeline.core.atomic import write_json
from pipeline.engine.stage import LightTask, StageTask
from tasks.corpus import Corpus
from tasks.questions import question_sets, questions_by_split

if TYPE_CHECKING:
    from pipeline.engine.context import StageContext


class Coverage(LightTask):
    """Looks in the corpus for the gold passages, or else the answers, of all questions."""

    stage = "coverage"
    help = "questions whose gold passages or answers the corpus lacks"
    reads = ()

    @cached_property
    def inputs(self) -> dict[str, StageTask]:
        return {"corpus": self.clone(Corpus), **question_sets(self)}

    def notes(self) -> Iterator[str]:
        """The coverage by split and data set.

        There is none if the corpus or a question file has more than 64 MiB, or must be converted or
        generated first.
        """
        from pipeline.knowledge.corpus.coverage import GoldCoverage, coverage_lines

        sets = {
            name.removeprefix("questions-"): t.small[0] for name, t in question_sets(self).items()
        }
        questions = {name: found for name, found in sets.items() if found is not None}
        chunks = self.clone(Corpus).small() if len(questions) == len(sets) else None
        if chunks is not None:
            coverage = GoldCoverage(questions)
            for chunk in chunks:
                coverage.look(chunk.title, chunk.text)
            yield from coverage_lines(coverage.rows())


def run(context: StageContext) -> dict[str, int]:
    """Write the file and return the numbers of questions and of uncovered ones."""
    from pipeline.core.columns import Columns
    from pipeline.knowledge.corpus.coverage import COVERAGE, GoldCoverage, coverage_lines

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
    write_json(context.output / COVERAGE, {"rows": [asdict(row) for row in rows], **found})
    return {
        "questions": sum(row.n for row in rows), "uncovered": sum(row.uncovered for row in rows)
    }  # fmt: skip
