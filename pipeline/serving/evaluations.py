"""Evaluate any policies on any questions with the finished indexes of a run, beside the run.

No other stage runs: an index or a policy that is not complete is an error that names the command.
Input: a configuration's task, names of policies, and a choice of questions. Output: metrics rows as
in ``metrics.json`` and paired tests, also written below ``evaluations/`` in the run's directory.
The questions are written to ``evaluations/questions/<hash>/questions.parquet`` there. The hash is
of the questions themselves, so the format and the name of the file do not count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.core.atomic import json_text, write_json
from pipeline.core.errors import InputError
from pipeline.core.record_io import as_json, read_records, write_parquet
from pipeline.core.records import Question
from pipeline.core.text import visible
from pipeline.engine.run import run
from pipeline.engine.stage import StageTask, needed_here
from pipeline.serving.named_policies import NamedPolicy, complete_policies, find_policy, finished
from tasks.evaluate_any import EvaluateAny
from tasks.evaluate_policy import EvaluatePolicy
from tasks.policy import file_name
from tasks.questions import questions as questions_of

Select = Literal["first", "random"]


@dataclass(frozen=True)
class QuestionSet:
    """Prepared questions: name in results, directory of ``questions.parquet``, and number."""

    name: str
    directory: Path
    count: int
    source: str


@dataclass(frozen=True)
class Evaluation:
    """Metrics of policies on one set of questions.

    ``rows`` are as in ``metrics.json``, ``tests`` as in ``comparison.json`` of the stage
    ``evaluate``. ``policies`` and ``directories``, which hold the trajectories, are by name.
    ``sampled`` says how several trajectories per question were sampled.
    """

    questions: QuestionSet
    policies: dict[str, NamedPolicy]
    rows: list[dict[str, Any]]
    tests: list[dict[str, Any]]
    directories: dict[str, Path]
    sampled: str | None = None


def evaluate(
    task: StageTask,
    names: Sequence[str] = (),
    file: Path | None = None,
    *,
    dataset: str | None = None,
    limit: int | None = None,
    select: Select = "first",
    samples: int = 1,
    force: bool = False,
    check: bool = True,
) -> Evaluation:
    """Evaluate the named policies, or all complete ones of the configuration of ``task``.

    The questions are those of `_prepare_questions`. Several ``samples`` of each add the measures of
    `pipeline.evaluation.sampled`. With ``force`` complete evaluations run again; without ``check``
    they start without the checks of `pipeline.engine.run.run`. Raises InputError for unusable
    policies, questions and ``samples``, StoreError when an index or a policy is not complete, and
    the errors of `pipeline.engine.run.run`.
    """
    if not 1 <= samples <= 10_000:  # as ``sampling.samples``
        raise InputError(f"--samples is {samples}; expected 1 to 10,000 trajectories per question")
    suffix = f"-{samples}-samples" if samples > 1 else ""
    any_one: EvaluateAny = task.clone(EvaluateAny, questions="", title=suffix, samples=samples)
    heat = any_one.settings.evaluation.temperature
    if suffix and not heat:
        raise InputError(
            f"--samples is {samples}, and they would be equal: sampling.temperature and "
            "evaluation.temperature are 0; set one of them above 0"
        )
    named = [find_policy(task, name) for name in names] or complete_policies(task)
    policies: dict[str, NamedPolicy] = {}
    for policy in named:
        if (first := policies.setdefault(policy.name, policy)).directory != policy.directory:
            raise InputError(
                f"two policies are called {policy.name}: {first.directory} and {policy.directory}; "
                "name one by its directory"
            )
    split = questions_of(task, task.settings.evaluation.split)
    searched = needed_here(any_one)
    finished({"questions": split, **searched} if file is None else searched)
    questions = _prepare_questions(task, split, file, dataset, limit, select)
    own = file is None and limit is None and not (force or suffix)
    evaluations = {n: _evaluation(any_one, p, questions, own) for n, p in policies.items()}
    for evaluation in evaluations.values():
        _ = evaluation.key  # raises for an unusable policy before anything runs
    for evaluation in evaluations.values():
        workers = None if evaluation.shards() else 1  # without shards, one stage at once
        run(evaluation, workers=workers, force=force, check=check)
    from pipeline.evaluation.measured import compare_policies

    directories = {name: evaluation.directory for name, evaluation in evaluations.items()}
    compared = compare_policies(directories, seed=task.settings.seed, split=questions.name)
    # Files of an earlier evaluation are replaced.
    folder, asked = task.settings.run_dir / "evaluations", file_name(questions.name) + suffix
    for name in policies:
        rows = [row for row in compared.metrics if row["policy"] == name]
        write_json(folder / f"{file_name(name)}-{asked}.json", rows)
    if compared.tests:
        write_json(folder / "comparisons" / f"{asked}.json", compared.tests)
    sampled = f"{samples} trajectories per question at temperature {heat:g}" if suffix else None
    return Evaluation(questions, policies, compared.metrics, compared.tests, directories, sampled)


def _evaluation(
    any_one: EvaluateAny, policy: NamedPolicy, questions: QuestionSet, own: bool
) -> StageTask:
    """The task of an evaluation; with ``own`` the run's own task if it evaluated the policy."""
    if policy.number is not None and own:
        of_run: StageTask = any_one.clone(EvaluatePolicy, number=policy.number)
        if of_run.complete():
            return of_run
    evaluation: StageTask = any_one.clone(
        policy=None if policy.directory is None else str(policy.directory.absolute()),
        questions=str(questions.directory),
        title=file_name(policy.name)[-60:] + any_one.title,
    )
    return evaluation


def _prepare_questions(
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
