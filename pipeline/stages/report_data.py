"""Data of the report, collected from the stage directories of a run.

Input: the stage directories by name ("evaluate", "sft", "score-1", "pair-1", ...). Output: plain
values, one function per section of the page. The value is empty for a stage that the run does not
have, and the page says so; a broken file is an error.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.core.answer_metrics import f1
from pipeline.core.errors import InputError, StoreError
from pipeline.core.input_files import iterate_parquet, parse_json, read_text
from pipeline.core.record_io import read_records
from pipeline.core.records import Trajectory
from pipeline.evaluation.excerpts import Segment, read_trajectories, segments
from pipeline.evaluation.failures import VALUES_OF_0_1
from pipeline.methods import titled_terms
from pipeline.stages.questions import HELD_OUT, TRAINED

PAIR_KINDS = ("format", "easy", "hard", "margin", "step")
EXAMPLES_PER_KIND = 2
_STAGES = (
    "world",
    "corpus",
    *(f"questions-{split}" for split in (*TRAINED, *HELD_OUT)),
    *("graph", "index", "sft-data", "sft", "start"),
)
_ROUND_STAGES = ("sample", "score", "pair", "train")


@dataclass(frozen=True)
class TrajectoryView:
    """One trajectory as the page shows it; ``facts`` are the steps, stop reason and reward terms."""

    title: str
    answer: str | None
    segments: list[Segment]
    facts: dict[str, str]


@dataclass(frozen=True)
class Example:
    """Two trajectories of one question, side by side."""

    label: str
    question: str
    gold: list[str]
    left: TrajectoryView
    right: TrajectoryView


def read_json(path: Path) -> Any:
    """Read a JSON file of a stage. Raises StoreError when it is missing or broken."""
    if not path.exists():
        raise StoreError(f"{path} is missing; rerun its stage with --force")
    try:
        return parse_json(read_text(path), path)
    except InputError as error:
        raise StoreError(f"{error}; rerun its stage with --force") from None


def rounds_of(inputs: Mapping[str, Path], stage: str) -> dict[int, Path]:
    """Directories of a stage by round, in ascending order."""
    directories = {
        int(name.removeprefix(f"{stage}-")): path
        for name, path in inputs.items()
        if name.startswith(f"{stage}-") and name.removeprefix(f"{stage}-").isdigit()
    }
    return dict(sorted(directories.items()))


def reward_terms(inputs: Mapping[str, Path]) -> dict[int, dict[str, np.ndarray]]:
    """Values of every reward term over the trajectories of each round.

    TeaRAG eq. 5 to 13, HiPRAG eq. 1, and ProGraph-R1 eq. 11 to 15 as means over the steps of a
    trajectory. A term that the method does not have gives an empty array.
    """
    result = {}
    for number, directory in rounds_of(inputs, "score").items():
        values = {term: array("d") for term in titled_terms()}
        for reward in _rewards(directory):
            for term, of_term in values.items():
                if reward.get(term) is not None:
                    of_term.append(reward[term])
        result[number] = {term: np.array(of_term) for term, of_term in values.items()}
    return result


def turn_rewards(
    inputs: Mapping[str, Path], terms: Iterable[str]
) -> dict[int, dict[int, dict[str, Any]]]:
    """Mean step rewards (ProGraph-R1 eq. 11 to 15) by turn, from 1, and round; "n" is their number.

    A term without measurements is None. The result is empty for methods without step rewards.
    """
    names = list(terms)
    result: dict[int, dict[int, dict[str, Any]]] = {}
    for number, directory in rounds_of(inputs, "score").items():
        # By turn: the number of steps, and the measured values of every term.
        turns: list[tuple[int, dict[str, array[float]]]] = []
        for reward in _rewards(directory):
            steps = reward["steps"] if reward.keys() >= {*names, "steps"} else []
            for turn, step in enumerate(steps):
                if turn == len(turns):
                    turns.append((0, {name: array("d") for name in names}))
                count, values = turns[turn]
                turns[turn] = (count + 1, values)
                for name in names:
                    if step[name] is not None:
                        values[name].append(step[name])
        for turn, (count, values) in enumerate(turns, start=1):
            means = {
                name: float(np.mean(of_term)) if len(of_term) == count else None
                for name, of_term in values.items()
            }
            result.setdefault(turn, {})[number] = {"n": count, **means}
    return result


def progress_costs(inputs: Mapping[str, Path]) -> dict[int, dict[str, int]]:
    """Cost of the Monte Carlo value estimates per round.

    Counts of states and continuations, and tokens generated for the estimates; ``sampled`` is the
    number of tokens generated by the stage ``sample``.
    """
    result = {}
    for number, directory in rounds_of(inputs, "score").items():
        if (directory / "progress.json").exists():
            timing = read_json(inputs[f"sample-{number}"] / "timing.json")
            cost = read_json(directory / "progress.json")
            result[number] = {**cost, "sampled": timing["generated_tokens"]}
    return result


def _rewards(directory: Path) -> Iterator[dict[str, Any]]:
    """The rewards of the trajectories of a round, without those that a retrieval error ended."""
    path = directory / "trajectories.parquet"
    for number, row in enumerate(iterate_parquet(path, ["rewards"]), start=1):
        if row["rewards"] is not None:
            yield parse_json(row["rewards"], path, number)


# Names that version 0.1 wrote for a retrieval error.
_BINS_OF_0_1 = {"environment": "retrieval-error"}


def funnels(inputs: Mapping[str, Path]) -> dict[int, dict[str, int]]:
    """Number of trajectories in each bin of the pair selection, by round."""
    result = {}
    for number, directory in rounds_of(inputs, "pair").items():
        value = read_json(directory / "funnel.json")
        result[number] = {
            _BINS_OF_0_1.get(name, name): int(count)
            for name, count in value.get("bins", value).items()
        }
    return result


def pair_kinds(inputs: Mapping[str, Path]) -> dict[int, dict[str, int]]:
    """Number of pairs by the kind of the rejected trajectory (TeaRAG eq. 14), by round."""
    result = {}
    for number, directory in rounds_of(inputs, "pair").items():
        rows = iterate_parquet(directory / "pairs.parquet", ["kind"])
        counts = Counter(row["kind"] for row in rows)
        result[number] = {kind: counts[kind] for kind in PAIR_KINDS if counts[kind]}
    return result


def training_logs(inputs: Mapping[str, Path]) -> dict[str, list[dict[str, float]]]:
    """Trainer logs by policy ("sft", "round-1", ...), with one dictionary per logged step."""
    directories = {f"round-{n}": path for n, path in rounds_of(inputs, "train").items()}
    if "sft" in inputs:
        directories = {"sft": inputs["sft"], **directories}
    return {
        policy: read_json(directory / "log.json")["history"]
        for policy, directory in directories.items()
    }


def series(history: list[dict[str, float]], key: str) -> tuple[list[float], list[float]]:
    """Steps and values of the log entries with ``key``."""
    entries = [entry for entry in history if entry.get(key) is not None]
    return [entry["step"] for entry in entries], [entry[key] for entry in entries]


def stage_rows(inputs: Mapping[str, Path]) -> list[dict[str, Any]]:
    """Wall time (s), peak memory (MB), device and counts from every manifest, in stage order."""
    result = []
    seen = set()
    for name in sorted(inputs, key=_position):
        path = inputs[name] / "manifest.json"
        if path.resolve() in seen or not path.exists():
            continue
        seen.add(path.resolve())
        manifest = read_json(path)
        row = {
            key: manifest.get(key)
            for key in ("fingerprint", "wall_seconds", "peak_memory_mb", "device")
        }
        counts = _with_current_names(manifest.get("counts") or {})
        versions = manifest.get("versions") or {}
        result.append({"name": name, **row, "counts": counts, "versions": versions})
    return result


def _position(name: str) -> tuple[int, int, int, str]:
    stage, _, number = name.rpartition("-")
    if name in _STAGES:
        return (0, 0, _STAGES.index(name), name)
    if stage in _ROUND_STAGES and number.isdigit():
        return (1, int(number), _ROUND_STAGES.index(stage), name)
    if stage.startswith("evaluate"):
        return (2, int(number) if number.isdigit() else 0, 0, name)
    return (3, 0, 0, name)


def pair_examples(inputs: Mapping[str, Path]) -> list[Example]:
    """The first two pairs of each kind, from the last round with pairs.

    Raises InputError when a pair names a trajectory that its round does not have.
    """
    columns = ["kind", "question_id", "chosen_id", "rejected_id"]
    for number, directory in reversed(rounds_of(inputs, "pair").items()):
        if f"score-{number}" not in inputs:
            continue
        by_kind: dict[str, list[dict[str, Any]]] = {kind: [] for kind in reversed(PAIR_KINDS)}
        for row in iterate_parquet(directory / "pairs.parquet", columns):
            of_kind = by_kind.get(row["kind"])
            if of_kind is not None and len(of_kind) < EXAMPLES_PER_KIND:
                of_kind.append(row)
        rows = [row for of_kind in by_kind.values() for row in of_kind]  # subtle differences first
        path = inputs[f"score-{number}"] / "trajectories.parquet"
        ids = {row[key] for row in rows for key in ("chosen_id", "rejected_id")}
        trajectories = read_trajectories(path, "trajectory_id", ids)
        if missing := sorted(ids - trajectories.keys()):
            raise InputError.at(
                path, None, f"no trajectory {missing[0]}, but a pair refers to it; rerun the round"
            )
        if rows:
            return [
                _example(
                    f"Round {number}, {row['kind']} pair",
                    (trajectories[row["chosen_id"]], "Chosen"),
                    (trajectories[row["rejected_id"]], "Rejected"),
                )
                for row in rows
            ]
    return []


def distributions(evaluate: Path) -> dict[str, dict[str, dict[str, dict[str, int]]]]:
    """Counts of steps and stop reasons, by policy and data set, under their current names."""
    result = read_json(evaluate / "distributions.json")
    for by_dataset in result.values():
        for counts in by_dataset.values():
            counts["stops"] = _with_current_names(counts["stops"])
    return result  # type: ignore[no-any-return]


def _with_current_names(counts: Mapping[str, int]) -> dict[str, int]:
    return {VALUES_OF_0_1.get(name, name): count for name, count in counts.items()}


def policy_examples(evaluate: Path, first: str, last: str) -> list[Example]:
    """Questions on which the first and the last policy differ most (``examples.parquet``)."""
    trajectories = read_records(evaluate / "examples.parquet", Trajectory)
    return [
        _example(_change(before, after), (before, first), (after, last))
        for before, after in zip(trajectories[0::2], trajectories[1::2], strict=True)
    ]


def _change(before: Trajectory, after: Trajectory) -> str:
    gain = f1(after.answer, after.answers) - f1(before.answer, before.answers)
    kind = "better answer" if gain > 0 else "worse answer" if gain else "fewer steps"
    return f"{before.dataset}, {kind}"


def _example(label: str, left: tuple[Trajectory, str], right: tuple[Trajectory, str]) -> Example:
    trajectory = left[0]
    return Example(
        label,
        trajectory.question,
        trajectory.answers,
        trajectory_view(*left),
        trajectory_view(*right),
    )


def trajectory_view(trajectory: Trajectory, title: str) -> TrajectoryView:
    """Segments, number of steps, stop reason and reward terms of a trajectory.

    Raises InputError when its spans do not cover its text.
    """
    facts = {"steps": str(len(trajectory.steps)), "stopped by": trajectory.stop.replace("_", " ")}
    if not trajectory.format_ok:
        facts["malformed"] = trajectory.format_error or "yes"
    for term, value in (trajectory.rewards or {}).items():
        if isinstance(value, int | float) and term in titled_terms():
            facts[term] = f"{value:.2f}"
    return TrajectoryView(
        title, trajectory.answer, segments(trajectory.output, trajectory.spans), facts
    )
