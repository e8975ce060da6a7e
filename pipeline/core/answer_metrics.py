"""Answer metrics: exact match, token F1 (TeaRAG, arXiv 2511.05385, eq. 5) and cover exact match.

All three compare a predicted answer with the gold answers, aliases included, after SQuAD
normalization, and return the best score. Unlike SQuAD's script, it first brings a text to Unicode
form NFC, since "é" may be one character or two, and it deletes the punctuation of all scripts, with
typographic apostrophes and dashes, and characters without width: 30 of 5,745 gold answers of public
data sets are spelled with one. A missing answer, and an answer or gold answer that is empty after
normalization, scores 0; otherwise an article alone would match every answer.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from pipeline.core.records import HopType, Trajectory
from pipeline.core.text import spaced

CoverMatch = Literal["words", "substring"]


class _Punctuation(dict[int, str | int]):
    """A table for `str.translate` that is filled as characters occur.

    Punctuation becomes ``replacement``, and characters without width (category Cf) are deleted.
    Apostrophes that Unicode counts as letters or accents and the minus sign are punctuation too.
    """

    def __init__(self, replacement: str) -> None:
        self._replacement = replacement

    def __missing__(self, code: int) -> str | int:
        category = unicodedata.category(chr(code))
        found = category[0] == "P" or chr(code) in f"{string.punctuation}ʹʻʼʽˈ´−"
        self[code] = self._replacement if found else "" if category == "Cf" else code
        return self[code]


_DELETED, _SPACED = _Punctuation(""), _Punctuation(" ")
_ARTICLES = re.compile(r"\b(a|an|the)\b")

# Measures of answers: title, factor and decimals that tables show.
OF_ANSWERS = {
    "em": ("EM", 100, 1),
    "f1": ("F1", 100, 1),
    "cem": ("CEM", 100, 1),
    "words": ("words of the answer", 1, 2),
}


def normalize(text: str) -> str:
    """SQuAD normalization after Unicode form NFC.

    Lower-case, delete punctuation, drop a/an/the, collapse white space; the steps run in this
    order. In scripts without spaces each character is a token (`spaced`).
    """
    return _normalized(text, _DELETED)


def _normalized(text: str, punctuation: _Punctuation) -> str:
    plain = unicodedata.normalize("NFC", text).lower().translate(punctuation)
    return " ".join(spaced(_ARTICLES.sub(" ", plain)).split())


def _spaced_punctuation(text: str) -> str:
    """The normalization of `normalize`, except that punctuation becomes a space."""
    return _normalized(text, _SPACED)


def exact_match(answer: str | None, golds: Sequence[str]) -> float:
    """1 when the answer equals a gold answer after normalization, else 0."""
    return _best(answer, golds, lambda predicted, gold: float(predicted == gold))


def outcome(trajectory: Trajectory, measure: Callable[[str | None, list[str]], float]) -> float:
    """The reward from outside, where there is one, else the ``measure`` of the answer."""
    given = trajectory.reward
    return measure(trajectory.answer, trajectory.answers) if given is None else given


def f1(answer: str | None, golds: Sequence[str]) -> float:
    """The best token F1 over the gold answers, in [0, 1]; repeated tokens count (eq. 5)."""
    return _best(answer, golds, _token_f1)


def cover_exact_match(
    answer: str | None, golds: Sequence[str], match: CoverMatch = "words"
) -> float:
    """1 when a gold answer occurs in the answer, else 0.

    ``match`` is the setting ``evaluation.cem``. words: as consecutive whole words, so that "10"
    does not match "2010", nor "no" "know". substring: as in the released code of HiPRAG (arXiv
    2510.07794), anywhere in the answer, after punctuation became a space: "American" matches
    "Americans", and "Jean Paul" "Jean-Paul".
    """
    if match == "substring":
        return _best(answer, golds, lambda text, gold: float(gold in text), _spaced_punctuation)
    return _best(answer, golds, lambda text, gold: float(f" {gold} " in f" {text} "))


def answer_measures(
    answer: str | None, golds: Sequence[str], match: CoverMatch
) -> dict[str, float]:
    """``em``, ``f1`` and ``cem``."""
    cem = cover_exact_match(answer, golds, match)
    return {"em": exact_match(answer, golds), "f1": f1(answer, golds), "cem": cem}


def answer_words(answer: str | None) -> int:
    """The number of words of an answer, 0 without one; in scripts without spaces, of characters."""
    return len(spaced(answer or "").split())


def _best(
    answer: str | None,
    golds: Sequence[str],
    score: Callable[[str, str], float],
    normalization: Callable[[str], str] = normalize,
) -> float:
    predicted = normalization(answer or "")
    if not predicted:
        return 0.0
    return max((score(predicted, gold) for gold in map(normalization, golds) if gold), default=0.0)


def _token_f1(predicted: str, gold: str) -> float:
    predicted_tokens, gold_tokens = predicted.split(), gold.split()
    common = sum((Counter(predicted_tokens) & Counter(gold_tokens)).values())
    # 2 PR / (P + R) as one division, so that 4/5 is the double nearest to 0.8.
    return 2 * common / (len(predicted_tokens) + len(gold_tokens))


ALL = "all"  # the mean over data sets, each with equal weight
ALL_QUESTIONS = "all-questions"  # the mean over the questions of all data sets
HOP_AVERAGES: Mapping[HopType, str] = {"single": "single-hop", "multi": "multi-hop"}
_AVERAGES = frozenset({*HOP_AVERAGES.values(), ALL, ALL_QUESTIONS})
# In tables and sentences.
AVERAGE_TITLES = {
    ALL: "average over data sets",
    ALL_QUESTIONS: "average over questions",
    **{name: f"average over {name} data sets" for name in HOP_AVERAGES.values()},
}
_HOP_COUNT = re.compile(r"(\d+)-hop")


def is_average(dataset: str) -> bool:
    """Whether this names an average over several data sets."""
    return dataset in _AVERAGES or hop_count(dataset) is not None


def hop_count(dataset: str) -> int | None:
    """The number of hops of an average such as "2-hop"; None for other names."""
    found = _HOP_COUNT.fullmatch(dataset)
    return None if found is None else int(found[1])


def hop_count_name(hops: int) -> str:
    """The name of the average over the questions with this number of hops."""
    return f"{hops}-hop"
