"""Answer metrics: exact match, token F1 (TeaRAG, arXiv 2511.05385, eq. 5) and cover exact match.

All three compare a predicted answer with the gold answers, aliases included, after SQuAD
normalization, and return the best score. Unlike SQuAD's script, it first brings a text to Unicode
form NFC: "é" may be one character or two, and both spellings are the same answer. A missing answer,
and an answer or gold answer that is empty after normalization, scores 0; otherwise an article alone
would match every answer.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from pipeline.core.records import HopType, Trajectory
from pipeline.core.text import spaced

_PUNCTUATION = str.maketrans(
    "", "", string.punctuation + "、。〈〉《》「」『』【】〔〕！（），．：；？"
)
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

    Lower-case, delete ASCII and East Asian punctuation, drop a/an/the, collapse white space; the
    steps run in this order. In scripts without spaces each character is a token (`spaced`).
    """
    plain = unicodedata.normalize("NFC", text).lower().translate(_PUNCTUATION)
    return " ".join(spaced(_ARTICLES.sub(" ", plain)).split())


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


def cover_exact_match(answer: str | None, golds: Sequence[str]) -> float:
    """1 when a gold answer occurs in the answer as consecutive whole words, else 0.

    Substrings of words do not count: "10" must not match "2010", nor "no" match "know".
    """
    return _best(answer, golds, lambda predicted, gold: float(f" {gold} " in f" {predicted} "))


def answer_words(answer: str | None) -> int:
    """The number of words of an answer, 0 without one; in scripts without spaces, of characters."""
    return len(spaced(answer or "").split())


def _best(answer: str | None, golds: Sequence[str], score: Callable[[str, str], float]) -> float:
    predicted = normalize(answer or "")
    if not predicted:
        return 0.0
    return max((score(predicted, gold) for gold in map(normalize, golds) if gold), default=0.0)


def _token_f1(predicted: str, gold: str) -> float:
    predicted_tokens, gold_tokens = predicted.split(), gold.split()
    common = sum((Counter(predicted_tokens) & Counter(gold_tokens)).values())
    # 2 PR / (P + R) as one division, so that 4/5 is the double nearest to 0.8.
    return 2 * common / (len(predicted_tokens) + len(gold_tokens))


ALL = "all"
HOP_AVERAGES: Mapping[HopType, str] = {"single": "single-hop", "multi": "multi-hop"}
_AVERAGES = frozenset({*HOP_AVERAGES.values(), ALL})
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
