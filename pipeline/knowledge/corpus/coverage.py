"""Gold coverage: for which questions the corpus holds what their answers need.

Input: questions by split, and the passages of a corpus in one pass. Output: for each split and data
set, how many questions the corpus cannot answer, and their ids. Memory is in proportion to the
questions.

A question with gold passages is covered if the corpus holds each of them: passages with its title,
compared without case, that have at least half of its distinct words (`HELD`), so that another
edition of the article counts and another paragraph of it does not. A question without gold passages
is covered if one passage has an answer as whole words, as cover exact match finds it. This is an
upper bound, because short answers occur anywhere. Yes and no are not looked up, and neither are
answers without a word: such a question is unchecked, and counts as covered.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from pipeline.core.answer_metrics import normalize
from pipeline.core.records import Question

ADDED = "added_gold.json"  # of the stage ``corpus``: the gold passages that it added
COVERAGE = "coverage.json"  # of the stage ``coverage``
HELD = 0.5  # the share of the words of a gold passage that the corpus must have under its title
_CUT = 100  # words of the passage before that are read with a passage, which may cut a gold passage
_TITLES_NAMED = 20
Passage = tuple[str, str]  # title and text


@dataclass(slots=True)
class CoverageRow:
    """The questions of a data set in a split.

    Attributes:
        n: number of questions.
        by_passage, by_answer: questions looked up by gold passages, and by answers; the others are
            unchecked.
        without_passage, without_answer: those of them that are not covered.
    """

    split: str
    dataset: str
    n: int = 0
    by_passage: int = 0
    by_answer: int = 0
    without_passage: int = 0
    without_answer: int = 0

    @property
    def uncovered(self) -> int:
        """Questions whose gold passages or answers the corpus lacks."""
        return self.without_passage + self.without_answer


class GoldCoverage:
    """Finds gold passages and answers among passages, which are given one after the other."""

    def __init__(self, questions: Mapping[str, Iterable[Question]]) -> None:
        """``questions`` are the questions of each split."""
        # Needs are numbered: a gold passage in all readings, or a list of answers.
        self._numbers: dict[tuple[Passage, ...] | tuple[str, ...], int] = {}
        self._titles: dict[int, str] = {}  # of gold passages
        self._by_title: dict[str, list[tuple[int, str]]] = {}  # normalized gold texts
        self._by_word: dict[str, list[tuple[int, str]]] = {}  # answers by their longest word
        self._before: tuple[str, list[str]] = ("", [])  # title and last words of a passage
        self._rows: dict[tuple[str, str], CoverageRow] = {}
        self._questions: list[tuple[CoverageRow, str, tuple[int, ...]]] = []  # ids and needs
        for split, of_split in questions.items():
            for question in of_split:
                self._add(split, question)
        self._missing = set(self._numbers.values())

    def _add(self, split: str, question: Question) -> None:
        place = split, question.dataset
        row = self._rows.setdefault(place, CoverageRow(*place))
        row.n += 1
        passages, needs = gold_readings(question), []
        row.by_passage += bool(passages)
        for readings in passages:
            needs.append(number := self._numbers.setdefault(readings, len(self._numbers)))
            if number not in self._titles:
                self._titles[number] = readings[0][0]
                for title, text in readings:
                    gold = (number, f" {normalize(text)} ")
                    self._by_title.setdefault(_key(title), []).append(gold)
        texts = wanted_texts(question)
        if texts and not passages:
            row.by_answer += 1
            known = len(self._numbers)
            needs.append(number := self._numbers.setdefault(texts, known))
            for text in texts if number == known else ():
                longest = max(text.split(), key=len)
                self._by_word.setdefault(longest, []).append((number, f" {text} "))
        self._questions.append((row, question.question_id, tuple(needs)))

    def look(self, title: str, text: str) -> None:
        """Look for gold passages and answers in the next passage."""
        self.find_gold(title, text)
        if not self._by_word:
            return
        plain = normalize(f"{title} {text}")
        for word in self._by_word.keys() & set(plain.split()):
            wanted = [(n, answer) for n, answer in self._by_word[word] if n in self._missing]
            self._missing -= {n for n, answer in wanted if answer in f" {plain} "}
            if left := [(n, answer) for n, answer in wanted if n in self._missing]:
                self._by_word[word] = left
            else:
                del self._by_word[word]

    def find_gold(self, title: str, text: str) -> bool:
        """Look for gold passages alone; returns whether a missing one was found."""
        key = _key(title)
        wanted = [gold for gold in self._by_title.get(key, ()) if gold[0] in self._missing]
        if not wanted:
            return False
        own = normalize(text).split()
        words = [*(self._before[1] if self._before[0] == key else ()), *own]
        self._before = (key, words[-max(_CUT, *(len(gold.split()) for _, gold in wanted)) :])
        present, whole, found = set(words), f" {' '.join(own)} ", set()
        for number, gold in wanted:
            needed = set(gold.split())
            if len(needed & present) >= HELD * len(needed) or whole in gold:
                found.add(number)
        self._missing -= found
        return bool(found)

    def rows(self) -> list[CoverageRow]:
        """The counts of each split and data set, in the order of the questions."""
        rows = list(self._rows.values())
        for row in rows:
            row.without_passage = row.without_answer = 0
        for row, _, needs in self._lacking():
            row.without_passage += needs[0] in self._titles
            row.without_answer += needs[0] not in self._titles
        return rows

    def uncovered(self) -> dict[str, list[str]]:
        """The ids of the questions of each split that are not covered."""
        ids: dict[str, list[str]] = {split: [] for split, _ in self._rows}
        for row, question_id, _ in self._lacking():
            ids[row.split].append(question_id)
        return ids

    def missing_titles(self) -> list[str]:
        """The titles of the first gold passages that the corpus lacks."""
        titles = dict.fromkeys(t for n, t in self._titles.items() if n in self._missing)
        return list(titles)[:_TITLES_NAMED]

    def _lacking(self) -> Iterator[tuple[CoverageRow, str, tuple[int, ...]]]:
        return (one for one in self._questions if not self._missing.isdisjoint(one[2]))


def gold_readings(question: Question) -> list[tuple[Passage, ...]]:
    """The gold passages of a question, each with all readings of its title and text.

    A decomposition names them. Else they are the pieces of evidence, "Title: text", if all have a
    title; a title may have a colon itself.
    """
    if question.decomposition and all(part.support_title for part in question.decomposition):
        parts = question.decomposition
        return [((part.support_title or "", part.support_text or ""),) for part in parts]
    readings = [tuple(_splits(piece)) for piece in question.evidence]
    return readings if all(readings) else []


def wanted_texts(question: Question) -> tuple[str, ...]:
    """The normalized answers that a passage can state: those with a word besides yes and no."""
    return tuple(t for t in map(normalize, question.answers) if t not in ("", "yes", "no"))


def _splits(piece: str) -> Iterator[Passage]:
    at = piece.find(": ")
    while at > 0:
        yield piece[:at], piece[at + 2 :]
        at = piece.find(": ", at + 1)


def _key(title: str) -> str:
    """A title without case, HTML entities (HotpotQA) and repeated white space."""
    return " ".join(html.unescape(title).casefold().split())


def coverage_lines(rows: Iterable[CoverageRow]) -> Iterator[str]:
    """A sentence for each split."""
    for split, of_split in groupby(rows, key=lambda row: row.split):
        counts = ", ".join(
            f"{row.uncovered:,} of {row.n:,} {row.dataset} ({row.uncovered / row.n:.1%})"
            for row in of_split
        )
        yield f"data.{split}: questions whose gold passages or answers the corpus lacks: {counts}"
