"""The smallest valid configuration and trajectory, of which a test replaces what it is about."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline.config import Config
from pipeline.core.record_io import write_parquet
from pipeline.core.records import Pair, Trajectory
from pipeline.methods.tearag.reward import TeaRagRewards

BLOCKS: dict[str, Any] = {
    "name": "toy",
    "data": {},
    "corpus": {"files": [{"path": "unused"}]},
    "graph": {"source": "annotated", "path": "triplets.jsonl"},
    "index": {"embedder": {"model": "none"}},
    "retrieval": {"reranker": {"kind": "biencoder"}},
    "model": {"base": "none"},
    "prompt": {"system": "S"},
    "sft_data": {"sizes": {1: 1}},
    "sft": {"learning_rate": 0.1, "batch_size": 1},
    "dpo": {"learning_rate": 0.1, "batch_size": 1},
}


def small_config(**blocks: Any) -> Config:
    """A mapping updates its block; any other value replaces the setting."""
    values = dict(BLOCKS)
    for name, value in blocks.items():
        old = values.get(name)
        values[name] = {**old, **value} if isinstance(value, dict) and old else value
    return Config.model_validate(values)


def small_trajectory(**fields: Any) -> Trajectory:
    """One sample of a question of Natural Questions, in TeaRAG's grammar and without steps."""
    defaults: dict[str, Any] = {
        "trajectory_id": "t",
        "question_id": "q",
        "dataset": "nq",
        "question": "?",
        "hop": "single",
        "answers": ["x"],
        "evidence": [],
        "grammar": "tearag",
        "output": "",
    }
    return Trajectory(**(defaults | fields))


def small_pair(**fields: Any) -> Pair:
    """One pair of a first round, whose prompt and sides have one token each."""
    defaults: dict[str, Any] = {
        "question_id": "q",
        "prompt": [],
        "chosen": [],
        "rejected": [],
        "chosen_id": "a",
        "rejected_id": "b",
        "kind": "easy",
        "chosen_rewards": {},
        "rejected_rewards": {},
        "policy": "p",
        "round": 1,
        "prompt_ids": [1],
        "chosen_ids": [2],
        "rejected_ids": [3],
        "chosen_spans": [(0, 1, "model")],
        "rejected_spans": [(0, 1, "model")],
    }
    return Pair(**(defaults | fields))


def write_scored(
    path: Path, trajectories: Iterable[Trajectory], terms: type = TeaRagRewards
) -> None:
    """Write trajectories as the stage ``score`` does, with ``terms`` as the columns of rewards."""
    write_parquet(path, trajectories, Trajectory, {"rewards": terms})


def write_paired(path: Path, pairs: Iterable[Pair], terms: type = TeaRagRewards) -> None:
    """Write pairs as the stage ``pair`` does."""
    write_parquet(path, pairs, Pair, {"chosen_rewards": terms, "rejected_rewards": terms})
