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
from pipeline.tiny_reader.corpus import (
    DECIDING_SHARES,
    PATH_SHARES,
    READING_SHARES,
    Shares,
    mixed_texts,
    recall_texts,
)
from pipeline.tiny_reader.packing import Pack, Sample, packs

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase.

    Attributes:
        name: of the phase.
        steps: of the optimiser.
        pack: tokens of a pack; every process trains on one per step.
        longest: tokens of a sample at most.
        rate, last_rate: learning rate at its begin and end, linear between them.
        fresh: whether it starts with a warm-up and empty moments, as the first phase does.
        shares: of the kinds of text.
        stressed: whether tokens have weights of their own.
        told: share of the paths whose prompt tells the format.
    """

    name: str
    steps: int
    pack: int
    longest: int
    rate: float
    last_rate: float
    fresh: bool = False
    shares: Shares = PATH_SHARES
    stressed: bool = True
    told: float = 0.0


PHASES: tuple[Phase, ...] = (
    Phase("copying", 2000, 2048, 256, 2e-3, 2e-3, fresh=True),
    Phase("recall", 1200, 3072, 768, 2e-3, 2e-3),
    Phase("paths", 2060, 4096, 1400, 2e-3, 2e-3, stressed=False),
    Phase("answers", 1100, 4096, 1400, 2e-3, 2e-3),
    Phase("settling", 3300, 2048, 2048, 1.6e-3, 2e-5, shares=READING_SHARES),
    Phase(
        *("deciding", 9000, 2048, 2048, 1.6e-3, 1e-5),
        fresh=True,
        shares=DECIDING_SHARES,
        told=0.65,
    ),
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
            texts = mixed_texts(rng, world, 200, 6, phase.shares, phase.told)
            samples = encode.samples(tokenizer, texts, stressed=phase.stressed)
    made = packs(samples, phase.pack, phase.longest)
    rng.shuffle(made)
    return made
