"""The phases of the training and the samples of each.

Purpose: define the order of training, and make the samples of any part of it from the seed alone.
An interrupted training can therefore resume at the same sample. Input: phase, seed, rank and chunk
number. Output: packs of samples. A chunk holds the samples of one generated world; phase 1 needs no
world.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.tiny_reader.copying import copying_samples
from benchmarks.tiny_reader.encode import encode_samples
from benchmarks.tiny_reader.packing import Pack, Sample, pack_samples
from benchmarks.tiny_reader.training_texts import (
    DECIDING_SHARES,
    READING_SHARES,
    TRAJECTORY_SHARES,
    Shares,
    mixed_texts,
    recall_phase_texts,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase.

    Attributes:
        name: part of the seeds of its samples, and of the training log.
        steps: optimizer steps.
        pack_tokens: tokens of a pack; every process trains on one pack per step.
        max_tokens: tokens of a sample at most.
        rate: learning rate at the start; it changes linearly.
        last_rate: learning rate at the end.
        fresh: whether the phase starts with a warm-up and empty optimizer moments.
        shares: shares of the kinds of text, see `training_texts.KINDS`.
        use_span_weights: whether characters have individual loss weights.
        described: share of the trajectories whose prompt describes the format.
    """

    name: str
    steps: int
    pack_tokens: int
    max_tokens: int
    rate: float
    last_rate: float
    fresh: bool = False
    shares: Shares = TRAJECTORY_SHARES
    use_span_weights: bool = True
    described: float = 0.0


PHASES: tuple[Phase, ...] = (
    Phase("copying", 2000, 2048, 256, 2e-3, 2e-3, fresh=True),
    Phase("recall", 1200, 3072, 768, 2e-3, 2e-3),
    Phase("paths", 2060, 4096, 1400, 2e-3, 2e-3, use_span_weights=False),
    Phase("answers", 1100, 4096, 1400, 2e-3, 2e-3),
    Phase("settling", 3300, 2048, 2048, 1.6e-3, 2e-5, shares=READING_SHARES),
    Phase(
        *("deciding", 9000, 2048, 2048, 1.6e-3, 1e-5),
        fresh=True,
        shares=DECIDING_SHARES,
        described=0.65,
    ),
)
_WORLDS_PER_RANK = 10**7
_WORLDS_PER_PHASE = 10**8
_WORLDS_PER_SEED = 10**9
# Loss weight of the passages themselves in the phase that first sees language.
_CONTEXT_WEIGHT = 0.2


def chunk_packs(
    phase: Phase, seed: int, rank: int, chunk: int, tokenizer: PreTrainedTokenizerFast
) -> list[Pack]:
    """The packs of one chunk, shuffled, and identical on every call.

    Args:
        phase: the phase.
        seed: of the training.
        rank: of the process that trains on them.
        chunk: number of the chunk within the phase.
        tokenizer: of the tiny reader.
    """
    rng = random.Random(f"tiny reader {seed} {phase.name} {rank} {chunk}")
    samples: list[Sample]
    if phase.name == "copying":
        # Very short sequences come first, because on them copying attention emerges soonest.
        max_tokens = min(phase.max_tokens, 24 + chunk)
        samples = copying_samples(rng, len(tokenizer), 3, max_tokens, 50_000 // max_tokens)
    else:
        world_seed = (
            _WORLDS_PER_SEED * (seed + 1)
            + _WORLDS_PER_PHASE * PHASES.index(phase)
            + _WORLDS_PER_RANK * rank
            + chunk
        )
        if phase.name == "recall":
            texts = recall_phase_texts(rng, world_seed, 300, min(6, 1 + chunk // 8))
            samples = encode_samples(tokenizer, texts, context_weight=_CONTEXT_WEIGHT)
        else:
            texts = mixed_texts(rng, world_seed, 200, 6, phase.shares, phase.described)
            samples = encode_samples(tokenizer, texts, use_span_weights=phase.use_span_weights)
    packs = pack_samples(samples, phase.pack_tokens, phase.max_tokens)
    rng.shuffle(packs)
    return packs
