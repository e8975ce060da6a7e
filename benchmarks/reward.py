"""Row ``reward``: scoring one round's trajectories in batches, against scoring pair by pair.

Work: the process rewards (TeaRAG, arXiv 2511.05385, eq. 9 to 13) of R samples per question. Ours is
the code of the stage, batch by batch, with the reranker's score cache. The peer scores each
(evidence, text) pair of every trajectory with a separate call. The row counts calls of the model
(forward passes over at most `BATCH_SIZE` pairs) and the pairs in them; it measures no time. The
model is a lexical stand-in, because the counts do not depend on it.

Input: a ``trajectories.parquet`` of a sampling stage, by default the first scored round of the
demonstration run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import Row
from pipeline.core.record_io import read_records
from pipeline.core.records import Step, Trajectory
from pipeline.core.shipped import DEMONSTRATION
from pipeline.core.similarity import Similarity, lexical
from pipeline.knowledge.retrieval.rerank import CachedReranker, reranker_similarity
from pipeline.methods.tearag.evidence_match import item_text
from pipeline.methods.tearag.method import knowledge_scorer
from pipeline.methods.tearag.reward import PAPER
from tasks.score import with_rewards

TRAJECTORIES_PER_BATCH = 512  # as in the stage score
BATCH_SIZE = 64  # default of reranker.batch_size
Pair = tuple[str, str]


class CountingModel:
    """A model with score 10 * overlap - 5 that counts forward passes and pairs."""

    identity = "lexical stand-in"

    def __init__(self) -> None:
        self.passes = 0
        self.pairs = 0

    def compute(self, pairs: Sequence[Pair]) -> Sequence[float]:
        self.passes += -(-len(pairs) // BATCH_SIZE)
        self.pairs += len(pairs)
        scores: list[float] = (10 * lexical(pairs) - 5).tolist()
        return scores


class Uncached:
    """A reranker without a score cache."""

    def __init__(self, model: CountingModel) -> None:
        self._model = model

    def score(self, pairs: Sequence[Pair]) -> Any:
        return np.array(self._model.compute(pairs))


def rows(path: Path | None) -> list[Row]:
    """Counts of calls and pairs, which are exact and need no repetition.

    Raises InputError when ``path`` is not a file of trajectories, AssertionError when rewards
    differ.
    """
    source = "recorded"
    if path is None:
        source, path = (
            "demonstration",
            min(DEMONSTRATION.glob("store/score/*/trajectories.parquet")),
        )
    recorded = read_records(path, Trajectory)
    trajectories = [item for item in recorded if item.stop != "retrieval_error"]
    ours, peer = CountingModel(), CountingModel()
    batched = reranker_similarity(CachedReranker(ours))
    single = reranker_similarity(Uncached(peer))
    for start in range(0, len(trajectories), TRAJECTORIES_PER_BATCH):
        part = trajectories[start : start + TRAJECTORIES_PER_BATCH]
        for scored in with_rewards(
            [dataclasses.replace(item) for item in part], knowledge_scorer(batched)
        ):
            assert scored.rewards is not None
            expected = _pair_by_pair(scored, single)
            actual = {name: scored.rewards[name] for name in expected}
            assert actual == expected, f"{scored.trajectory_id}: {actual} and {expected}"
    questions = {trajectory.question_id for trajectory in trajectories}
    work = f"{len(trajectories):,} {source} trajectories of {len(questions)} questions"
    return [
        Row("reward", work, "pair by pair", [float(our)], [float(other)], unit, goal)
        for our, other, unit, goal in (
            (ours.passes, peer.passes, "reranker calls", "≥ 4"),
            (ours.pairs, peer.pairs, "pairs scored", ""),
        )
    ]


def _pair_by_pair(trajectory: Trajectory, similarity: Similarity) -> dict[str, Any]:
    """Eq. 9 to 13, pair by pair, for a trajectory that has its consistency reward."""
    assert trajectory.rewards is not None
    memory: dict[str, list[float]] = {"subquery": [], "context": [], "summary": []}
    for gold in trajectory.evidence:
        for kind, values in memory.items():
            best = 0.0
            for step in trajectory.steps:
                for text in _texts(step, kind):
                    best = max(best, float(similarity([(gold, text)])[0]))
            values.append(best)
    k = len(trajectory.steps)
    terms = {kind: sum(values) / k if k else 0.0 for kind, values in memory.items()}
    process = (
        PAPER.consistency * trajectory.rewards["consistency"]
        + PAPER.subquery * terms["subquery"]
        + PAPER.context * terms["context"]
        + PAPER.summary * terms["summary"]
    )
    return {**terms, "memory": memory, "process": 0.0 if trajectory.hop == "single" else process}


def _texts(step: Step, kind: str) -> list[str]:
    if kind == "context":
        return [item_text(item) for item in step.context]
    return [step.subquery if kind == "subquery" else step.summary]
