"""Questions, one task per split.

The splits that train drop questions that repeat a held-out one, so they read the held-out splits.
Their ``questions.parquet`` depends on held-out questions only through the dropped questions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import luigi

from pipeline.config import Config, QuestionFile
from pipeline.config.run import SFT
from pipeline.core.records import Question
from tasks.base import LightTask, StageTask
from tasks.world import DataTask

if TYPE_CHECKING:
    from pipeline.corpus.questions.load import Notes

# Later stages read this file; ``overlap.json`` is for people.
QUESTIONS_READ = {"questions": ("questions.parquet",)}


class Questions(DataTask, LightTask):
    """The questions of one split in one format."""

    version = 3
    entry = "pipeline.stages.questions:run"
    split: ClassVar[str]

    @property
    def needed_split(self) -> bool:
        """Whether a run cannot do without questions of this split."""
        own = self.settings.evaluation
        return self.split in (own.split, own.final_split)

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(file.path for file in self._question_files)

    @property
    def _question_files(self) -> tuple[QuestionFile, ...]:
        files: tuple[QuestionFile, ...] = getattr(self.settings.data, self.split)
        return files

    def faults(self) -> Iterator[str]:
        from pipeline.corpus.first_records import question_faults

        if not self._question_files and self.needed_split:
            yield f"data.{self.split} has no files, and the run needs its questions; add one"
        for file, path in self._raw_questions():
            yield from question_faults(path, file)

    def notes(self) -> Iterator[str]:
        """A sentence for each kind of question that the stage will leave out or find odd.

        Every record is read, unless a file has more than 64 MiB or is not written yet. Raises
        InputError for a malformed record.
        """
        from pipeline.corpus.questions.load import Notes
        from pipeline.stages.questions import TRAINED, lines_of

        notes = Notes()
        if self.small(notes) is not None:
            yield from lines_of(f"data.{self.split}", notes, for_training=self.split in TRAINED)

    def small(self, notes: Notes | None = None) -> list[Question] | None:
        """The questions, unless a file has more than 64 MiB or is not written yet.

        The training splits still have the repetitions of held-out questions. Raises InputError.
        """
        from pipeline.corpus.first_records import is_small
        from pipeline.corpus.questions.load import Notes
        from pipeline.stages.questions import read_split

        files = [(file, path) for file, path in self._raw_questions() if is_small(path)]
        if len(files) < len(self._question_files):
            return None
        return read_split(self.split, files, self.settings.seed, notes or Notes())

    def _raw_questions(self) -> Iterator[tuple[QuestionFile, Path]]:
        """The question files that exist before the run."""
        raw = self.files()
        for file in self._question_files:
            if file.path in raw:
                yield file, Path(raw[file.path])


class _TrainingQuestions(Questions):
    """The questions of a split that trains, except repetitions of held-out questions."""

    def upstream(self) -> dict[str, StageTask]:
        heldout = (QuestionsValidation, QuestionsTest)
        return {**super().upstream(), **{task.stage: self.clone(task) for task in heldout}}


class QuestionsSft(_TrainingQuestions):
    """Questions for the cold start."""

    stage = "questions-sft"
    help = "questions of the cold start"
    split = "sft"
    reads = ("data.sft", "data.root", "seed")

    @property
    def needed_split(self) -> bool:
        return self.settings.start == SFT


class QuestionsSampling(_TrainingQuestions):
    """Questions of the rounds; with ``round``, of a round with its own ``data.sampling``."""

    stage = "questions-sampling"
    help = "questions of the rounds"
    split = "sampling"
    reads = ("data.sampling", "data.root", "seed")
    round = luigi.OptionalIntParameter(default=None, description="round with its own questions")

    @property
    def needed_split(self) -> bool:
        return self.settings.rounds > 0

    def notes(self) -> Iterator[str]:
        """The notes of every split, and which rewards the questions allow."""
        from pipeline.corpus.first_records import is_small
        from pipeline.corpus.questions.load import Notes
        from pipeline.methods import method
        from pipeline.methods.advice import suited_method
        from pipeline.stages.questions import read_split

        yield from super().notes()
        files = [(file, path) for file, path in self._raw_questions() if is_small(path)]
        kind = self.settings.rewards.kind
        if not files:
            return
        questions = read_split(self.split, files, self.settings.seed, Notes())
        suited, why = suited_method(questions, judges=self.settings.judges is not None)
        if kind == suited:
            yield f"data.sampling: rewards.kind {kind} fits: {why}"
        elif not self.settings.method.step_rewards:
            yield f"data.sampling: rewards.kind is {kind}, and {suited} fits: {why}"
        if method(kind).record_needs != "evidence":
            return
        bare = Counter(question.hop for question in questions if not question.evidence)
        if count := bare["unknown"]:
            yield (
                f"data.sampling: {count:,} of {len(questions):,} questions have neither hops nor "
                f"evidence, so rewards.kind {kind} counts outcome and format alone for them; add "
                "evidence for its process reward, or let judges decide (base: "
                "embedded-hiprag.yaml)"
            )
        if (count := bare["multi"]) and self.settings.pairs.terms == "all":
            least = min(
                self.settings.pairs.multi_process, self.settings.pairs.multi_process_relaxed
            )
            yield (
                f"data.sampling: {count:,} of {len(questions):,} questions are multi-hop without "
                f"evidence, so their process reward is at most "
                f"{self.settings.rewards.tearag.consistency:g} and no answer reaches "
                f"pairs.multi_process ({least:g}); leave out their hop, add evidence, or "
                "set pairs.terms to outcome-format"
            )

    @cached_property
    def settings(self) -> Config:
        return self.run_settings if self.round is None else self.run_settings.of_round(self.round)

    @property
    def round_number(self) -> int | None:
        return None if self.round is None else int(self.round)


class QuestionsValidation(Questions):
    """Questions to choose settings by."""

    stage = "questions-validation"
    help = "questions to choose settings by"
    split = "validation"
    reads = ("data.validation", "data.root", "seed")


class QuestionsTest(Questions):
    """Questions of the final evaluation."""

    stage = "questions-test"
    help = "questions of the final evaluation"
    split = "test"
    reads = ("data.test", "data.root", "seed")


SPLITS: dict[str, type[Questions]] = {
    task.split: task
    for task in (QuestionsSft, QuestionsSampling, QuestionsValidation, QuestionsTest)
}


def questions(task: StageTask, split: str) -> StageTask:
    """The task of the questions of a split that ``task`` reads: sft, sampling, validation or test.

    A round with its own ``data.sampling`` (``per_round``) has its own task.
    """
    of_split: StageTask
    if split == "sampling":
        own = task.settings.data.sampling != task.run_settings.data.sampling
        of_split = task.clone(QuestionsSampling, round=task.round_number if own else None)
    else:
        of_split = task.clone(SPLITS[split])
    return of_split


def question_sets(task: StageTask) -> dict[str, Questions]:
    """The tasks of all questions of a run, as inputs, questions of single rounds included."""
    config = task.run_settings
    used = [split for split in SPLITS if split != "sft" or config.start == SFT]
    sets = {f"questions-{split}": task.clone(SPLITS[split]) for split in used}
    for number in range(1, config.rounds + 1):
        if config.of_round(number).data.sampling != config.data.sampling:
            of_round = task.clone(QuestionsSampling, round=number)
            sets[f"questions-sampling-{number}"] = of_round
    return sets
