"""Questions and sub-questions with the documents that answer them.

Input: a question file in any format that `pipeline.knowledge.corpus` reads, and the chunks of a
corpus. Output: the questions and, for data sets with a decomposition, the sub-questions, with
``#n`` replaced by the gold answers of earlier hops.

A gold passage has a title and a text. It is matched to the document whose chunks are in that text.
If there is none, it is matched to the chunks of its title that contain its text (a sentence), and
else to all documents of its title, if it has one. A passage that matches several documents counts
as retrieved with any of them, and passages that match the same documents count once. A question
without gold passages has one: any document that states an answer, unless that is yes or no.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.core.answer_metrics import normalize
from pipeline.core.errors import InputError, Place
from pipeline.core.records import Chunk, ContextItem, Question
from pipeline.knowledge.corpus.coverage import wanted_texts
from pipeline.knowledge.corpus.questions.load import Notes, dataset_of, read_questions
from pipeline.knowledge.corpus.questions.passages import (
    Readings,
    gold_passages,
    hop_passages,
)
from pipeline.knowledge.graph.locate import Locator
from pipeline.training.sft_data.templates import fill, fluent

GoldPassage = frozenset[str]  # ids of the documents that match one gold passage


@dataclass(frozen=True, slots=True)
class RecallQuery:
    """A question or sub-question; ``question_id`` is the id of the whole question."""

    question_id: str
    query: str
    gold: tuple[GoldPassage, ...]


@dataclass(frozen=True, slots=True)
class RecallQuestions:
    """Questions whose gold passages are all in the corpus, and their sub-questions.

    ``skipped`` is the number of questions with a gold passage that is not in the corpus, or without
    any and answered by yes or no. ``by_answer`` is the number of questions without gold passages,
    of which no document states an answer of ``unstated``. ``notes`` has the rows of the file that
    were left out.
    """

    dataset: str
    questions: list[RecallQuery]
    sub_questions: list[RecallQuery]
    skipped: int
    by_answer: int = 0
    unstated: int = 0
    notes: Notes = field(default_factory=Notes)


def read_recall_questions(
    path: Path, dataset: str | None, chunks: Sequence[Chunk], limit: int | None = None
) -> RecallQuestions:
    """Read the questions whose gold passages are all in the corpus, at most ``limit`` of them.

    If ``dataset`` is None, it is inferred from the fields of the first record. Raises InputError
    when the file is broken, or when no question remains.
    """
    dataset = dataset or dataset_of(path)
    locator, texts = Locator(chunks), list[tuple[str, str]]()
    by_answer = unstated = 0
    questions: list[RecallQuery] = []
    sub_questions: list[RecallQuery] = []
    skipped, notes = 0, Notes()
    for row, question in read_questions(path, dataset, notes=notes):
        with Place(path, row.place):
            passages = gold_passages(row, question)
        gold = tuple(dict.fromkeys(_matching_documents(passage, locator) for passage in passages))
        wanted = () if passages else wanted_texts(question)
        if wanted:
            # A document states an answer in title or text, as cover exact match finds it.
            texts = texts or [(c.doc_id, f" {normalize(f'{c.title} {c.text}')} ") for c in chunks]
            found = (name for name, text in texts if any(f" {one} " in text for one in wanted))
            gold = (frozenset(found),)
            by_answer += 1
            unstated += not gold[0]
        elif not gold or not all(gold):
            skipped += 1
            continue
        questions.append(RecallQuery(question.question_id, question.question, gold))
        sub_questions += _sub_questions(question, locator)
        if len(questions) == limit:
            break
    if not questions:
        raise InputError.at(
            path,
            f"the corpus lacks gold passages of all {skipped} questions, or they have none and the "
            "answer yes or no; give the corpus of these questions",
        )
    return RecallQuestions(dataset, questions, sub_questions, skipped, by_answer, unstated, notes)


def _sub_questions(question: Question, locator: Locator) -> list[RecallQuery]:
    """One query per hop; empty if a placeholder has no value or the corpus lacks a passage."""
    queries = []
    answers: list[str] = []
    for part, passage in zip(question.decomposition, hop_passages(question), strict=True):
        text = fill(part.question, answers)
        answers.append(part.answer)
        if text is None or not (gold := _matching_documents((passage,), locator)):
            return []
        queries.append(RecallQuery(question.question_id, fluent(text), (gold,)))
    return queries


def _matching_documents(readings: Readings, locator: Locator) -> GoldPassage:
    chunks: list[Chunk] = []
    for reading in readings:
        if text := " ".join(reading.text.split()):
            same_title = locator.by_title(reading.title)
            chunks += locator.of_text(reading.title, reading.text) or [
                chunk for chunk in same_title if text in chunk.text
            ]
    # Without its text, the longest title that the corpus has is the likeliest.
    titles = [reading.title for reading in reversed(readings) if reading.title and not chunks]
    chunks = chunks or next(filter(None, map(locator.by_title, titles)), [])
    return frozenset(chunk.doc_id for chunk in chunks)


DocumentOf = Callable[[ContextItem], str]  # maps a retrieved item to its document id


# The ranking of documents is the order in which they first appear among the items. A chunk counts
# for its document, and a triplet or hyperedge for the document of the chunk that it was extracted
# from (its provenance). Strict ranking uses chunks only, that is, passages that the model can read.
#     recall@k = |gold passages among the first k documents| / |gold passages|


def ranked_documents(
    items: Sequence[ContextItem], document_of: DocumentOf, *, strict: bool = False
) -> list[str]:
    """Ids of the distinct documents of ``items``, in order of first appearance."""
    counted = [item for item in items if item.kind == "chunk" or not strict]
    return list(dict.fromkeys(document_of(item) for item in counted))


def recall_at(ranking: Sequence[str], gold: Sequence[GoldPassage], k: int) -> float:
    """Share of gold passages among the first ``k`` documents, from 0 to 1."""
    top = set(ranking[:k])
    return sum(not top.isdisjoint(passage) for passage in gold) / len(gold)
