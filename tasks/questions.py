"""Questions, one task per split.

The splits that train drop questions that repeat a held-out one, so they read the held-out splits. Their
``questions.parquet`` depends on held-out questions only through what is dropped.
"""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import luigi

from pipeline.config import Config
from tasks.base import StageTask
from tasks.data_files import DataTask

# The file that stages after this one read; ``overlap.json`` is for people.
QUESTIONS_READ = {"questions": ("questions.parquet",)}


class _Questions(DataTask):
    """The questions of one split in one format."""

    version = 2
    entry = "pipeline.stages.questions:run"
    split: ClassVar[str]

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(file.path for file in getattr(self.settings.data, self.split))


class _TrainingQuestions(_Questions):
    """The questions of a split that trains, without those that repeat a held-out question."""

    def upstream(self) -> dict[str, StageTask]:
        heldout = (QuestionsValidation, QuestionsTest)
        return {**super().upstream(), **{task.stage: self.clone(task) for task in heldout}}


class QuestionsSft(_TrainingQuestions):
    """Decomposed questions for the cold start."""

    stage = "questions-sft"
    split = "sft"
    reads = ("data.sft", "data.root", "seed")


class QuestionsSampling(_TrainingQuestions):
    """Questions of the rounds; with ``round``, those of a round with its own ``data.sampling``."""

    stage = "questions-sampling"
    split = "sampling"
    reads = ("data.sampling", "data.root", "seed")
    round = luigi.OptionalIntParameter(default=None, description="round with its own questions")

    @cached_property
    def settings(self) -> Config:
        return self.run_settings if self.round is None else self.run_settings.of_round(self.round)

    @property
    def round_number(self) -> int | None:
        return None if self.round is None else int(self.round)


class QuestionsValidation(_Questions):
    """Questions to choose settings by."""

    stage = "questions-validation"
    split = "validation"
    reads = ("data.validation", "data.root", "seed")


class QuestionsTest(_Questions):
    """Questions of the final evaluation."""

    stage = "questions-test"
    split = "test"
    reads = ("data.test", "data.root", "seed")


SPLITS: dict[str, type[_Questions]] = {
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
