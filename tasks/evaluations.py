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
from pipeline.core.errors import InputError, StoreError
from tasks.base import StageTask
from tasks.evaluate_any import EvaluateAny
from tasks.evaluate_policy import EvaluatePolicy
from tasks.folders import file_name
from tasks.named_policies import NamedPolicy, complete_policies, find_policy, run_command
from tasks.question_sets import WHOLE_SPLIT, QuestionChoice, QuestionSet, prepare_questions
from tasks.questions import questions as questions_of
from tasks.run import run
from tasks.sharding import ShardedTask


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
    of `tasks.run.run`. Raises InputError for unusable policies and questions, StoreError when an
    index or a policy is not complete, and the errors of `tasks.run.run`.
    """
    named = [find_policy(task, name) for name in names] or complete_policies(task)
    policies = _distinct(named)
    split = questions_of(task, task.settings.evaluation.split)
    _check_complete(task, [split] if choice.file is None else [])
    questions = prepare_questions(task, split, choice)
    evaluations = {
        policy.name: _evaluation(task, policy, choice, questions, force) for policy in policies
    }
    for evaluation in evaluations.values():
        _ = evaluation.key  # raises for an unusable policy before anything runs
    for evaluation in evaluations.values():
        run(evaluation, workers=_workers(evaluation), force=force, check=check)
    from pipeline.stages.evaluate import compare_policies

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


def _workers(evaluation: StageTask) -> int | None:
    """The number of stages that run at once: for shards None, as in the run; else 1."""
    return None if isinstance(evaluation, ShardedTask) and evaluation.divided else 1


def _distinct(policies: Sequence[NamedPolicy]) -> list[NamedPolicy]:
    by_name: dict[str, NamedPolicy] = {}
    for policy in policies:
        if by_name.setdefault(policy.name, policy).directory != policy.directory:
            raise InputError(
                f"two policies are called {policy.name}: {by_name[policy.name].directory} and "
                f"{policy.directory}; name one by its directory"
            )
    return list(by_name.values())


def _check_complete(task: StageTask, splits: Sequence[StageTask]) -> None:
    """Raise StoreError when a stage that retrieval reads, or one of ``splits``, is not complete."""
    evaluation: StageTask = task.clone(EvaluateAny, questions="", title="", again=())
    reads = [*splits, *evaluation.needed().values()]
    missing = [needed for needed in reads if not needed.complete()]
    if missing:
        labels = ", ".join(needed.label for needed in missing)
        raise StoreError(
            f"{labels} of {task.settings.run_dir} {'is' if len(missing) == 1 else 'are'} not "
            "complete, and an evaluation reads finished questions and indexes; run "
            f"`{run_command(missing[-1])}` first"
        )


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
        again=_command(task, policy, choice),
    )
    return evaluation


def _command(task: StageTask, policy: NamedPolicy, choice: QuestionChoice) -> tuple[str, ...]:
    """The command line of one evaluation, for messages."""
    command = ["steep", "evaluate", "--policy", policy.name]
    for option, value in (
        ("--questions", choice.file),
        ("--dataset", choice.dataset),
        ("--limit", choice.limit),
        ("--select", None if choice.limit is None else choice.select),
    ):
        command += [] if value is None else [option, str(value)]
    return (*command, *task.options)


def _publish(evaluation: Evaluation, folder: Path) -> None:
    """Write the rows of each policy and the tests; files of an earlier evaluation are replaced."""
    questions = file_name(evaluation.questions.name)
    for policy in evaluation.policies:
        rows = [row for row in evaluation.rows if row["policy"] == policy.name]
        write_json(folder / f"{file_name(policy.name)}-{questions}.json", rows)
    if evaluation.tests:
        write_json(folder / "comparisons" / f"{questions}.json", evaluation.tests)
