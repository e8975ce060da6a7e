"""Evaluate any policies on any questions with the finished indexes of a run, beside the run.

No other stage runs: an index or a policy that is not complete is an error that names the command.
Input: a configuration's task, names of policies, and a choice of questions. Output: metrics rows as
in ``metrics.json`` and paired tests, also written below ``evaluations/`` in the run's directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.atomic import write_json
from pipeline.core.errors import InputError
from pipeline.engine.run import run
from pipeline.engine.stage import StageTask
from pipeline.serving.named_policies import NamedPolicy, complete_policies, find_policy, finished
from pipeline.serving.question_sets import (
    WHOLE_SPLIT,
    QuestionChoice,
    QuestionSet,
    prepare_questions,
)
from tasks.evaluate_any import EvaluateAny
from tasks.evaluate_policy import EvaluatePolicy
from tasks.policy import file_name
from tasks.questions import questions as questions_of


@dataclass(frozen=True)
class Evaluation:
    """Metrics of policies on one set of questions.

    ``rows`` are as in ``metrics.json``, ``tests`` as in ``comparison.json`` of the stage
    ``evaluate``. ``directories`` hold the trajectories of each policy.
    """

    questions: QuestionSet
    policies: list[NamedPolicy]
    rows: list[dict[str, Any]]
    tests: list[dict[str, Any]]
    directories: dict[str, Path]


def evaluate(
    task: StageTask,
    names: Sequence[str] = (),
    choice: QuestionChoice = WHOLE_SPLIT,
    *,
    force: bool = False,
    check: bool = True,
) -> Evaluation:
    """Evaluate the named policies, or all complete ones of the configuration of ``task``.

    With ``force`` complete evaluations run again; without ``check`` they start without the checks
    of `pipeline.engine.run.run`. Raises InputError for unusable policies and questions, StoreError
    when an index or a policy is not complete, and the errors of `pipeline.engine.run.run`.
    """
    named = [find_policy(task, name) for name in names] or complete_policies(task)
    policies = _distinct(named)
    split = questions_of(task, task.settings.evaluation.split)
    searched = task.clone(EvaluateAny, questions="", title="").needed()
    finished({"questions": split, **searched} if choice.file is None else searched)
    questions = prepare_questions(task, split, choice)
    evaluations = {
        policy.name: _evaluation(task, policy, choice, questions, force) for policy in policies
    }
    for evaluation in evaluations.values():
        _ = evaluation.key  # raises for an unusable policy before anything runs
    for evaluation in evaluations.values():
        workers = None if evaluation.shards() else 1  # without shards, one stage at once
        run(evaluation, workers=workers, force=force, check=check)
    from pipeline.evaluation.measured import compare_policies

    directories = {name: evaluation.directory for name, evaluation in evaluations.items()}
    settings = task.settings
    compared = compare_policies(
        directories,
        seed=settings.seed,
        split=questions.name,
    )
    result = Evaluation(questions, policies, compared.metrics, compared.tests, directories)
    _publish(result, settings.run_dir / "evaluations")
    return result


def _distinct(policies: Sequence[NamedPolicy]) -> list[NamedPolicy]:
    by_name: dict[str, NamedPolicy] = {}
    for policy in policies:
        if by_name.setdefault(policy.name, policy).directory != policy.directory:
            raise InputError(
                f"two policies are called {policy.name}: {by_name[policy.name].directory} and "
                f"{policy.directory}; name one by its directory"
            )
    return list(by_name.values())


def _evaluation(
    task: StageTask,
    policy: NamedPolicy,
    choice: QuestionChoice,
    questions: QuestionSet,
    force: bool,
) -> StageTask:
    """The task of an evaluation; the run's own task if it evaluated the policy on its split."""
    if policy.number is not None and choice.whole_split and not force:
        own: StageTask = task.clone(EvaluatePolicy, number=policy.number)
        if own.complete():
            return own
    evaluation: StageTask = task.clone(
        EvaluateAny,
        policy=None if policy.directory is None else str(policy.directory.absolute()),
        questions=str(questions.directory),
        title=file_name(policy.name)[-60:],
    )
    return evaluation


def _publish(evaluation: Evaluation, folder: Path) -> None:
    """Write the rows of each policy and the tests; files of an earlier evaluation are replaced."""
    questions = file_name(evaluation.questions.name)
    for policy in evaluation.policies:
        rows = [row for row in evaluation.rows if row["policy"] == policy.name]
        write_json(folder / f"{file_name(policy.name)}-{questions}.json", rows)
    if evaluation.tests:
        write_json(folder / "comparisons" / f"{questions}.json", evaluation.tests)
