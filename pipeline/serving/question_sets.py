"""Prepare the questions of an evaluation: any question file, or the run's own split.

The questions are written to ``evaluations/questions/<hash>/questions.parquet`` of the run. The hash
is of the questions themselves, so the format and the name of the file do not count.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.core.atomic import json_text
from pipeline.core.errors import InputError
from pipeline.core.record_io import as_json, read_records, write_parquet
from pipeline.core.records import Question
from pipeline.core.text import visible
from pipeline.engine.stage import StageTask

Select = Literal["first", "random"]


@dataclass(frozen=True)
class QuestionSet:
    """Prepared questions: name in results, directory of ``questions.parquet``, and number."""

    name: str
    directory: Path
    count: int
    source: str


def prepare_questions(
    task: StageTask,
    split: StageTask,
    file: Path | None,
    dataset: str | None,
    limit: int | None,
    select: Select,
) -> QuestionSet:
    """Read and select the questions, and write them below the directory of the run of ``task``.

    ``file`` is a file of data set ``dataset``, which is guessed when it is None. Without a file the
    questions of the task ``split`` are taken, which must be complete. At most ``limit`` are taken,
    the first or any. Raises InputError when the file is unusable, has no questions, or its data set
    is not known.
    """
    from pipeline.knowledge.corpus.questions.load import DATASETS, dataset_of
    from pipeline.knowledge.corpus.questions.select import choose

    seed = task.settings.seed
    if file is None:
        name: str = task.settings.evaluation.split
        path, dataset = split.directory / "questions.parquet", "questions"
        questions = choose(read_records(path, Question), select, limit, seed)
        if not questions:
            raise InputError.at(path, "no questions to evaluate on; name another file")
    else:
        path, name = file, file.stem
        if dataset not in (None, *DATASETS):
            raise InputError(f"--dataset is {dataset!r}; expected one of {', '.join(DATASETS)}")
        dataset = dataset or dataset_of(file)
        questions = told_questions(file, dataset, select=select, limit=limit, seed=seed)
    if limit is not None:
        name += f"-{select}-{limit}"
    lines = "\n".join(json_text(as_json(question), sort_keys=True) for question in questions)
    key = hashlib.sha256(lines.encode()).hexdigest()[:16]
    directory = task.settings.run_dir / "evaluations" / "questions" / key
    if not (directory / "questions.parquet").is_file():
        write_parquet(directory / "questions.parquet", questions, Question)
    source = f"{path}" if dataset == "questions" else f"{path}, read as {dataset}"
    return QuestionSet(name, directory, len(questions), source)


def told_questions(file: Path, dataset: str, **choice: Any) -> list[Question]:
    """The questions of a file, as `load_questions` reads them by ``choice``.

    Prints a line for each reason to leave out or notice some. Raises what `load_questions` raises.
    """
    from pipeline.knowledge.corpus.questions.load import Notes, load_questions

    questions = load_questions(file, dataset, notes=(notes := Notes()), **choice)
    notes.count_repeats(questions)
    for line in notes.lines(file.name, for_training=choice.get("for_training", False)):
        print(visible(line))
    return questions
