"""Sequence packing: training samples are concatenated into packs of a fixed size.

Purpose: equal cost per training step with little padding. Each sample is padded to a multiple of
`GRAIN` tokens, and the pack to its full size. Fixed shapes matter because the CPU's matrix library
compiles a kernel for every new shape, which used to take half of the training time. Input: samples
(token ids and one loss weight per token). Output: packs as arrays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.training.packed_attention import GRAIN

FILLER = "filler"


@dataclass(slots=True)
class Sample:
    """One training sequence.

    Attributes:
        ids: token ids.
        weights: loss weight of every token, as a target.
        kind: name of the task.
    """

    ids: list[int]
    weights: list[float]
    kind: str


@dataclass(slots=True)
class Pack:
    """Concatenated, padded samples.

    Attributes:
        ids: token ids, (N,).
        weights: loss weight of every token, (N,).
        lengths: padded tokens of every sample; they sum to N.
        kinds: kind of every sample; the padding at the end has the kind `FILLER`.
    """

    ids: NDArray[np.int32]
    weights: NDArray[np.float32]
    lengths: list[int]
    kinds: list[str]

    def targets(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """Positions whose next token is a target, the target tokens, and their weights, (M,) each.

        M is a multiple of 4 `GRAIN`; surplus rows have weight 0. The first token of a sample is
        never a target.
        """
        weights = self.weights.copy()
        starts = np.cumsum([0, *self.lengths[:-1]])
        weights[starts] = 0.0
        (trained,) = np.nonzero(weights)
        # A multiple of 4 GRAIN keeps the number of distinct shapes small here too.
        surplus = -len(trained) % (4 * GRAIN)
        rows = np.concatenate([trained, np.ones(surplus, trained.dtype)])
        row_weights = np.concatenate([weights[trained], np.zeros(surplus, np.float32)])
        return rows - 1, self.ids[rows].astype(np.int64), row_weights


def pack_samples(samples: Iterable[Sample], size: int, max_tokens: int) -> list[Pack]:
    """Packs of `size` tokens each, filled first-fit in order of decreasing sample length.

    The packs are in the order of their longest samples; the caller shuffles them.

    Args:
        samples: those with more than `max_tokens` tokens are dropped.
        size: tokens of a pack, a multiple of `GRAIN` and at least `max_tokens`.
        max_tokens: tokens of a sample at most.
    """
    bins: list[tuple[list[Sample], int]] = []
    fitting = [sample for sample in samples if len(sample.ids) <= max_tokens]
    for sample in sorted(fitting, key=lambda sample: -len(sample.ids)):
        length = padded(len(sample.ids))
        for number, (members, total) in enumerate(bins):
            if total + length <= size:
                members.append(sample)
                bins[number] = (members, total + length)
                break
        else:
            bins.append(([sample], length))
    return [_pack(members, size) for members, _ in bins]


def padded(length: int) -> int:
    """`length` rounded up to a multiple of `GRAIN`."""
    return -(-length // GRAIN) * GRAIN


def _pack(samples: list[Sample], size: int) -> Pack:
    lengths = [padded(len(sample.ids)) for sample in samples]
    kinds = [sample.kind for sample in samples]
    if sum(lengths) < size:
        lengths.append(size - sum(lengths))
        kinds.append(FILLER)
    ids = np.zeros(sum(lengths), np.int32)
    weights = np.zeros(sum(lengths), np.float32)
    start = 0
    for sample, length in zip(samples, lengths, strict=False):
        ids[start : start + len(sample.ids)] = sample.ids
        weights[start : start + len(sample.ids)] = sample.weights
        start += length
    return Pack(ids, weights, lengths, kinds)
