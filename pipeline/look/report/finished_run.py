"""Read the results of a finished run: metrics, outcomes per question, and settings.

Input: a directory such as ``runs/embedded``, which may be a copy from another machine: neither its
configuration file nor its data is needed. Output: `RunResults`. The settings come from the
manifests of the evaluation and of all stages before it, so they are the settings that made the
results.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.core.content_cache import digest
from pipeline.core.errors import InputError, StoreError
from pipeline.core.input_files import leaves, read_json
from pipeline.core.row_files import iterate_parquet
from pipeline.engine.store import outputs_of, problems, read_manifest
from pipeline.evaluation.measured import read_outcomes
from pipeline.evaluation.policy_names import of_run
from pipeline.evaluation.run_comparison import Comparison, RunResults, compare_runs

RUNS = Path("runs")
_METRICS = "metrics.json"
_PAIRS = "pairs.parquet"
_OTHER = ("judge-", "final-")  # inputs of the stage besides the evaluations that are compared
_AGAIN = "evaluate it again with `steep evaluate` and its configuration"


def compare(runs: Iterable[str]) -> Comparison:
    """Compare runs, each a directory or a name below ``runs/``.

    In tables a run has its directory's name, if that is unique. Raises InputError when there is no
    such run, and what `read_run` and `compare_runs` raise.
    """
    directories = [find_run(run) for run in runs]
    names = [directory.resolve().name for directory in directories]
    return compare_runs(
        [
            read_run(directory, name if names.count(name) == 1 else str(directory))
            for directory, name in zip(directories, names, strict=True)
        ]
    )


def find_run(run: str) -> Path:
    """The directory of a run, given by it or by a name below ``runs/``. Raises InputError."""
    places = [Path(run), RUNS / run]
    found = next((place for place in places if (place / "store").is_dir()), None)
    if found is None:
        raise InputError(
            f"there is no run {run!r}: neither {places[0]} nor {places[1]} has a store; name the "
            "directory of a finished run"
        )
    return found


def read_run(directory: Path, name: str) -> RunResults:
    """The results of the run in ``directory``, which is called ``name`` in tables.

    Raises StoreError when the run lacks a complete evaluation, or a part is missing or damaged.
    """
    outputs = {path.name: path for path in outputs_of(directory / "store")}
    evaluation = _evaluation(directory)
    _check(evaluation)
    evaluated = {
        policy: outputs.get(fingerprint)
        for policy, fingerprint in _inputs(read_manifest(evaluation)).items()
        if not policy.startswith(_OTHER)
    }
    outcomes, splits, questions = {}, set(), set()
    for policy, output in evaluated.items():
        if output is None:
            raise StoreError(f"{directory} no longer holds the evaluation of {policy}; {_AGAIN}")
        _check(output)
        measured = read_outcomes(output)
        outcomes[policy] = {outcome.question_id: outcome for outcome in measured.outcomes}
        splits.add(measured.split)
        contents = read_manifest(output).get("contents") or {}
        questions.add(contents.get("questions") or digest(*sorted(outcomes[policy])).hex())
    if len(splits) != 1 or len(questions) != 1:
        raise StoreError(f"the policies of {directory} have different questions; {_AGAIN}")
    manifests = list(_chain(evaluation, outputs))
    # Evaluation may override settings (`Config.for_evaluation`), for itself and for its inputs.
    evaluations = {evaluation.name, *_inputs(read_manifest(evaluation)).values()}
    settings = _settings(manifests, evaluations)
    own = of_run(outcomes)
    settings |= {"rounds": len(own) - 1, "start": own[0]}
    return RunResults(
        name=name,
        seed=int(settings.get("seed", 0)),
        settings=settings,
        split=splits.pop(),
        questions=questions.pop(),
        rows=read_json(evaluation / _METRICS, list),
        outcomes=outcomes,
        pairs=_pairs(manifests, outputs),
    )


def _evaluation(directory: Path) -> Path:
    """The output of the stage ``evaluate`` that the run shows, else the newest."""
    found = outputs_of(directory / "store", "evaluate")
    if not found:
        raise StoreError(
            f"{directory} has no complete evaluation; expected the directory of a finished run, "
            "such as runs/embedded; finish it with `steep run` and its configuration"
        )
    shown = directory / _METRICS
    metrics = [path / _METRICS for path in found] if shown.is_file() else []
    same = (m.parent for m in metrics if m.is_file() and m.read_bytes() == shown.read_bytes())
    return next(same, found[0])


def _check(output: Path, remedy: str = _AGAIN) -> None:
    if damage := problems(output):
        raise StoreError(f"{output} is damaged: {'; '.join(damage)}; {remedy}")


def _inputs(manifest: Mapping[str, Any]) -> dict[str, str]:
    """The directories' names of a stage's inputs, by input name."""
    inputs: dict[str, str] = manifest.get("made_from", manifest["key"]["inputs"])
    return inputs


def _chain(output: Path, outputs: Mapping[str, Path]) -> Iterator[Mapping[str, Any]]:
    """The manifests of an output and of all outputs that it was made from, except shards."""
    waiting, seen = [output], {output}
    while waiting:
        manifest = read_manifest(waiting.pop())
        if manifest["key"]["stage"].endswith("-shard"):
            continue
        yield manifest
        below = {outputs[name] for name in _inputs(manifest).values() if name in outputs}
        waiting += sorted(below - seen)
        seen |= below


def _pairs(
    manifests: Sequence[Mapping[str, Any]], outputs: Mapping[str, Path]
) -> dict[int, Counter[str]]:
    """The pairs of every round that were trained on."""
    pairs = {}
    for manifest in manifests:
        if manifest["key"]["stage"] == "pair":
            number, output = manifest["key"]["round"], outputs[manifest["fingerprint"]]
            remedy = (
                f"make it again with `steep run pair --round {number} --force` "
                "and its configuration"
            )
            _check(output, remedy)
            try:
                pairs[number] = Counter(
                    pair["kind"] for pair in iterate_parquet(output / _PAIRS, ["kind"])
                )
            except InputError as error:
                raise StoreError(f"{error}; {remedy}") from None
    return dict(sorted(pairs.items()))


def _settings(manifests: list[Mapping[str, Any]], evaluations: Collection[str]) -> dict[str, Any]:
    """The recorded settings, and the content of the base model, by dotted name.

    A setting that differs between rounds has a name for each, such as "dpo.eta (round 2)". A
    setting that evaluation overrides appears a second time, as "evaluation: retrieval.top_k".
    """
    training: dict[str, dict[int | None, Any]] = {}
    evaluation: dict[str, Any] = {}
    for manifest in manifests:
        key = manifest["key"]
        if "base model" in key.get("files", {}):
            training.setdefault("base model", {})[None] = key["files"]["base model"]
        for name, value in leaves(key["settings"]):
            if manifest["fingerprint"] in evaluations:
                evaluation[name] = value
            else:
                training.setdefault(name, {})[key["round"]] = value
    settings: dict[str, Any] = {}
    for name, by_round in training.items():
        values = list(by_round.values())
        if all(value == values[0] for value in values):
            settings[name] = values[0]
        else:
            settings |= {
                name if number is None else f"{name} (round {number})": value
                for number, value in by_round.items()
            }
    for name, value in evaluation.items():
        if name not in training or re.match(r"evaluation\b", name):
            settings[name] = value
        elif settings.get(name) != value:
            settings[f"evaluation: {name}"] = value
    return settings
