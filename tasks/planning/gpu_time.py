"""GPU seconds of a run from the shapes of its models and the amounts of its work.

Input: a configuration, the sizes of its data, and `Rates`. Output: GPU seconds of each stage. With P
parameters of b bytes, T tokens, S sequences at once of C tokens, k bytes of keys and values for each token,
F the operations and B the bytes of a GPU in a second::

    reading a prompt   2 P T / F
    writing            T / S × (P b + S C k) / B          (each step reads weights and cache)
    training           6 P T / F     forward, recomputed forward, and backward through frozen weights
    reference          2 P T / F     once for each record of a round
    encoder            2 P' T / F    P' without embeddings

These are expectations. `docs/gpu.md` has what was measured, and `steep plan` goes by what runs took.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from pipeline.config import Config, Judges, for_round
from pipeline.config.base import EngineConfig
from pipeline.core.gpus import GIB
from pipeline.core.model_shapes import PUBLISHED, ModelShape, shape_of
from pipeline.llm.memory import engine_memory
from tasks.planning.rates import Rates, rates
from tasks.planning.sizes import Sizes

# Stages whose seconds are counted with those of another name.
SECONDS_OF: Mapping[str, str] = {"hyper-index": "index", "evaluate-policy": "evaluate"}
_TYPICAL = "meta-llama/Meta-Llama-3-8B-Instruct"  # for models of unknown shape
_BILLIONS = 8.0


def gpu_seconds(settings: Config, sizes: Sizes, chosen: Rates | None = None) -> Mapping[str, float]:
    """GPU seconds by stage, over all rounds; stages without a model are left out."""
    clock, rounds = Clock(settings, sizes, chosen), settings.rounds
    seconds = {
        "graph": clock.extraction("graph"),
        "hypergraph": clock.extraction("hypergraph") if settings.retrieval.over_hypergraph else 0.0,
        "index": clock.index(),
        "sft-data": clock.sft_data(),
        "sft": clock.sft(),
        "sample": clock.sample() * rounds,
        "judge": clock.judge() * rounds,
        "score": clock.score() * rounds,
        "train": sum(clock.train(number) for number in range(1, rounds + 1)),
        "evaluate": clock.evaluate() * (rounds + 1),
        "judge-policy": clock.judge_policy() * (rounds + 1),
    }
    return {stage: value for stage, value in seconds.items() if value}


def parameters(model: str) -> float:
    """Billions of parameters by a model's name, such as 14 for ``Qwen/Qwen2.5-14B-Instruct``; else 8."""
    found = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)B\b", model, re.IGNORECASE)
    return float(found[1]) if found else _BILLIONS


class Clock:
    """GPU seconds of the stages of one configuration, each for one round or one policy.

    A model of unknown shape counts as one of 8 B parameters, or of as many as its name tells.
    """

    def __init__(self, settings: Config, sizes: Sizes, chosen: Rates | None = None) -> None:
        self.settings, self.sizes, self.rates = settings, sizes, chosen or rates()

    def extraction(self, block: str) -> float:
        """Extraction from all chunks by the model of a block, ``graph`` or ``hypergraph``."""
        settings, a = getattr(self.settings, block), self.rates
        if settings.source != "llm" or settings.model is None:
            return 0.0
        each = self._engine(settings.model, settings.engine, a.chunk_tokens, a.extracted_tokens)
        return self.sizes.chunks * each

    def index(self) -> float:
        """Embedding of all tables that the run retrieves from."""
        a, sizes, embedder = self.rates, self.sizes, self.settings.index.embedder
        tokens = sizes.entities * a.entity_tokens + sizes.hyperedges * a.hyperedge_tokens
        if not self.settings.retrieval.over_hypergraph:
            tokens += sizes.chunks * a.chunk_tokens + sizes.triplets * a.triplet_tokens
        return self._encoder("embedding", embedder.model, embedder.dtype, tokens)

    def sft_data(self) -> float:
        """The questions that the model of ``sft_data`` is asked."""
        block, a = self.settings.sft_data, self.rates
        examples = sum(block.sizes.values()) + sum(block.test_sizes.values())
        if block.model is None:
            return 0.0
        return examples * self._engine(block.model, block.engine, a.helper_tokens, a.helper_written)

    def sft(self) -> float:
        """The supervised training."""
        return self._passes(
            sum(self.settings.sft_data.sizes.values()) * self.settings.sft.epochs, 6
        )

    def sample(self) -> float:
        """The roll-outs of a round."""
        return self._sampled * self._trajectory()

    def evaluate(self) -> float:
        """The roll-outs of a policy on the evaluation split."""
        return self._evaluated * self._trajectory()

    def judge(self) -> float:
        """The judging of a round."""
        return self._sampled * self._judged(self.settings.judges)

    def judge_policy(self) -> float:
        """The judging of a policy's evaluation."""
        return self._evaluated * self._judged(self.settings.evaluation_judges)

    def score(self) -> float:
        """The rewards of a round."""
        settings, a = self.settings, self.rates
        if settings.method.scoring_samples:
            continued = a.continued_states * settings.rewards.prograph.continuations
            # From the middle of a trajectory on average.
            return self._sampled * continued * self._trajectory() / 2
        reranker = settings.rewards.reranker or settings.retrieval.reranker
        if not settings.method.similarity_rewards or reranker.kind == "biencoder":
            return 0.0
        tokens = a.rewarded_pairs * a.pair_tokens
        each = self._encoder("reranking", reranker.model, _reranker_dtype(reranker.kind), tokens)
        return self._sampled * each

    def train(self, number: int) -> float:
        """The training of round ``number``, with the pass of the reference."""
        settings, a = self.settings, self.rates
        questions = self.sizes.questions["sampling"]
        if settings.objective == "grpo":
            records, passes = questions * settings.sampling.samples, settings.trainer.epochs
        else:
            pairs = a.pairs_first if number == 1 else a.pairs_later
            records = questions * pairs * 2
            passes = for_round(settings.dpo.round_epochs, number)
        return self._passes(records * passes, 6) + self._passes(records, 2)

    @property
    def _sampled(self) -> float:
        return self.sizes.questions["sampling"] * self.settings.sampling.samples

    @property
    def _evaluated(self) -> float:
        return self.sizes.questions[self.settings.evaluation.split]

    def _trajectory(self) -> float:
        """One roll-out with its retrievals."""
        settings, a = self.settings, self.rates
        read = a.prompt_tokens + a.retrieved_tokens
        seconds = self._engine(settings.model.base, settings.engine, read, a.thinking_tokens)
        reranker = settings.retrieval.reranker
        if reranker.kind != "biencoder" and not settings.retrieval.over_hypergraph:
            pairs = a.retrievals * a.reranked_pairs * a.pair_tokens
            dtype = _reranker_dtype(reranker.kind)
            seconds += self._encoder("reranking", reranker.model, dtype, pairs)
        return seconds

    def _judged(self, judges: Judges | None) -> float:
        """The closed-book answers of the policy for a trajectory, and the judges that run here."""
        settings, a = self.settings, self.rates
        if judges is None:
            return 0.0
        seconds = self._engine(
            settings.model.base, settings.engine, a.prompt_tokens, a.judge_tokens
        )
        for judge in (judges.over, judges.under):
            if judge.backend == "vllm" and judge.model is not None:
                case = self._engine(judge.model, judge.engine, a.case_tokens, a.verdict_tokens)
                seconds += a.retrievals * case
        return seconds

    def _engine(self, model: str, engine: EngineConfig, read: float, written: float) -> float:
        """GPU seconds for ``read`` tokens of prompts and ``written`` tokens of one sequence."""
        shape, share_of_typical = _shape(model)
        a, gpus = self.rates, engine.tensor_parallel_size
        memory = engine_memory(
            shape, engine.dtype, tensor_parallel_size=gpus, enforce_eager=engine.enforce_eager
        )
        share = engine.gpu_memory_utilization * a.memory_gib * GIB
        fitting = memory.cached_tokens(share) // (read + written)
        sequences = max(1, min(engine.max_num_seqs, fitting))
        reading = 2 * shape.parameters * read / a.reading
        context = sequences * (read + written) * memory.token
        step = gpus * (memory.weights + context) / a.writing
        return share_of_typical * (reading + written / sequences * step)

    def _encoder(
        self, work: Literal["embedding", "reranking"], model: str | None, dtype: str, tokens: float
    ) -> float:
        shape = shape_of(model) if model else None
        if shape is None:
            return 0.0
        kind = "float32" if dtype == "float32" else "16bit"
        speed: float = getattr(self.rates, f"{work}_{kind}")
        return 2 * shape.linear_parameters * tokens / speed

    def _passes(self, records: float, operations: int) -> float:
        shape, share_of_typical = _shape(self.settings.model.base)
        work = operations * shape.parameters * records * self.rates.example_tokens
        return share_of_typical * work / self.rates.training


def _reranker_dtype(kind: str) -> str:
    return "float16" if kind == "flag" else "float32"


def _shape(model: str) -> tuple[ModelShape, float]:
    """The shape of a model and 1, or a typical shape and the model's share of its parameters."""
    shape = shape_of(model)
    if shape is not None:
        return shape, 1.0
    return PUBLISHED[_TYPICAL], parameters(model) / _BILLIONS
