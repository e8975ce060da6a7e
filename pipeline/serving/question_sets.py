"""Prepare the questions of an evaluation: any question file, or the run's own split.

The questions are written to ``evaluations/questions/<hash>/questions.parquet`` of the run. The hash
is of the questions themselves, so the format and the name of the file do not count.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipeline.core.atomic import json_text
from pipeline.core.errors import InputError
from pipeline.core.record_io import as_json, read_records, write_parquet
from pipeline.core.records import Question
from pipeline.core.text import visible
from pipeline.engine.stage import StageTask

Select = Literal["first", "random"]


@dataclass(frozen=True)
class QuestionChoice:
    """The questions to evaluate on.

    ``file`` is a file of data set ``dataset``, which is guessed when it is None; without a file the
    run's evaluation split is taken. At most ``limit`` are taken, the first or any.
    """

    file: Path | None = None
    dataset: str | None = None
    limit: int | None = None
    select: Select = "first"

    @property
    def whole_split(self) -> bool:
        """Whether these are all questions of the run's evaluation split."""
        return self.file is None and self.limit is None


WHOLE_SPLIT = QuestionChoice()


@dataclass(frozen=True)
class QuestionSet:
    """Prepared questions: name in results, directory of ``questions.parquet``, and number."""

    name: str
    directory: Path
    count: int
    source: str


def prepare_questions(task: StageTask, split: StageTask, choice: QuestionChoice) -> QuestionSet:
    """Read and select the questions, and write them below the directory of the run of ``task``.

    ``split`` is the task of the run's evaluation questions, complete if ``choice`` names no file.
    Raises InputError when the file is unusable, has no questions, or its data set is not known.
    """
    from pipeline.knowledge.corpus.questions.select import choose

    seed = task.settings.seed
    if choice.file is None:
        name: str = task.settings.evaluation.split
        path, dataset = split.directory / "questions.parquet", "questions"
        questions = choose(read_records(path, Question), choice.select, choice.limit, seed)
        if not questions:
            raise InputError.at(path, "no questions to evaluate on; name another file")
    else:
        path, name = choice.file, choice.file.stem
        questions, dataset = _of_file(path, choice, seed)
    if choice.limit is not None:
        name += f"-{choice.select}-{choice.limit}"
    lines = "\n".join(json_text(as_json(question), sort_keys=True) for question in questions)
    key = hashlib.sha256(lines.encode()).hexdigest()[:16]
    directory = task.settings.run_dir / "evaluations" / "questions" / key
    if not (directory / "questions.parquet").is_file():
        write_parquet(directory / "questions.parquet", questions, Question)
    source = f"{path}" if dataset == "questions" else f"{path}, read as {dataset}"
    return QuestionSet(name, directory, len(questions), source)


def _of_file(path: Path, choice: QuestionChoice, seed: int) -> tuple[list[Question], str]:
    from pipeline.knowledge.corpus.questions.load import DATASETS, Notes, dataset_of, load_questions
    from tasks.questions import lines_of

    if choice.dataset is not None and choice.dataset not in DATASETS:
        raise InputError(f"--dataset is {choice.dataset!r}; expected one of {', '.join(DATASETS)}")
    dataset = choice.dataset or dataset_of(path)
    notes = Notes()
    questions = load_questions(
        path, dataset, select=choice.select, limit=choice.limit, seed=seed, notes=notes
    )
    notes.count_repeats(questions)
    for line in lines_of(path.name, notes):
        print(visible(line))
    return questions, dataset
