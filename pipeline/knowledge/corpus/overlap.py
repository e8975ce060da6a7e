"""Find training questions that equal or nearly equal a held-out question (test-set contamination).

Input: training questions and held-out questions. Output: the overlapping pairs. Equal questions of
one set are found too.

An *exact* overlap has equal token sequences (`core.text.tokenize`). A *near* overlap has a weighted
Jaccard similarity of the token sets of at least ``threshold``:

    J(a, b) = sum_{t in a and b} w(t) / sum_{t in a or b} w(t),   w(t) = log(1 + N / n(t))

where n(t) of the N questions contain token t. The weights matter: "Where was X born?" and "Where
was Y born?" share all tokens but one and are different questions. Unweighted Jaccard similarity and
token 8-grams both count such pairs as duplicates in templated data (2WikiMultiHopQA, PopQA), and
miss a reworded question about the same entities.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.core.records import Question
from pipeline.core.text import spaced, tokenize

THRESHOLD = 0.8


@dataclass(frozen=True, slots=True)
class Overlap:
    """A training question and the held-out question that it repeats."""

    question_id: str  # of the training question
    heldout_id: str
    kind: Literal["exact", "near"]
    similarity: float  # weighted Jaccard similarity in [threshold, 1]
    question: str  # text of the training question
    heldout: str  # text of the held-out question


def find_overlaps(
    training: Sequence[Question], heldout: Sequence[Question], threshold: float = THRESHOLD
) -> list[Overlap]:
    """For each training question with an overlap, the most similar held-out question.

    The result equals a comparison of all pairs, but only pairs with a shared rare token are
    compared. A pair that reaches the threshold shares one of the heaviest tokens of the training
    question: the remaining tokens weigh less than threshold * total.
    """
    texts = [tuple(tokenize(spaced(one.question))) for one in (*training, *heldout)]
    frequency = Counter(token for text in texts for token in set(text))
    weight = {token: math.log(1 + len(texts) / n) for token, n in frequency.items()}
    heldout_sets = [frozenset(text) for text in texts[len(training) :]]
    # math.fsum: sets have another order in every process, and a plain sum depends on it.
    totals = [math.fsum(weight[token] for token in tokens) for tokens in heldout_sets]
    exact = {text: n for n, text in reversed(list(enumerate(texts[len(training) :])))}
    holders: dict[str, list[int]] = {}
    for number, tokens in enumerate(heldout_sets):
        for token in tokens:
            holders.setdefault(token, []).append(number)

    found: list[tuple[Question, Question, Literal["exact", "near"], float]] = []
    for question, text in zip(training, texts, strict=False):
        if text in exact:
            found.append((question, heldout[exact[text]], "exact", 1.0))
            continue
        question_tokens = frozenset(text)
        total = math.fsum(weight[token] for token in question_tokens)
        candidates: dict[int, None] = {}
        rest = total
        for token in sorted(question_tokens, key=lambda t: (-weight[t], t)):
            if rest < threshold * total:
                break
            candidates.update(dict.fromkeys(holders.get(token, ())))
            rest -= weight[token]
        best, best_number = 0.0, -1
        for number in candidates:
            common = question_tokens & heldout_sets[number]
            shared = math.fsum(weight[token] for token in common)
            similarity = shared / (total + totals[number] - shared)
            if similarity > best:
                best, best_number = similarity, number
        if best >= threshold:
            found.append((question, heldout[best_number], "near", round(best, 4)))
    return [
        Overlap(
            repeat.question_id, held.question_id, kind, similarity, repeat.question, held.question
        )
        for repeat, held, kind, similarity in found
    ]


def repeated_questions(questions: Sequence[Question]) -> dict[str, str]:
    """Ids of questions with the tokens of an earlier one, and the id of the first such question."""
    first: dict[tuple[str, ...], str] = {}
    found = {}
    for question in questions:
        earlier = first.setdefault(tuple(tokenize(spaced(question.question))), question.question_id)
        if earlier != question.question_id:
            found[question.question_id] = earlier
    return found
