"""The stages ``evaluate-policy`` and ``evaluate``: measure each policy, then merge the policies.

`run` reads ``questions/<split>.parquet`` and a policy, and writes ``trajectories.parquet`` and
``rows.json`` (one `Outcome` per question, and seconds). `merge` reads these files of every policy and
writes ``metrics.json`` (the rows of TeaRAG's tables 6 to 10, arXiv 2511.05385), ``comparison.json``
(paired tests), ``distributions.json`` (counts of steps and stop reasons), ``examples.parquet``, and
failed trajectories of the last policy: ``failures.parquet``, with failure modes in ``failures.json``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.core.atomic import write_json, write_text
from pipeline.core.errors import InputError, StoreError
from pipeline.core.record_io import parse_record, read_records, write_parquet
from pipeline.core.records import Question, Trajectory
from pipeline.core.verdicts import Verdict, by_trajectory
from pipeline.evaluation.compare import compare
from pipeline.evaluation.excerpts import failed, most_changed
from pipeline.evaluation.failures import with_current_names
from pipeline.evaluation.metrics import ALL, MEASURES, Outcome, measure, metrics_rows
from pipeline.judges.metrics import SearchErrors, count_search_errors
from pipeline.run.context import StageContext

_JUDGED = "judge-"


def run(context: StageContext) -> dict[str, int]:
    """Sample one trajectory of ``inputs["policy"]`` per held-out question and measure it.

    Sampling settings are those of training except for the temperature, so a policy is evaluated under
    the conditions of its training. Raises InputError when the split has no questions.
    """
    # Imported here because it needs the engine's packages; `merge` and the report do not.
    from pipeline.stages.policy_rollout import roll_out_policy

    settings = context.config.evaluation
    path = context.inputs["corpus"] / "questions" / f"{settings.split}.parquet"
    questions = read_records(path, Question)
    if not questions:
        raise InputError.at(
            path, None, f"no questions to evaluate on; add files to data.{settings.split}"
        )
    trajectories, seconds = roll_out_policy(
        context,
        questions,
        context.inputs["policy"],
        temperature=settings.temperature,
        samples=1,
    )
    by_id = {question.question_id: question for question in questions}
    outcomes: list[Outcome] = []

    def measured_in_passing() -> Iterator[Trajectory]:
        for trajectory in trajectories:
            question = by_id[trajectory.question_id]
            outcomes.append(measure(trajectory, question.split_part, question))
            yield trajectory

    write_parquet(context.output / "trajectories.parquet", measured_in_passing(), Trajectory)
    measured = {
        "split": settings.split,
        "seconds": seconds,
        "outcomes": [asdict(outcome) for outcome in outcomes],
    }
    write_text(context.output / "rows.json", json.dumps(measured))
    return {"questions": len(questions), "trajectories": len(outcomes)}


def merge(context: StageContext) -> dict[str, int]:
    """Merge the evaluations of all policies.

    ``inputs`` maps "sft", "round-1", ... to evaluations and, with a judge, "judge-sft",
    "judge-round-1", ... to the verdicts on their steps. Raises StoreError when the policies were
    evaluated on different questions or splits.
    """
    policies = [name for name in context.inputs if not name.startswith(_JUDGED)]
    return merge_policies(
        {name: context.inputs[name] for name in sorted(policies, key=_training_order)},
        context.output,
        resamples=context.config.evaluation.bootstrap,
        seed=context.seed,
        judged={
            name: context.inputs[_JUDGED + name]
            for name in policies
            if _JUDGED + name in context.inputs
        },
    )


def merge_policies(
    directories: Mapping[str, Path],
    output: Path,
    *,
    resamples: int = 1000,
    seed: int = 0,
    judged: Mapping[str, Path] | None = None,
) -> dict[str, int]:
    """Write metrics, tests, distributions and examples of ``directories``, in order of training.

    ``judged`` maps policies to directories of the stage ``judge-policy``. Returns the numbers of
    metrics rows, tests and example trajectories. Raises StoreError when the policies were evaluated
    on different questions or splits.
    """
    outcomes: dict[str, list[Outcome]] = {}
    metrics: list[dict[str, Any]] = []
    splits: dict[str, str] = {}
    for policy, directory in directories.items():
        path = directory / "rows.json"
        measured = json.loads(path.read_text(encoding="utf-8"))
        outcomes[policy] = [
            parse_record(Outcome, with_current_names(value), path, None)
            for value in measured["outcomes"]
        ]
        splits[policy] = measured["split"]
        metrics += metrics_rows(
            policy,
            measured["split"],
            outcomes[policy],
            measured["seconds"],
            resamples=resamples,
            seed=seed,
            judged=_rates(directory, judged[policy]) if judged and policy in judged else None,
        )
    if len(set(splits.values())) > 1:
        raise StoreError(f"policies were evaluated on different splits: {splits}")
    by_question = {policy: _by_question(values) for policy, values in outcomes.items()}
    comparison = compare(by_question, MEASURES, split=next(iter(splits.values())))
    write_json(output / "metrics.json", metrics)
    write_json(output / "comparison.json", comparison)
    distributions = {policy: _distributions(values) for policy, values in outcomes.items()}
    write_json(output / "distributions.json", distributions)
    examples = most_changed(outcomes, directories)
    write_parquet(output / "examples.parquet", examples, Trajectory)
    last = next(reversed(outcomes))
    failures, trajectories = failed(outcomes[last], directories[last])
    write_json(output / "failures.json", failures)
    write_parquet(output / "failures.parquet", trajectories, Trajectory)
    return {"rows": len(metrics), "tests": len(comparison), "examples": len(examples)}


def _rates(evaluated: Path, judged: Path) -> dict[str, SearchErrors]:
    """Verdict counts of each question's trajectory, by question id."""
    import pyarrow.parquet as pq

    columns = ["trajectory_id", "question_id"]
    rows = pq.read_table(evaluated / "trajectories.parquet", columns=columns).to_pylist()
    verdicts = by_trajectory(read_records(judged / "verdicts.parquet", Verdict))
    return {
        row["question_id"]: count_search_errors(verdicts.get(row["trajectory_id"], []))
        for row in rows
    }


def _training_order(policy: str) -> int:
    return 0 if policy == "sft" else int(policy.removeprefix("round-"))


def _by_question(outcomes: Sequence[Outcome]) -> dict[str, tuple[str, dict[str, float]]]:
    result: dict[str, tuple[str, dict[str, float]]] = {}
    for outcome in outcomes:
        if outcome.question_id in result:
            raise StoreError(
                f"question {outcome.question_id} was evaluated twice; make question ids unique over "
                "all files of a split"
            )
        values = dict(zip(MEASURES, outcome.values(), strict=True))
        result[outcome.question_id] = (outcome.dataset, values)
    return result


def _distributions(outcomes: Sequence[Outcome]) -> dict[str, dict[str, dict[str, int]]]:
    """Numbers of trajectories by number of steps and by stop reason, per data set and "all"."""
    result: dict[str, dict[str, dict[str, int]]] = {}
    for dataset in [*dict.fromkeys(outcome.dataset for outcome in outcomes), ALL]:
        inside = [outcome for outcome in outcomes if dataset in (outcome.dataset, ALL)]
        steps = Counter(outcome.steps for outcome in inside)
        result[dataset] = {
            "steps": {str(count): steps[count] for count in sorted(steps)},
            "stops": dict(Counter(str(outcome.stop) for outcome in inside).most_common()),
        }
    return result
