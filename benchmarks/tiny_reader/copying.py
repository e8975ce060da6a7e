"""Phase 1: sequences of random tokens in which earlier parts recur.

Purpose: teach a fresh model to copy from its context before it sees any language. A small model
that is trained on language directly learns the form of the trajectories but never learns to copy.
Input: a random generator and a vocabulary. Output: samples whose weight is 1 on every predictable
token. There are three tasks: a sequence that occurs twice; a text in which stretches recur at
random positions; and key-value pairs, whose keys share tokens as names share syllables.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from benchmarks.tiny_reader.packing import Sample


def _draw(rng: random.Random, tokens: Sequence[int], count: int) -> list[int]:
    return [tokens[int(rng.random() * len(tokens))] for _ in range(count)]


def _repeated_sequence(rng: random.Random, tokens: Sequence[int], max_tokens: int) -> Sample:
    half = _draw(rng, tokens, rng.randint(min(8, max_tokens // 4), max_tokens // 2))
    return Sample(half + half, [0.0] * (len(half) + 1) + [1.0] * (len(half) - 1), "twice")


def _recurring_stretches(rng: random.Random, tokens: Sequence[int], max_tokens: int) -> Sample:
    ids = _draw(rng, tokens, rng.randint(8, 40))
    weights = [0.0] * len(ids)
    while len(ids) < max_tokens - 40:
        length = rng.randint(3, 20)
        if rng.random() < 0.3:
            ids += _draw(rng, tokens, length)
            weights += [0.0] * length
        else:
            start = rng.randrange(max(1, len(ids) - length))
            stretch = ids[start : start + length]
            ids += stretch
            # The first two tokens only identify the stretch; the rest is predictable.
            num_unpredictable = min(2, len(stretch))
            weights += [0.0] * num_unpredictable + [1.0] * (len(stretch) - num_unpredictable)
    return Sample(ids, weights, "returns")


def _key_value_pairs(rng: random.Random, tokens: Sequence[int], max_tokens: int) -> Sample:
    arrow, stop = rng.sample(tokens, 2)
    alphabet = _draw(rng, tokens, rng.randint(6, 30))
    table: dict[tuple[int, ...], list[int]] = {}
    ids: list[int] = []
    weights: list[float] = []
    while len(ids) < max_tokens - 14:
        if table and rng.random() < min(0.6, len(table) / 8):
            key = rng.choice(list(table))
            weight = 1.0
        else:
            key = tuple(_draw(rng, alphabet, rng.randint(1, 4)))
            weight = 1.0 if key in table else 0.0
        value = table.setdefault(key, _draw(rng, alphabet, rng.randint(1, 5)))
        ids += [*key, arrow, *value, stop]
        weights += [0.0] * (len(key) + 1) + [weight] * (len(value) + 1)
    return Sample(ids, weights, "pairs")


def copying_samples(
    rng: random.Random, vocabulary: int, num_special: int, max_tokens: int, count: int
) -> list[Sample]:
    """Samples of the three tasks.

    Args:
        rng: source of randomness.
        vocabulary: number of tokens.
        num_special: the ids below this number are special tokens and do not occur.
        max_tokens: tokens of a sample at most; below 80 all samples are of the first task, on
            which copying emerges soonest.
        count: number of samples.
    """
    samples: list[Sample] = []
    for _ in range(count):
        size = rng.choice((40, 200, 1000, vocabulary - num_special))
        tokens = rng.sample(range(num_special, vocabulary), size)
        shares = (0.4, 0.2, 0.4) if max_tokens >= 80 else (1.0, 0.0, 0.0)
        tasks = (_repeated_sequence, _recurring_stretches, _key_value_pairs)
        task = rng.choices(tasks, shares)[0]
        samples.append(task(rng, tokens, max_tokens))
    return samples
