"""GPU hours of a run from the shapes of its models and the amounts of its work.

Input: a configuration, the sizes of its data, and the assumptions of `Assumed`. Output: GPU seconds of
each stage. With P parameters of b bytes, T tokens, S sequences at once of C tokens, k bytes of keys and
values for each token, F the floating-point operations and B the bytes that a GPU does and reads in a
second, each times the share of it that is reached::

    reading a prompt   2 P T / F
    writing            T / S × (P b + S C k) / B          (each step reads weights and cache)
    training           6 P T / F     forward, recomputed forward, and backward through frozen weights
    reference          2 P T / F     once for each record of a round
    encoder            2 P' T / F    P' without embeddings

These are expectations. `docs/gpu.md` has what was measured, and `steep plan` goes by what runs took.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pipeline.config import Config, for_round
from pipeline.config.base import EngineConfig
from pipeline.core.gpus import nominal_gpu
from pipeline.core.model_shapes import ModelShape, shape_of
from pipeline.llm.memory import engine_memory
from tasks.planning.sizes import Sizes

# Stages whose seconds are counted with those of another name.
SECONDS_OF: Mapping[str, str] = {"hyper-index": "index", "evaluate-policy": "evaluate"}


def _assume(value: float, meaning: str) -> Any:
    return field(default=value, metadata={"meaning": meaning})


@dataclass(frozen=True)
class Assumed:
    """Throughput and amounts that nothing has measured here yet."""

    memory_gib: float = _assume(80, "nominal memory of an A100")
    flops: float = _assume(312e12, "bfloat16 operations/s of an A100")
    float32_flops: float = _assume(19.5e12, "float32 operations/s of an A100")
    bandwidth: float = _assume(2.0e12, "bytes/s of an A100 of 80 GB")
    share_reading: float = _assume(0.5, "share of the operations while prompts are read")
    share_writing: float = _assume(0.6, "share of the bandwidth while tokens are written")
    share_training: float = _assume(0.4, "share of the operations in training")
    share_encoding: float = _assume(0.4, "share of the operations in embedders and rerankers")
    prompt_tokens: float = _assume(250, "tokens of instruction and question")
    thinking_tokens: float = _assume(
        250, "tokens that a policy writes in a trajectory (TeaRAG fig. 7: 81)"
    )
    retrieved_tokens: float = _assume(
        1_000, "tokens of a trajectory's observations (TeaRAG fig. 7: 803)"
    )
    retrievals: float = _assume(
        1.5, "retrievals of a trajectory (TeaRAG table 8: 1.4 to 1.8 steps)"
    )
    judge_tokens: float = _assume(200, "tokens that a policy writes when its steps are judged")
    reranked_pairs: float = _assume(60, "pairs that one retrieval reranks")
    rewarded_pairs: float = _assume(25, "pairs that the reward of a trajectory compares")
    pair_tokens: float = _assume(150, "tokens of a query with a text")
    chunk_tokens: float = _assume(140, "tokens of 100 words")
    entity_tokens: float = _assume(8, "tokens of a name")
    triplet_tokens: float = _assume(18, "tokens of a triplet")
    hyperedge_tokens: float = _assume(35, "tokens of an n-ary fact")
    extracted_tokens: float = _assume(200, "tokens that a model writes about a chunk")
    example_tokens: float = _assume(1_000, "tokens of a supervised example")
    helper_tokens: float = _assume(1_500, "tokens that the model of sft_data reads for an example")
    helper_written: float = _assume(150, "tokens that it writes")
    pairs_first: float = _assume(
        0.876, "pairs of a question in round 1 (TeaRAG table 8: 8,760 of 10,000)"
    )
    pairs_later: float = _assume(0.285, "in later rounds (TeaRAG table 9: 1,688 steps in all)")
    continued_states: float = _assume(2.0, "states of a trajectory that ProGraph-R1 continues from")


def assumptions() -> list[tuple[str, float]]:
    """Meaning and value of every assumption."""
    return [
        (each.metadata["meaning"], float(getattr(Assumed(), each.name))) for each in fields(Assumed)
    ]


def gpu_seconds(
    settings: Config, sizes: Sizes, assumed: Assumed | None = None
) -> Mapping[str, float]:
    """GPU seconds by stage, over all rounds; stages without a model are left out.

    Models of unknown shape count as 0.
    """
    return _Clock(settings, sizes, assumed or Assumed()).stages()


class _Clock:
    def __init__(self, settings: Config, sizes: Sizes, assumed: Assumed) -> None:
        self.settings, self.sizes, self.assumed = settings, sizes, assumed

    def stages(self) -> dict[str, float]:
        settings, sizes = self.settings, self.sizes
        sampled = sizes.questions["sampling"] * settings.sampling.samples * settings.rounds
        tested = sizes.questions[settings.evaluation.split] * (settings.rounds + 1)
        seconds = {
            "graph": self._extraction("graph"),
            "hypergraph": self._extraction("hypergraph"),
            "index": self._index(),
            "sft-data": self._sft_data(),
            "sft": self._training(sum(settings.sft_data.sizes.values()) * settings.sft.epochs),
            "sample": sampled * self._trajectory(),
            "judge": sampled * self._judged(),
            "score": sampled * self._score(),
            "train": self._rounds(),
            "evaluate": tested * self._trajectory(),
        }
        return {stage: value for stage, value in seconds.items() if value}

    def _engine(self, model: str, engine: EngineConfig, read: float, written: float) -> float:
        """GPU seconds for ``read`` tokens of prompts and ``written`` tokens of one sequence."""
        shape, a = shape_of(model), self.assumed
        if shape is None:
            return 0.0
        gpus = engine.tensor_parallel_size
        memory = engine_memory(
            shape, engine.dtype, tensor_parallel_size=gpus, enforce_eager=engine.enforce_eager
        )
        share = engine.gpu_memory_utilization * (nominal_gpu(a.memory_gib).memory or 0)
        fitting = memory.cached_tokens(share) // (read + written)
        sequences = max(1, min(engine.max_num_seqs, fitting))
        reading = 2 * shape.parameters * read / (a.flops * a.share_reading)
        context = sequences * (read + written) * memory.token
        step = gpus * (memory.weights + context) / (a.bandwidth * a.share_writing)
        return reading + written / sequences * step

    def _encoder(self, model: str | None, dtype: str, tokens: float) -> float:
        shape, a = shape_of(model) if model else None, self.assumed
        if shape is None:
            return 0.0
        flops = a.float32_flops if dtype == "float32" else a.flops
        return 2 * shape.linear_parameters * tokens / (flops * a.share_encoding)

    def _extraction(self, block: str) -> float:
        settings = getattr(self.settings, block)
        used = block == "graph" or self.settings.retrieval.over_hypergraph
        if not used or settings.source != "llm" or settings.model is None:
            return 0.0
        a = self.assumed
        each = self._engine(settings.model, settings.engine, a.chunk_tokens, a.extracted_tokens)
        return self.sizes.chunks * each

    def _index(self) -> float:
        a, sizes, embedder = self.assumed, self.sizes, self.settings.index.embedder
        tokens = sizes.entities * a.entity_tokens + sizes.hyperedges * a.hyperedge_tokens
        if not self.settings.retrieval.over_hypergraph:
            tokens += sizes.chunks * a.chunk_tokens + sizes.triplets * a.triplet_tokens
        return self._encoder(embedder.model, embedder.dtype, tokens)

    def _sft_data(self) -> float:
        block, a = self.settings.sft_data, self.assumed
        examples = sum(block.sizes.values()) + sum(block.test_sizes.values())
        if block.model is None:
            return 0.0
        return examples * self._engine(block.model, block.engine, a.helper_tokens, a.helper_written)

    def _trajectory(self) -> float:
        """One roll-out with its retrievals."""
        settings, a = self.settings, self.assumed
        read = a.prompt_tokens + a.retrieved_tokens
        seconds = self._engine(settings.model.base, settings.engine, read, a.thinking_tokens)
        reranker = settings.retrieval.reranker
        if reranker.kind != "biencoder" and not settings.retrieval.over_hypergraph:
            pairs = a.retrievals * a.reranked_pairs * a.pair_tokens
            dtype = "float16" if reranker.kind == "flag" else "float32"
            seconds += self._encoder(reranker.model, dtype, pairs)
        return seconds

    def _judged(self) -> float:
        settings, a = self.settings, self.assumed
        if settings.judges is None:
            return 0.0
        return self._engine(settings.model.base, settings.engine, a.prompt_tokens, a.judge_tokens)

    def _score(self) -> float:
        settings, a = self.settings, self.assumed
        if settings.method.scoring_samples:
            continued = a.continued_states * settings.rewards.prograph.continuations
            return continued * self._trajectory() / 2  # from the middle of a trajectory on average
        reranker = settings.rewards.reranker or settings.retrieval.reranker
        if not settings.method.similarity_rewards or reranker.kind == "biencoder":
            return 0.0
        return self._encoder(reranker.model, "float16", a.rewarded_pairs * a.pair_tokens)

    def _rounds(self) -> float:
        settings, a = self.settings, self.assumed
        seconds = 0.0
        for number in range(1, settings.rounds + 1):
            questions = self.sizes.questions["sampling"]
            if settings.objective == "grpo":
                records, passes = questions * settings.sampling.samples, settings.trainer.epochs
            else:
                pairs = a.pairs_first if number == 1 else a.pairs_later
                records = questions * pairs * 2
                passes = for_round(settings.dpo.round_epochs, number)
            seconds += self._training(records * passes) + self._reference(records)
        return seconds

    def _training(self, records: float) -> float:
        return self._passes(records, 6)

    def _reference(self, records: float) -> float:
        return self._passes(records, 2)

    def _passes(self, records: float, operations: int) -> float:
        shape: ModelShape | None = shape_of(self.settings.model.base)
        if shape is None:
            return 0.0
        a = self.assumed
        work = operations * shape.parameters * records * a.example_tokens
        return work / (a.flops * a.share_training)
