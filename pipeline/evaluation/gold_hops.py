"""Hops of a question, derived from its gold annotations.

Input: a trajectory (question, gold answers, golden evidence) and, if available, its `Question`.
Output: a list of `GoldHop` in an order in which the hops can be solved. The annotations depend on
the data set:

- MuSiQue: the decomposition gives question, answer and supporting title of every hop.
- HotpotQA, 2WikiMultiHopQA, and MuSiQue without its `Question`: golden evidence, "Title: sentence".
  Pieces of one title form one hop. Titles that the question names come first, and the piece with
  the gold answer comes last. If a piece names the title of another piece, and the question does not
  name that title, the title is the answer of the first piece. The hops of a comparison question
  have sentences but no answer.
- NQ, PopQA, TriviaQA: one hop with the gold answer.
- Bamboogle and all questions without evidence: the last hop has the gold answer, and the hops
  before it are empty. The number of hops is the question's, or two for a multi-hop question that
  states none.

Only distinctive answers are used. An answer that is yes or no, or that the question names ("Which
is longer, the Ime or the Ost?"), occurs in almost every retrieved text and shows nothing.

Names are matched by `SearchableText` as whole words, so "10" does not occur in "2010". Each text is
normalized twice: once as the answer metrics do, with punctuation deleted ("U.S." becomes "us"), and
once with every punctuation mark replaced by a space ("Vell's" becomes "vell s"). A name matches if
it occurs in either form; deletion alone would miss every name before an apostrophe or a dash.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from pipeline.core.answer_metrics import normalize
from pipeline.core.records import HopType, Question, Trajectory
from pipeline.core.text import QUALIFIER, WORD

_REFERENCE = re.compile(r"#(\d+)")
_DEFAULT_HOPS: dict[HopType, int] = {"single": 1, "multi": 2, "unknown": 1}


@dataclass(frozen=True, slots=True)
class GoldHop:
    """Annotations of one hop; a field is empty where the data set does not provide it.

    Attributes:
        answers: distinctive spellings of the hop's answer.
        subjects: names of the hop's subject; an item that states the answer contains one of them.
        query_names: names of which a query for the hop contains at least one.
        statements: sentences that must be retrieved where no answer is known.
    """

    answers: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    query_names: tuple[str, ...] = ()
    statements: tuple[str, ...] = ()

    @property
    def checkable(self) -> bool:
        """Whether retrieved text can be checked for this hop."""
        return bool(self.answers or self.statements)


def gold_hops(trajectory: Trajectory, question: Question | None = None) -> list[GoldHop]:
    """Return the hops of a trajectory's question, at least one; empty hops precede the last."""
    text = SearchableText(trajectory.question)
    gold = distinctive_answers(trajectory.answers, text) if trajectory.answers else ()
    if question is not None and question.decomposition:
        hops = _from_decomposition(question, gold, text)
    elif trajectory.hop != "single" and trajectory.evidence:
        hops = _from_evidence(trajectory.evidence, gold, text)
    else:
        hops = [GoldHop(answers=gold)]
    count = (question.hops if question is not None else None) or _DEFAULT_HOPS[trajectory.hop]
    return [*hops[:-1], *[GoldHop()] * (count - len(hops)), hops[-1]]


def distinctive_answers(answers: Sequence[str], question: SearchableText) -> tuple[str, ...]:
    """The spellings of an answer that the question does not name; empty for yes and no.

    The result is also empty when the question names the first spelling.
    """
    if normalize(answers[0]) in ("yes", "no") or question.contains(answers[0]):
        return ()
    return tuple(answer for answer in answers if not question.contains(answer))


def _from_decomposition(
    question: Question, gold: tuple[str, ...], text: SearchableText
) -> list[GoldHop]:
    hops = []
    parts = question.decomposition
    for part in parts:
        references = [int(number) for number in _REFERENCE.findall(part.question)]
        earlier = tuple(parts[n - 1].answer for n in references if 0 < n <= len(parts))
        title = (strip_qualifier(part.support_title),) if part.support_title else ()
        # A query for a hop without references is expected to contain the supporting title only if
        # the question names that title: the paragraph titled "Somalis" may be about Djibouti.
        named_title = [
            name
            for name in title
            if text.contains(name) or SearchableText(part.question).contains(name)
        ]
        hops.append(
            GoldHop(
                answers=distinctive_answers([part.answer], text),
                subjects=tuple(dict.fromkeys((*earlier, *title))),
                query_names=tuple(dict.fromkeys((*earlier, *title)) if earlier else named_title),
            )
        )
    return [*hops[:-1], replace(hops[-1], answers=gold)]


def _from_evidence(
    evidence: Sequence[str], gold: tuple[str, ...], text: SearchableText
) -> list[GoldHop]:
    pieces: dict[str, list[str]] = {}
    for number, piece in enumerate(evidence):
        title, colon, sentence = piece.partition(": ")
        key = title if colon else f"\0{number}"  # a piece without a title forms a hop by itself
        pieces.setdefault(key, []).append(sentence if colon else piece)
    titles = {key: strip_qualifier(key) for key in pieces if not key.startswith("\0")}
    texts = {key: SearchableText(*sentences) for key, sentences in pieces.items()}
    last = [key for key in pieces if texts[key].contains_any(gold)][-1:]
    order = sorted(pieces, key=lambda key: (key in last, not text.contains(titles.get(key, ""))))
    links = {
        key: tuple(
            title
            for other, title in titles.items()
            if other != key and texts[key].contains(title) and not text.contains(title)
        )
        for key in order
    }
    linked = {name for names in links.values() for name in names}
    hops = []
    for key in order:
        title = titles.get(key, "")
        subjects = (title,) if title else ()
        hops.append(
            GoldHop(
                answers=gold if key in last else links[key],
                subjects=subjects,
                query_names=subjects if title in linked or text.contains(title) else (),
                statements=tuple(pieces[key]),
            )
        )
    return hops


_MARKS = re.compile(r"[\W_]+")


class SearchableText:
    """Pieces of text in which names are searched; a match never spans two pieces."""

    __slots__ = ("_deleted", "_spaced")

    def __init__(self, *pieces: str) -> None:
        forms = [_normalized_forms(piece) for piece in pieces]
        self._deleted, self._spaced = (
            " " + " \0 ".join(form[number] for form in forms) + " " for number in (0, 1)
        )

    def contains(self, name: str) -> bool:
        """Whether ``name`` occurs as consecutive whole words; False for an empty name."""
        deleted, spaced = _forms_of_name(name)
        return (
            bool(deleted)
            and (_contains_words(self._deleted, deleted) or _contains_words(self._spaced, deleted))
        ) or (bool(spaced) and _contains_words(self._spaced, spaced))

    def contains_any(self, names: tuple[str, ...]) -> bool:
        """Whether any of ``names`` occurs."""
        return any(self.contains(name) for name in names)


def strip_qualifier(title: str) -> str:
    """A title without its trailing parenthesis: "Frozen (2013 film)" becomes "Frozen"."""
    return QUALIFIER.sub("", title).strip() or title.strip()


def distinctive_words(statement: str, title: str) -> tuple[str, ...]:
    """Names and numbers of a statement that its title does not contain, without repetitions.

    These are words with a capital letter or a digit. The first word needs a digit, because its
    capital letter may only mark the start of the sentence.
    """
    title_text = SearchableText(title)
    words = [
        word
        for position, word in enumerate(WORD.findall(statement))
        if any(c.isdigit() for c in word) or (position and word[0].isupper())
    ]
    return tuple(dict.fromkeys(word for word in words if not title_text.contains(word)))


def _contains_words(text: str, name: str) -> bool:
    return f" {name} " in text


def _normalized_forms(text: str) -> tuple[str, str]:
    return normalize(text), normalize(
        _MARKS.sub(" ", unicodedata.normalize("NFC", text))
    )  # marks may be accents


_forms_of_name = lru_cache(maxsize=8192)(_normalized_forms)  # names recur, texts do not
