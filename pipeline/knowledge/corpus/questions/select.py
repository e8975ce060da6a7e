"""Filter and select the questions of a file (TeaRAG 4.3.2, table 2).

Input: questions in file order. Output: at most ``limit`` of them, in the same order. The paper
samples NQ at random; takes the hard HotpotQA questions with the most evidence sentences, half
bridge and half comparison; and takes MuSiQue questions evenly over 2, 3 and 4 hops.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pipeline.core.records import Question

Selection = Literal["first", "random", "most-evidence", "even-hops"]


def matches(
    record: Mapping[str, Any],
    wanted: Mapping[str, str | int],
    unmet: dict[str, str | int],
    *,
    whole: bool,
) -> bool:
    """Whether the record has the value that ``wanted`` requires in every field.

    A field that is missing does not match if the record is ``whole``. Every compared field is
    removed from ``unmet``, so that the caller can report fields that no record has.
    """
    for field, value in wanted.items():
        if field in record:
            unmet.pop(field, None)
            if record[field] != value and str(record[field]) != str(value):
                return False
        elif whole:
            return False
    return True


def choose(
    questions: Sequence[Question], select: Selection, limit: int | None, seed: int
) -> list[Question]:
    """At most ``limit`` questions, in their order; all of them when there are fewer.

    ``first`` takes the first questions and ``random`` any. ``most-evidence`` takes equally many of
    each ``type``, those with most evidence first; ``even-hops`` takes equally many of each number
    of hops at random. Groups that are too small leave their share to the others. ``seed`` decides
    the random choices.
    """
    if limit is None or limit >= len(questions):
        return list(questions)
    if select == "first":
        return list(questions[:limit])
    order = list(range(len(questions)))
    random.Random(f"select:{seed}").shuffle(order)
    groups: dict[Any, list[int]] = {}
    if select == "random":
        groups[None] = order
    elif select == "even-hops":
        for index in order:
            groups.setdefault(questions[index].hops, []).append(index)
    else:
        ranked = sorted(range(len(questions)), key=lambda i: -len(questions[i].evidence))
        for index in ranked:
            groups.setdefault(questions[index].type, []).append(index)
    group_shares = even_shares([len(group) for group in groups.values()], limit)
    selected = [
        index
        for group, share in zip(groups.values(), group_shares, strict=True)
        for index in group[:share]
    ]
    return [questions[index] for index in sorted(selected)]


def even_shares(available: Sequence[int], total: int) -> list[int]:
    """The share of each group when ``total`` is divided evenly and no group exceeds ``available``.

    The shares add up to ``total``, or to the sum of ``available`` if that is smaller.
    """
    shares = [0] * len(available)
    while total:
        open_groups = [n for n, count in enumerate(available) if shares[n] < count]
        if not open_groups:
            break
        portion = max(total // len(open_groups), 1)
        for group in open_groups[:total]:
            added = min(portion, available[group] - shares[group])
            shares[group] += added
            total -= added
    return shares
