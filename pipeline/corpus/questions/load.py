"""Load questions and context paragraphs from the files of seven data sets, or of any origin.

Input: a file as the data set's authors publish it, or as Search-R1, FlashRAG or PruneRAG re-publish
it; under any other name the questions of `pipeline.corpus.questions.own`. Output: `Question`
records with answers, aliases and golden evidence (TeaRAG, section 5), and the context paragraphs as
`Document`s.

Three shapes are read for every data set besides its native one: ``question`` with
``golden_answers`` (Search-R1, FlashRAG), ``Question`` with ``golden_context`` (PruneRAG), and, for
contexts only, ``query`` with retrieved ``context``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from pipeline.core.answer_metrics import normalize
from pipeline.core.errors import InputError
from pipeline.core.records import Question
from pipeline.corpus.overlap import repeated_questions
from pipeline.corpus.questions import multihop, shared, single
from pipeline.corpus.questions.own import ANSWERS, has_answer, own_question
from pipeline.corpus.questions.republished import golden_fields, with_answers
from pipeline.corpus.questions.select import Selection, choose, matches
from pipeline.corpus.raw_files import read_rows
from pipeline.corpus.raw_records import Document, RawRecord, brief

__all__ = ["DATASETS", "load_questions", "read_contexts", "read_questions"]

_LOOKED_AT = 20  # records that tell the data set of a file
OWN = "questions"  # the name of questions that say no other
WITHOUT_EVIDENCE = "multi-hop questions without golden evidence"
UNKNOWN_HOPS = "questions of unknown hops without golden evidence"
EMPTY_ANSWERS = "answers of articles and punctuation alone, beside others"
REPEATED = "questions with the text of an earlier question of the set"
UNANSWERED = "rows without an answer, which are left out"
UNANSWERABLE = "questions whose answers are articles and punctuation alone"

_PARSERS: dict[str, Callable[[RawRecord], Question]] = {
    "musique": multihop.musique,
    "hotpotqa": multihop.hotpotqa,
    "2wiki": multihop.wiki2,
    "nq": single.nq,
    "popqa": single.popqa,
    "triviaqa": single.triviaqa,
    "bamboogle": single.bamboogle,
}
_CONTEXTS: dict[str, Callable[[RawRecord], list[Document]]] = {
    "musique": multihop.musique_contexts,
    "hotpotqa": multihop.hotpotqa_contexts,
    "2wiki": multihop.hotpotqa_contexts,
    "nq": single.nq_contexts,
    "popqa": single.popqa_contexts,
}
DATASETS = (*_PARSERS, OWN)


@dataclass
class Notes:
    """Questions that `load_questions` left out, and its other notes.

    Attributes:
        counts: numbers by reason, counted over all questions that were read.
        unanswerable: place and answers of the questions whose answers normalize to nothing. Every
            prediction scores 0 on them.
        repeated: ids of questions with the text of an earlier question of the set, and its id.
    """

    counts: Counter[str] = field(default_factory=Counter)
    unanswerable: list[str] = field(default_factory=list)
    repeated: dict[str, str] = field(default_factory=dict)

    def count_repeats(self, questions: Sequence[Question]) -> None:
        """Note the repeated questions of a set, which may come from several files."""
        self.repeated = repeated_questions(questions)
        self.counts[REPEATED] = len(self.repeated)


def read_questions(path: Path, dataset: str) -> Iterator[tuple[RawRecord, Question]]:
    """Yield every record of a file with its question; question ids are unique within the file.

    Raises InputError with file, line or record number, and field when a record is malformed.
    """
    ids: set[str] = set()
    for row in read_rows(path):
        question = _parse(row, dataset)
        _number_repeat(question, ids)
        yield row, question


def first_questions(
    path: Path, dataset: str, records: int, required: Mapping[str, str | int] | None = None
) -> Iterator[tuple[RawRecord, Question | None]]:
    """Yield the first ``records`` records of a file with their questions.

    The question is None where a raw field differs from the filter ``required``, because such a
    record may be malformed, and where a row of own data has no answer. Raises InputError as
    `read_questions` does.
    """
    for row in islice(read_rows(path), records):
        matching = matches(row.value, required or {}, {}) and not _unanswered(row, dataset)
        yield row, _parse(row, dataset) if matching else None


def load_questions(
    path: Path,
    dataset: str,
    *,
    required: Mapping[str, str | int] | None = None,
    select: Selection = "first",
    limit: int | None = None,
    seed: int = 0,
    for_training: bool = False,
    notes: Notes | None = None,
) -> list[Question]:
    """Questions of one file that match the filter ``required``, at most ``limit`` of them by
    ``select``.

    ``required`` maps field names to required values. A name is looked up in the raw record first
    (``level: hard``), then in the `Question` (``hops: 3``). ``seed`` decides the random choice.
    ``for_training`` leaves out questions to which rewards give no signal: no supporting fact names
    a sentence of their context, or all their answers normalize to nothing. ``notes`` collects the
    counts and the other notes. Rows without an answer are left out and counted if the data set is
    not a published one. Raises InputError as `read_questions` does, and when no question is left.
    """
    notes = Notes() if notes is None else notes
    unanswerable: dict[str, str] = {}  # by question id
    unanswered: RawRecord | None = None
    ids: set[str] = set()
    unmet = dict(required or {})
    kept: list[Question] = []
    for row in read_rows(path):
        # Raw fields first: a record that the filter excludes may be malformed, for example a
        # MuSiQue question without an answer.
        if not matches(row.value, required or {}, unmet):
            continue
        if _unanswered(row, dataset):
            notes.counts[UNANSWERED] += 1
            unanswered = unanswered or row
            continue
        question = _parse(row, dataset)
        if not matches(question, required or {}, unmet, raw=row.value):
            continue
        notes.counts.update(row.notes)
        if for_training and row.notes[shared.NO_FACT_FOUND]:
            continue
        _number_repeat(question, ids)
        if not any(map(normalize, question.answers)):
            unanswerable[question.question_id] = str(row.error(brief(question.answers)))
            if for_training:
                continue
        kept.append(question)
        if select == "first" and len(kept) == limit:
            break
    if unanswered is not None and not kept:
        _parse(unanswered, dataset)  # raises the error of a row without an answer
    if unmet and not kept:
        fields = ", ".join(unmet)
        raise InputError.at(path, None, f"filter: no record has the field {fields}; correct it")
    if not kept and notes.counts[shared.NO_FACT_FOUND]:
        problem = (
            f"supporting_facts: {notes.counts[shared.NO_FACT_FOUND]} questions, and none has a "
            "fact that names a sentence of its context; use the edition with gold paragraphs"
        )
        raise InputError.at(path, None, problem)
    if not kept and unanswerable:
        first, *_ = unanswerable.values()
        raise InputError(f"{first}: {UNANSWERABLE} cannot be trained on, and the file has no other")
    if not kept:
        wanted = ", ".join(f"{field}: {value}" for field, value in (required or {}).items())
        raise InputError.at(path, None, f"filter: no question has {wanted}; correct the filter")
    chosen = choose(kept, select, limit, seed)
    notes.counts[WITHOUT_EVIDENCE] += sum(
        question.hop == "multi" and not question.evidence for question in chosen
    )
    notes.counts[UNKNOWN_HOPS] += sum(
        question.hop == "unknown" and not question.evidence for question in chosen
    )
    if not for_training:
        names = {question.question_id for question in chosen}
        unanswerable = {name: place for name, place in unanswerable.items() if name in names}
    notes.counts[UNANSWERABLE] += len(unanswerable)
    notes.unanswerable += unanswerable.values()
    return chosen


def read_contexts(path: Path, dataset: str) -> Iterator[Document]:
    """Yield the context paragraphs of the questions in a file.

    Raises InputError when the records have none.
    """
    for row in read_rows(path):
        if isinstance(metadata := row.find("metadata"), dict):  # FlashRAG's data sets
            row = row.checked_mapping(metadata, "metadata")
        documents = shared.contexts(row)
        if documents is None:
            if dataset not in _CONTEXTS:
                problem = f"{dataset} records of this shape have no context paragraphs"
                raise row.error(problem + "; name a corpus of documents instead")
            documents = _CONTEXTS[dataset](row)
        yield from documents


def _unanswered(row: RawRecord, dataset: str) -> bool:
    """Whether a record of no published data set has no answer: people write such rows."""
    return dataset not in _PARSERS and not has_answer(with_answers(row))


def _parse(row: RawRecord, dataset: str) -> Question:
    """The record's question. Answers that cannot score are removed if another answer can."""
    row, parser = with_answers(row), _PARSERS.get(dataset)
    question = own_question(row, dataset) if parser is None else shared.question(row, dataset)
    if question is None:
        question = _PARSERS[dataset](row)
    question = replace(question, **golden_fields(row))
    if scoring := [answer for answer in question.answers if normalize(answer)]:
        row.notes[EMPTY_ANSWERS] += len(question.answers) - len(scoring)
        question.answers = scoring
    return question


def _number_repeat(question: Question, ids: set[str]) -> None:
    """Append a number to a repeated question id: files without ids may repeat a question."""
    name, times = question.question_id, 1
    while question.question_id in ids:
        times += 1
        question.question_id = f"{name}-{times}"
    ids.add(question.question_id)


def dataset_of(path: Path) -> str:
    """The data set of a file, as in `DATASETS`.

    Raises InputError when the file is unreadable, or several data sets or none have such records.
    """
    for row in islice(read_rows(path), _LOOKED_AT):  # a row without an answer says nothing
        record = with_answers(row).value
        if dataset := _only_dataset(record, table=path.suffix in (".csv", ".tsv")):
            return dataset
    raise InputError.at(
        path,
        None,
        "the data set cannot be told from the first records; name it with --dataset, one of "
        f"{', '.join(DATASETS)}",
    )


def _only_dataset(record: Mapping[str, Any], *, table: bool) -> str | None:
    """The only data set whose published records have the fields of ``record``."""
    fields = record.keys()
    if {"question_id", "dataset", "question", "answers", "hop"} <= fields:
        return OWN
    if "golden_context" in fields:
        return None  # PruneRAG publishes every data set in this shape
    if "question_decomposition" in fields:
        return "musique"
    if "supporting_facts" in fields:
        return "2wiki" if "evidences" in fields else "hotpotqa" if "level" in fields else None
    if "possible_answers" in fields:
        return "popqa"
    if "ctxs" in fields:
        return "nq"
    answer = record.get("answer", record.get("Answer"))
    if isinstance(answer, Mapping):
        return "triviaqa"
    if table and {"Question", "Answer"} <= fields:
        return "bamboogle"
    if isinstance(answer, list):
        return "nq" if "question" in fields else None
    evidence = record.get("evidence")
    if evidence is not None and not _is_texts(evidence):
        return "2wiki"  # its evidence is triples
    return OWN if "question" in fields and fields & set(ANSWERS) else None


def _is_texts(value: Any) -> bool:
    if isinstance(value, str):
        return not value.lstrip().startswith("[")
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
