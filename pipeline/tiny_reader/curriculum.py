"""The phases of the training and the samples of each.

Purpose: say what is trained in which order, and make the samples of any part of it from the seed
alone, so that a stopped training goes on where it was. Input: phase, seed, rank, number of a
chunk. Output: samples. A chunk is one generated world (phase 1 needs none).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.tiny_reader import encode
from pipeline.tiny_reader.copying import copying_samples
from pipeline.tiny_reader.corpus import PATH_SHARES, READING_SHARES, mixed_texts, recall_texts
from pipeline.tiny_reader.packing import Pack, Sample, packs

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase: optimiser steps, tokens per pack, longest sample, learning rate from and to."""

    name: str
    steps: int
    pack: int
    longest: int
    rate: float
    last_rate: float


PHASES: tuple[Phase, ...] = (
    Phase("copying", 2000, 2048, 256, 2e-3, 2e-3),
    Phase("recall", 1200, 3072, 768, 2e-3, 2e-3),
    Phase("paths", 2060, 4096, 1400, 2e-3, 2e-3),
    Phase("answers", 1100, 4096, 1400, 2e-3, 2e-3),
    Phase("settling", 3300, 2048, 2048, 1.6e-3, 2e-5),
)
_RANK_WORLDS = 10**7
_PHASE_WORLDS = 10**8
_SEED_WORLDS = 10**9
# Loss weight of the passages themselves in the phase in which the language is new.
_CONTEXT_WEIGHT = 0.2


def chunk_packs(
    phase: Phase, seed: int, rank: int, chunk: int, tokenizer: PreTrainedTokenizerFast
) -> list[Pack]:
    """The packs of one chunk, the same on every call.

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
        # Packs of very short sequences first: the shorter, the sooner attention finds its way.
        limit = min(phase.longest, 24 + chunk)
        samples = copying_samples(rng, len(tokenizer), 3, limit, 50_000 // limit)
    else:
        number = PHASES.index(phase)
        world = _SEED_WORLDS * (seed + 1) + _PHASE_WORLDS * number + _RANK_WORLDS * rank + chunk
        if phase.name == "recall":
            texts = recall_texts(rng, world, 300, min(6, 1 + chunk // 8))
            samples = encode.samples(tokenizer, texts, context=_CONTEXT_WEIGHT)
        else:
            stressed = phase.name != "paths"
            shares = READING_SHARES if phase.name == "settling" else PATH_SHARES
            samples = encode.samples(
                tokenizer, mixed_texts(rng, world, 200, 6, shares), stressed=stressed
            )
    made = packs(samples, phase.pack, phase.longest)
    rng.shuffle(made)
    return made
