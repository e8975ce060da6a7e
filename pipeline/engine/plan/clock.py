"""The work of a stage, from the shapes of its models and the sizes of the data.

Input: the parts that a stage opens, the sizes of the data, and `Rates`. Output: `Work`: requests to
endpoints with their tokens, and seconds of a GPU or of a CPU core. With P
parameters of b bytes, T tokens, S sequences at once of C tokens, k bytes of keys and values for
each token, and F operations and B bytes in a second::

    reading a prompt   2 P T / F
    writing            T / S × (P b + S C k) / B          (each step reads weights and cache)
    on a CPU           2 P T / F                          (which writes for few sequences at once)
    training           6 P T / F     forward twice, and backward through frozen weights
    reference          2 P T / F     once for each record of a round
    encoder            2 P' T / F    P' without embeddings

These are expectations; `docs/gpu.md` has measurements. On a GPU only training and writing have been
compared with them. The rates of a core are those of one model on one machine (`CORE`); others
differ by a factor of 3 to 4. Encoders, rerankers and judges are counted all the same: a plan
without their hours would be known to be too low.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.core.gpus import GIB
from pipeline.engine.opened import Encoder, Engine, Opened, Remote, Requests, Training, Work
from pipeline.engine.plan.sizes import Sizes

if TYPE_CHECKING:
    from pipeline.core.model_shapes import ModelShape

_TYPICAL = "meta-llama/Meta-Llama-3-8B-Instruct"  # for models of unknown shape


@dataclass(frozen=True)
class Rates:
    """The rates of a GPU or a core, and the amounts of work for a record; assumed but in `CORE`."""

    # GiB of a GPU that programs can use (an A100 of 80 GB).
    memory_gib: float = 78.8
    # Operations/s in training (40 % of an A100's) and while prompts are read (50 %).
    training: float = 1.25e14
    reading: float = 1.56e14
    # Bytes/s that are read while tokens are written (60 %).
    writing: float = 1.2e12
    # Operations/s while tokens are written; a GPU waits for bytes.
    decoding: float = math.inf
    # Operations/s of encoders (40 %).
    encoding_float32: float = 7.8e12
    encoding_16bit: float = 1.25e14
    # A trajectory: tokens of instruction and question, tokens that the policy writes (TeaRAG fig.
    # 7: 81), tokens of the observations (fig. 7: 803), and retrievals (table 8: 1.4 to 1.8 steps).
    prompt_tokens: float = 250
    thinking_tokens: float = 250
    retrieved_tokens: float = 1_000
    retrievals: float = 1.5
    # Tokens that a policy writes when its steps are judged; that a judge reads and writes for a
    # retrieval.
    judge_tokens: float = 200
    case_tokens: float = 400
    verdict_tokens: float = 50
    # Pairs of a query and a text: of one retrieval, of a trajectory's reward, and their tokens.
    reranked_pairs: float = 60
    rewarded_pairs: float = 25
    pair_tokens: float = 150
    # Tokens of 100 words, a name, a triplet and an n-ary fact, and of a model's answer about a
    # chunk.
    chunk_tokens: float = 140
    entity_tokens: float = 8
    triplet_tokens: float = 18
    hyperedge_tokens: float = 35
    extracted_tokens: float = 200
    # Tokens of instruction and example of an extraction, which an engine reads once. Share of
    # ``thinking_tokens`` that a reasoning model writes.
    instruction_tokens: float = 250
    thinking_share: float = 0.25
    # Tokens of a supervised example or a trained trajectory; read and written for an example of
    # `sft_data`.
    example_tokens: float = 1_000
    helper_calls: float = 10
    helper_tokens: float = 1_500
    helper_written: float = 150
    # Pairs of a question in round 1 (TeaRAG table 8: 8,760 of 10,000) and later (table 9: 1,688
    # steps).
    pairs_first: float = 0.876
    pairs_later: float = 0.285
    # States of a trajectory that ProGraph-R1 continues from.
    continued_states: float = 2.0


# One core with AVX2, beside other load: SmolLM2-135M in float32 reads 189 tokens/s, writes 91 and
# trains on 94, with 134.5 million parameters. Encoders were not measured.
CORE = Rates(
    training=6 * 134.5e6 * 94, reading=2 * 134.5e6 * 189, writing=math.inf,
    decoding=2 * 134.5e6 * 91, encoding_float32=2 * 134.5e6 * 189, encoding_16bit=2 * 134.5e6 * 189,
)  # fmt: skip


class Clock:
    """The work of opened models, and the sizes and rates that stages count with.

    A model of unknown shape counts as Llama-3-8B.
    """

    def __init__(self, sizes: Sizes, *, gpus: bool) -> None:
        """``gpus``: the work is that of a GPU; else of a CPU core."""
        self.sizes, self.rates = sizes, Rates() if gpus else CORE

    def trajectory(self, opened: Iterable[Opened]) -> Work:
        """One roll-out with its retrievals, by the engine and the reranker in ``opened``."""
        a, models = self.rates, list(opened)
        read = a.prompt_tokens + a.retrieved_tokens
        answers = (self.answer(one, read, a.thinking_tokens) for one in models)
        reranking = self.reranking(models, a.retrievals * a.reranked_pairs)
        return sum(answers, Work(reranking))

    def judging(self, opened: Iterable[Opened]) -> Work:
        """The policy's closed-book answers for a trajectory, and the verdicts of the judges."""
        a, work = self.rates, Work()
        for one in opened:
            if one.turn == 0:
                work += self.answer(one, a.prompt_tokens, a.judge_tokens)
            else:
                work += a.retrievals * self.answer(one, a.case_tokens, a.verdict_tokens)
        return work

    def extraction(self, opened: Iterable[Opened]) -> Work:
        """The facts of a chunk."""
        a = self.rates
        answers = (
            self.answer(one, a.chunk_tokens, a.extracted_tokens, repeated=a.instruction_tokens)
            for one in opened
        )
        return sum(answers, Work())

    def answer(
        self, opened: Opened, read: float, written: float, *, calls: float = 1, repeated: float = 0
    ) -> Work:
        """``read`` tokens of a prompt and ``written`` tokens of one sequence.

        ``repeated`` tokens are in each of the ``calls`` again, and an engine has them in its cache.
        """
        if isinstance(opened, Remote):
            thoughts = self.rates.thinking_share * opened.settings.thinking_tokens
            asked = Requests(opened, calls, read + calls * repeated, written + calls * thoughts)
            return Work(requests=(asked,))
        if not isinstance(opened, Engine):
            return Work()
        from pipeline.llm.memory import engine_memory

        shape = _shape(opened.name)
        a, engine = self.rates, opened.settings
        gpus, memory = engine.tensor_parallel_size, engine_memory(shape, engine)
        share = engine.gpu_memory_utilization * a.memory_gib * GIB
        fitting = memory.cached_tokens(share) // (read + written)
        sequences = max(1, min(engine.max_num_seqs, fitting))
        reading = 2 * shape.parameters * read / a.reading
        context = sequences * (read + written) * memory.token
        step = gpus * (memory.weights + context) / a.writing
        return Work(reading + written * (step / sequences + 2 * shape.parameters / a.decoding))

    def encoding(self, encoder: Encoder, tokens: float) -> float:
        """``tokens`` tokens of texts or pairs; 0 for a model of unknown shape."""
        from pipeline.core.model_shapes import shape_of

        shape = shape_of(encoder.name) if encoder.name else None
        if shape is None:
            return 0.0
        float32 = encoder.dtype == "float32"
        speed = self.rates.encoding_float32 if float32 else self.rates.encoding_16bit
        return 2 * shape.linear_parameters * tokens / speed

    def reranking(self, opened: Iterable[Opened], pairs: float) -> float:
        """``pairs`` pairs of a query and a text; 0 without a reranker."""
        rerankers = (one for one in opened if isinstance(one, Encoder) and one.reranks)
        return sum(self.encoding(one, pairs * self.rates.pair_tokens) for one in rerankers)

    def training(self, training: Training, records: float, referred: float = 0.0) -> float:
        """Passes over ``records`` sequences, and the reference's pass over ``referred`` ones."""
        shape = _shape(training.name)
        passes = 6 * records + 2 * referred
        work = passes * shape.parameters * self.rates.example_tokens
        return work / self.rates.training


def _shape(model: str) -> ModelShape:
    from pipeline.core.model_shapes import PUBLISHED, shape_of

    return shape_of(model) or PUBLISHED[_TYPICAL]
