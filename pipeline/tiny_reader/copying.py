"""Phase 1: sequences of random tokens in which something said earlier returns.

Purpose: teach a fresh model to copy from its context before it sees any language; trained on
language directly, a small model learns the grammar of the paths but never to copy. Input: a
random generator and a vocabulary. Output: token ids with a weight of one on every token that can
be predicted. Three games: a sequence told twice; a text in which stretches return at random
places; and pairs of keys and values, whose keys share tokens as names share syllables.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from pipeline.tiny_reader.packing import Sample


def _draw(rng: random.Random, tokens: Sequence[int], count: int) -> list[int]:
    return [tokens[int(rng.random() * len(tokens))] for _ in range(count)]


def _twice(rng: random.Random, tokens: Sequence[int], limit: int) -> Sample:
    half = _draw(rng, tokens, rng.randint(min(8, limit // 4), limit // 2))
    return Sample(half + half, [0.0] * (len(half) + 1) + [1.0] * (len(half) - 1), "twice")


def _returns(rng: random.Random, tokens: Sequence[int], limit: int) -> Sample:
    ids = _draw(rng, tokens, rng.randint(8, 40))
    weights = [0.0] * len(ids)
    while len(ids) < limit - 40:
        length = rng.randint(3, 20)
        if rng.random() < 0.3:
            ids += _draw(rng, tokens, length)
            weights += [0.0] * length
        else:
            start = rng.randrange(max(1, len(ids) - length))
            piece = ids[start : start + length]
            ids += piece
            # The first tokens only say which stretch it is; then the copy can be followed.
            weights += [0.0] * min(2, len(piece)) + [1.0] * (len(piece) - min(2, len(piece)))
    return Sample(ids, weights, "returns")


def _pairs(rng: random.Random, tokens: Sequence[int], limit: int) -> Sample:
    arrow, stop = rng.sample(tokens, 2)
    pieces = _draw(rng, tokens, rng.randint(6, 30))
    table: dict[tuple[int, ...], list[int]] = {}
    ids: list[int] = []
    weights: list[float] = []
    while len(ids) < limit - 14:
        if table and rng.random() < min(0.6, len(table) / 8):
            key = rng.choice(list(table))
            known = 1.0
        else:
            key = tuple(_draw(rng, pieces, rng.randint(1, 4)))
            known = 1.0 if key in table else 0.0
        value = table.setdefault(key, _draw(rng, pieces, rng.randint(1, 5)))
        ids += [*key, arrow, *value, stop]
        weights += [0.0] * (len(key) + 1) + [known] * (len(value) + 1)
    return Sample(ids, weights, "pairs")


def copying_samples(
    rng: random.Random, vocabulary: int, specials: int, limit: int, count: int
) -> list[Sample]:
    """Samples of the three games.

    Args:
        rng: source of randomness.
        vocabulary: number of tokens.
        specials: the first so many ids are special tokens and do not occur.
        limit: most tokens of a sample; below 80 all samples are of the first game, which is
            where copying emerges soonest.
        count: number of samples.
    """
    samples: list[Sample] = []
    for _ in range(count):
        size = rng.choice((40, 200, 1000, vocabulary - specials))
        tokens = rng.sample(range(specials, vocabulary), size)
        shares = (0.4, 0.2, 0.4) if limit >= 80 else (1.0, 0.0, 0.0)
        game = rng.choices((_twice, _returns, _pairs), shares)[0]
        samples.append(game(rng, tokens, limit))
    return samples
