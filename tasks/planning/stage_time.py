"""Durations of stages by the rates of plans: for simulated schedules only.

Input: the task of a stage. Output: its `Work`: the seconds of models on GPUs, which shards divide, and
those of CPU cores, which the stage that joins the shards spends. Amounts are those of the configuration,
and of its files where they are there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pipeline.config import Config
from pipeline.core.model_shapes import shape_of
from pipeline.index.faiss_index import resolve_kind
from tasks.base import StageTask
from tasks.needs import needs, shards_of
from tasks.planning.gpu_time import Clock
from tasks.planning.rates import Rates, rates
from tasks.planning.sizes import Sizes, sizes_of
from tasks.planning.stage_memory import ANSWER_BYTES, CHUNK_BYTES, TRAJECTORY_BYTES

_ITERATIONS = 10  # of the k-means that trains the cells of an IVF-PQ index (docs/scale.md)
_TRAINED_PER_CELL, _MOST_TRAINED = 64, 1_000_000


@dataclass(frozen=True)
class Work:
    """Seconds of one GPU, of one core, and of all of the stage's cores (in seconds of one core).

    ``joined`` are bytes that a stage copies that joins the outputs of shards.
    """

    gpu: float = 0.0
    core: float = 0.0
    cores: float = 0.0
    joined: float = 0.0


class Times:
    """Assumed durations of the stages of one run; ``chosen`` replaces the rates."""

    def __init__(self, chosen: Rates | None = None) -> None:
        self.rates = chosen or rates()
        self._sizes: dict[int, tuple[Config, Sizes]] = {}

    def seconds(self, task: StageTask, parts: int, threads: int) -> float:
        """Wall seconds of ``task`` with ``threads`` CPU threads; it does one of the ``parts`` of its stage."""
        work = self._work(task)
        if shards_of(task):
            seconds = self._on_cpu(work, threads) + work.joined / self.rates.joining
        elif parts > 1:
            seconds = work.gpu / max(needs(task).gpus, 1) / parts
        else:
            seconds = work.gpu / max(needs(task).gpus, 1) + self._on_cpu(work, threads)
        return max(seconds, self.rates.other)

    def _on_cpu(self, work: Work, threads: int) -> float:
        return work.core + work.cores / max(threads, 1)

    def _work(self, task: StageTask) -> Work:
        rule = _RULES.get(task.stage.removesuffix("-shard"))
        if rule is None:
            return Work()
        settings = task.settings
        # The settings are kept beside their sizes, so that no other object gets their id.
        _, sizes = self._sizes.setdefault(id(settings), (settings, sizes_of(settings)))
        return rule(Clock(settings, sizes, self.rates), task.round_number or 1)


def _corpus(clock: Clock, number: int) -> Work:
    return Work(core=clock.sizes.chunks * clock.rates.corpus)


def _graph(clock: Clock, number: int) -> Work:
    sizes, source = clock.sizes, clock.settings.graph.source
    joined = ANSWER_BYTES * sizes.chunks if source == "llm" else 0.0
    return Work(clock.extraction("graph"), core=sizes.triplets * clock.rates.triplet, joined=joined)


def _hypergraph(clock: Clock, number: int) -> Work:
    sizes, source = clock.sizes, clock.settings.hypergraph.source
    joined = ANSWER_BYTES * sizes.chunks if source == "llm" else 0.0
    return Work(
        clock.extraction("hypergraph"), core=sizes.hyperedges * clock.rates.triplet, joined=joined
    )


def _index(clock: Clock, number: int) -> Work:
    settings, sizes = clock.settings, clock.sizes
    shape = shape_of(settings.index.embedder.model)
    dimension = 768 if shape is None else shape.hidden
    searched = [sizes.chunks, sizes.entities]
    if settings.retrieval.over_hypergraph:
        searched = [sizes.entities, sizes.hyperedges]
    texts = sum(searched)
    texts += 0.0 if settings.retrieval.over_hypergraph else sizes.triplets
    kind = settings.index.faiss
    built = [_building(int(count), dimension, kind, clock.rates) for count in searched if count]
    return Work(clock.index(), cores=sum(built), joined=4.0 * dimension * texts)


def _building(vectors: int, dimension: int, kind: str, chosen: Rates) -> float:
    """Seconds of one core to train an index and to add its vectors."""
    resolved = resolve_kind(kind, vectors) if vectors >= 256 else "flat"  # type: ignore[arg-type]
    if resolved == "hnsw":
        return vectors * chosen.linking
    if resolved == "flat":
        return 0.0
    cells = 4 * math.sqrt(vectors)
    compared = _ITERATIONS * min(_TRAINED_PER_CELL * cells, _MOST_TRAINED) + vectors
    return 2 * dimension * cells * compared / chosen.cells


def _sft_data(clock: Clock, number: int) -> Work:
    block = clock.settings.sft_data
    examples = sum(block.sizes.values()) + sum(block.test_sizes.values())
    return Work(clock.sft_data(), joined=CHUNK_BYTES * 10 * examples)


def _sample(clock: Clock, number: int) -> Work:
    return Work(clock.sample(), joined=TRAJECTORY_BYTES * _sampled(clock))


def _judge(clock: Clock, number: int) -> Work:
    return Work(clock.judge(), joined=ANSWER_BYTES * _sampled(clock))


def _score(clock: Clock, number: int) -> Work:
    return Work(clock.score(), joined=TRAJECTORY_BYTES * _sampled(clock))


def _evaluate(clock: Clock, number: int) -> Work:
    return Work(clock.evaluate(), joined=TRAJECTORY_BYTES * _evaluated(clock))


def _judge_policy(clock: Clock, number: int) -> Work:
    return Work(clock.judge_policy(), joined=ANSWER_BYTES * _evaluated(clock))


def _sampled(clock: Clock) -> float:
    return clock.sizes.questions["sampling"] * clock.settings.sampling.samples


def _evaluated(clock: Clock) -> float:
    return clock.sizes.questions[clock.settings.evaluation.split]


_RULES: Mapping[str, Callable[[Clock, int], Work]] = {
    "corpus": _corpus,
    "graph": _graph,
    "hypergraph": _hypergraph,
    "index": _index,
    "hyper-index": _index,
    "sft-data": _sft_data,
    "sft": lambda clock, number: Work(clock.sft()),
    "sample": _sample,
    "judge": _judge,
    "judge-policy": _judge_policy,
    "score": _score,
    "train": lambda clock, number: Work(clock.train(number)),
    "evaluate-policy": _evaluate,
    "report": lambda clock, number: Work(core=clock.rates.report),
}
