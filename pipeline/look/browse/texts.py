"""Texts of trajectories in pieces, with the writer, the part in the loss, and the differences.

Input: trajectories and pairs. Output: pieces of text with a role and a mark. The roles are
"trained" (sampled by the policy, and in the loss), "masked" (sampled by the policy, and left out of
the loss, as the steps before a step pair are) and "observed" (inserted by the environment, never
trained). A mark says that the words are not in the other text of a pair.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

from pipeline.core.errors import InputError
from pipeline.core.records import Span, Trajectory
from pipeline.core.spans import common_length, cover_error
from pipeline.evaluation.excerpts import text_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Role = Literal["trained", "masked", "observed", "unknown"]
_ROLE: dict[str, Role] = {
    "model": "trained", "observation": "observed", "frame": "masked", "unknown": "unknown",
}  # fmt: skip
# With the white space before it: as a word of its own, a space would be compared with all others.
_WORD = re.compile(r"\s*+(?:\w+|[^\w\s])|\s+")
_MOST_WORK = 2 * 10**8  # pairs of equal words, times words: three seconds at most


class Piece(NamedTuple):
    """A stretch of text; ``differs`` means that the other text does not have it."""

    text: str
    role: Role
    differs: bool = False


class Token(NamedTuple):
    """One token: its text, role, id, and probability in [0, 1] if it was sampled."""

    text: str
    role: Role
    id: int
    probability: float | None


def pieces(trajectory: Trajectory) -> list[Piece]:
    """The output of a trajectory. Raises InputError when its spans do not cover it."""
    return [Piece(part.text, _ROLE[part.writer]) for part in text_of(trajectory)]


def pair_pieces(left: Sequence[Piece], right: Sequence[Piece]) -> tuple[list[Piece], list[Piece]]:
    """Both texts, with the words marked that the other text lacks at that place."""
    marks = _differences(_joined(left), _joined(right))
    return _marked(left, marks[0]), _marked(right, marks[1])


def _joined(parts: Sequence[Piece]) -> str:
    return "".join(part.text for part in parts)


def _differences(left: str, right: str) -> tuple[list[int], list[int]]:
    """Where the characters of each text that differ from the other start and end, in turn."""
    a, b = _WORD.findall(left), _WORD.findall(right)
    start = common_length(a, b)
    end = common_length(a[start:][::-1], b[start:][::-1])
    middle_a, middle_b = a[start : len(a) - end], b[start : len(b) - end]
    counts = Counter(middle_b)
    equal = sum(counts[word] for word in middle_a)
    if equal * min(len(middle_a), len(middle_b)) > _MOST_WORK:
        blocks = [("replace", 0, len(middle_a), 0, len(middle_b))]
    else:
        matcher = SequenceMatcher(None, middle_a, middle_b, autojunk=False)
        blocks = [code for code in matcher.get_opcodes() if code[0] != "equal"]
    offsets_a, offsets_b = (list(accumulate(map(len, words), initial=0)) for words in (a, b))
    return (
        [offsets_a[start + n] for _, i, j, _, _ in blocks if j > i for n in (i, j)],
        [offsets_b[start + n] for _, _, _, i, j in blocks if j > i for n in (i, j)],
    )


def _marked(parts: Sequence[Piece], marks: Sequence[int]) -> list[Piece]:
    """The pieces, cut at ``marks``, where ranges that differ start and end in turn."""
    text = _joined(parts)
    ends = list(accumulate(len(part.text) for part in parts))
    return [
        Piece(text[at:end], parts[bisect_right(ends, at)].role, bisect_right(marks, at) % 2 == 1)
        for at, end in pairwise(sorted({0, *ends, *marks}))
    ]


def trained_pieces(
    tokenizer: Tokenizer, ids: Sequence[int], spans: Sequence[Span], whole: Trajectory | None
) -> list[Piece]:
    """The text of one side of a pair as training sees it, decoded from its tokens.

    ``spans`` are the pair's spans, and ``whole`` its trajectory, if it is there: tokens that only
    the pair leaves out of the loss are masked. Raises InputError when spans do not cover the ids.
    """
    return [
        Piece(tokenizer.decode(list(ids[start:end]), skip_special_tokens=False), role)
        for start, end, role in _roles(len(ids), spans, whole)
    ]


def tokens(
    tokenizer: Tokenizer, ids: Sequence[int], spans: Sequence[Span], whole: Trajectory | None
) -> list[Token]:
    """Every token with its role, and the probability with which ``whole`` sampled it."""
    logprobs = whole.logprobs if whole is not None else ()
    result = []
    for start, end, role in _roles(len(ids), spans, whole):
        for place in range(start, end):
            logprob = logprobs[place] if place < len(logprobs) else None
            probability = None if logprob is None else math.exp(min(logprob, 0.0))
            text = tokenizer.decode([ids[place]], skip_special_tokens=False)
            result.append(Token(text, role, ids[place], probability))
    return result


def _roles(
    length: int, spans: Sequence[Span], whole: Trajectory | None
) -> list[tuple[int, int, Role]]:
    """Ranges of one role each.

    The spans of ``whole`` are used up to ``length``, where a step pair ends.
    """
    problem = cover_error(spans, length)
    if problem:
        raise InputError(f"token spans: {problem}")
    result: list[tuple[int, int, Role]] = []
    for start, end, writer in spans:
        if writer == "model" or whole is None or not whole.token_spans:
            result.append((start, end, _ROLE[writer]))
            continue
        for first, last, writer_of_part in whole.token_spans:
            first, last = max(first, start), min(last, end)
            if first < last:
                role: Role = "observed" if writer_of_part == "observation" else "masked"
                result.append((first, last, role))
    return result
