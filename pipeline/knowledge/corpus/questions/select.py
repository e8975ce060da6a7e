"""Filter and select the questions of a file (TeaRAG 4.3.2, table 2).

Input: questions in file order. Output: at most ``limit`` of them, in the same order. The paper
samples NQ at random; takes the hard HotpotQA questions with the most evidence sentences, half
bridge and half comparison; and takes MuSiQue questions evenly over 2, 3 and 4 hops.
"""

from __future__ import annotations

import random
from collections import Counter
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
    if select == "most-evidence":
        order.sort(key=lambda index: -len(questions[index].evidence))
    else:
        random.Random(f"select:{seed}").shuffle(order)
    field = {"most-evidence": "type", "even-hops": "hops"}.get(select, "")
    groups: dict[Any, list[int]] = {}
    for index in order:
        groups.setdefault(getattr(questions[index], field, None), []).append(index)
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
    # One for each group in turn, while it has any.
    turns = sorted((turn, group) for group, n in enumerate(available) for turn in range(n))
    shares = Counter(group for _, group in turns[:total])
    return [shares[group] for group in range(len(available))]
