"""Gather what the report shows from the directories of a run's stages.

Input: the stage directories by name ("evaluate", "sft", "score-1", "pair-1", ...). Output: plain
values, one function per section of the page. A stage that a run did not have (no rounds, an
ablation) gives an empty value, and the page says so; a file that is there but broken is an error.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import InputError, StoreError
from pipeline.inspection.paths import Segment, read_paths, segments
from pipeline.records import Trajectory, read_records
from pipeline.rewards.answer import f1

REWARD_TERMS = ("outcome", "format", "consistency", "subquery", "context", "summary", "process")
EQ_1_TERMS = ("answer", "format", "n", "n_corr", "total")  # HiPRAG
PAIR_KINDS = ("format", "easy", "hard", "margin")
EXAMPLES_PER_KIND = 2
_STAGES = ("world", "corpus", "graph", "index", "sft-data", "sft")
_ROUND_STAGES = ("sample", "score", "pair", "train")


@dataclass(frozen=True)
class Shown:
    """One path as the page shows it."""

    title: str
    answer: str | None
    segments: list[Segment]
    facts: dict[str, str]


@dataclass(frozen=True)
class Example:
    """Two paths of one question side by side."""

    label: str
    question: str
    gold: list[str]
    left: Shown
    right: Shown


def read_json(path: Path) -> Any:
    """A JSON file that a stage wrote. Raises StoreError when it is missing or broken."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StoreError(f"{path} is missing; rerun its stage with --force") from None
    except ValueError as error:
        raise StoreError(f"{path}: not JSON ({error}); rerun its stage with --force") from None


def policy_title(policy: str) -> str:
    """How people call a policy: "SFT", "Round 2"."""
    return "SFT" if policy == "sft" else policy.replace("round-", "Round ")


def rounds_of(inputs: Mapping[str, Path], stage: str) -> dict[int, Path]:
    """Directories of a stage's rounds, by round, in order."""
    found = {
        int(name.removeprefix(f"{stage}-")): path
        for name, path in inputs.items()
        if name.startswith(f"{stage}-") and name.removeprefix(f"{stage}-").isdigit()
    }
    return dict(sorted(found.items()))


def reward_terms(inputs: Mapping[str, Path]) -> dict[int, dict[str, np.ndarray]]:
    """Values of every reward term over a round's trajectories (TeaRAG eq. 5 to 13, HiPRAG eq. 1)."""
    import pyarrow.parquet as pq

    result = {}
    for number, directory in rounds_of(inputs, "score").items():
        column = pq.read_table(directory / "trajectories.parquet", columns=["rewards"])["rewards"]
        rewards = [json.loads(text) for text in column.to_pylist() if text is not None]
        result[number] = {
            term: np.array([reward[term] for reward in rewards if reward.get(term) is not None])
            for term in dict.fromkeys((*REWARD_TERMS, *EQ_1_TERMS))
        }
    return result


def funnels(inputs: Mapping[str, Path]) -> dict[int, dict[str, int]]:
    """How many trajectories of a round ended in which bin of the pair selection."""
    result = {}
    for number, directory in rounds_of(inputs, "pair").items():
        value = read_json(directory / "funnel.json")
        result[number] = {name: int(count) for name, count in value.get("bins", value).items()}
    return result


def pair_kinds(inputs: Mapping[str, Path]) -> dict[int, dict[str, int]]:
    """Pairs of a round by the kind of their rejected path (TeaRAG eq. 14)."""
    import pyarrow.parquet as pq

    result = {}
    for number, directory in rounds_of(inputs, "pair").items():
        kinds = pq.read_table(directory / "pairs.parquet", columns=["kind"])["kind"].to_pylist()
        counts = Counter(kinds)
        result[number] = {kind: counts[kind] for kind in PAIR_KINDS if counts[kind]}
    return result


def training_logs(inputs: Mapping[str, Path]) -> dict[str, list[dict[str, float]]]:
    """What the trainers logged, by policy ("sft", "round-1", ...): one dictionary per log step."""
    directories = {f"round-{n}": path for n, path in rounds_of(inputs, "train").items()}
    if "sft" in inputs:
        directories = {"sft": inputs["sft"], **directories}
    return {
        policy: read_json(directory / "log.json")["history"]
        for policy, directory in directories.items()
    }


def series(history: list[dict[str, float]], key: str) -> tuple[list[float], list[float]]:
    """(steps, values) of the log entries that have ``key``."""
    entries = [entry for entry in history if entry.get(key) is not None]
    return [entry["step"] for entry in entries], [entry[key] for entry in entries]


def stage_rows(inputs: Mapping[str, Path]) -> list[dict[str, Any]]:
    """Wall time, memory, device and counts of every stage that left a manifest, in order."""
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
            for key in ("fingerprint", "wall_seconds", "peak_memory_mb", "counts", "device")
        }
        result.append({"name": name, **row, "versions": manifest.get("versions") or {}})
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
    """The first pairs of each kind of the last round that has pairs, chosen beside rejected."""
    import pyarrow.parquet as pq

    columns = ["kind", "question_id", "chosen_id", "rejected_id"]
    for number, directory in reversed(rounds_of(inputs, "pair").items()):
        if f"score-{number}" not in inputs:
            continue
        rows = pq.read_table(directory / "pairs.parquet", columns=columns).to_pylist()
        rows = [
            row
            for kind in reversed(PAIR_KINDS)  # the subtle ones first
            for row in [row for row in rows if row["kind"] == kind][:EXAMPLES_PER_KIND]
        ]
        path = inputs[f"score-{number}"] / "trajectories.parquet"
        ids = {row[key] for row in rows for key in ("chosen_id", "rejected_id")}
        paths = read_paths(path, "trajectory_id", ids)
        if missing := sorted(ids - paths.keys()):
            raise InputError.at(path, None, f"no trajectory {missing[0]}, but a pair names it")
        if rows:
            return [
                _example(
                    f"Round {number}, {row['kind']} pair",
                    (paths[row["chosen_id"]], "Chosen"),
                    (paths[row["rejected_id"]], "Rejected"),
                )
                for row in rows
            ]
    return []


def policy_examples(evaluate: Path, first: str, last: str) -> list[Example]:
    """Questions on which the first and the last policy differ most (written by `merge`)."""
    paths = read_records(evaluate / "examples.parquet", Trajectory)
    return [
        _example(_change(before, after), (before, first), (after, last))
        for before, after in zip(paths[0::2], paths[1::2], strict=True)
    ]


def _change(before: Trajectory, after: Trajectory) -> str:
    gain = f1(after.answer, after.answers) - f1(before.answer, before.answers)
    return f"{before.dataset}, " + ("mended" if gain > 0 else "broken" if gain else "fewer steps")


def _example(label: str, left: tuple[Trajectory, str], right: tuple[Trajectory, str]) -> Example:
    path = left[0]
    return Example(label, path.question, path.answers, shown(*left), shown(*right))


def shown(path: Trajectory, title: str) -> Shown:
    """A path cut into who wrote what, with its steps, its end and its reward terms.

    Raises InputError when its spans do not cover its text.
    """
    facts = {"steps": str(len(path.steps)), "stopped by": path.stop.replace("_", " ")}
    if not path.format_ok:
        facts["malformed"] = path.format_error or "yes"
    for term, value in (path.rewards or {}).items():
        if isinstance(value, int | float) and term in (*REWARD_TERMS, *EQ_1_TERMS):
            facts[term] = f"{value:.2f}"
    return Shown(title, path.answer, segments(path.output, path.spans), facts)
