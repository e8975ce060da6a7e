"""Gold coverage: the questions whose gold passages or answers the corpus lacks."""

from __future__ import annotations

from collections.abc import Iterator

from tasks.base import LightTask, StageTask
from tasks.corpus import Corpus
from tasks.questions import question_sets


class Coverage(LightTask):
    """Looks in the corpus for the gold passages, or else the answers, of all questions."""

    stage = "coverage"
    help = "questions whose gold passages or answers the corpus lacks"
    entry = "pipeline.stages.coverage:run"
    reads = ()

    def upstream(self) -> dict[str, StageTask]:
        return {"corpus": self.clone(Corpus), **question_sets(self)}

    def notes(self) -> Iterator[str]:
        """The coverage by split and data set.

        There is none if the corpus or a question file has more than 64 MiB, or must be converted or
        generated first.
        """
        from pipeline.corpus.coverage import GoldCoverage, coverage_lines

        sets = {
            name.removeprefix("questions-"): t.small() for name, t in question_sets(self).items()
        }
        questions = {name: found for name, found in sets.items() if found is not None}
        chunks = self.clone(Corpus).small() if len(questions) == len(sets) else None
        if chunks is not None:
            coverage = GoldCoverage(questions)
            for chunk in chunks:
                coverage.look(chunk.title, chunk.text)
            yield from coverage_lines(coverage.rows())
