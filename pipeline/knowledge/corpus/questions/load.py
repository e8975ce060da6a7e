"""Load questions from the files of seven data sets, or of any origin.

Input: a file as the data set's authors publish it, or as Search-R1, FlashRAG or PruneRAG re-publish
it; under any other name the questions of `pipeline.knowledge.corpus.questions.own`. Output:
`Question` records with answers, aliases and golden evidence (TeaRAG, section 5).

Two shapes are read for every data set besides its native one: ``question`` with ``golden_answers``
(Search-R1, FlashRAG), and ``Question`` with ``golden_context`` (PruneRAG). `corpus.documents` reads
the context paragraphs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count, islice
from pathlib import Path

from pipeline.core.answer_metrics import normalize
from pipeline.core.errors import InputError, Place
from pipeline.core.records import Question
from pipeline.core.row_files import BadRows
from pipeline.knowledge.corpus.overlap import repeated_questions
from pipeline.knowledge.corpus.questions import native
from pipeline.knowledge.corpus.questions.own import is_unanswerable, question_of, unfolded
from pipeline.knowledge.corpus.questions.select import Selection, choose, matches
from pipeline.knowledge.corpus.raw_records import RawRecord, brief, parsed_rows, read_rows

_LOOKED_AT = 20  # records that tell the data set of a file
OWN = "questions"  # the name of questions that say no other

WITHOUT_EVIDENCE = "multi-hop questions without golden evidence"
UNKNOWN_HOPS = "questions of unknown hops without golden evidence"
REPEATED = "questions with the text of an earlier question of the set"
UNANSWERED = "rows without an answer, which are left out"
MALFORMED = "malformed rows, which are left out"
NO_ANSWER_IN_TEXT = "questions that their passages do not answer, which are left out"
UNANSWERABLE = "questions whose answers are articles and punctuation alone"

DATASETS = (*native.NATIVE, OWN)
Keep = Callable[[list[Question]], list[Question]]
"""Leaves out some of the questions of a file."""


@dataclass
class Notes:
    """Questions that `load_questions` left out, and its other notes.

    Attributes:
        counts: numbers by reason, counted over all questions that were read.
        unanswerable: place and answers of the questions whose answers normalize to nothing. Every
            prediction scores 0 on them.
        repeated: ids of questions with the text of an earlier question of the set, and its id.
        malformed: the first malformed row of each file, with the reason.
    """

    counts: Counter[str] = field(default_factory=Counter)
    unanswerable: list[str] = field(default_factory=list)
    repeated: dict[str, str] = field(default_factory=dict)
    malformed: list[str] = field(default_factory=list)

    def count_repeats(self, questions: Sequence[Question]) -> None:
        """Note the repeated questions of a set, which may come from several files."""
        self.repeated = repeated_questions(questions)
        self.counts[REPEATED] = len(self.repeated)

    def first(self, reason: str) -> str:
        """The first place that has been left out or is odd for a reason, as the end of a line."""
        places = {MALFORMED: self.malformed, UNANSWERABLE: self.unanswerable}.get(reason)
        return f"; the first: {places[0]}" if places else ""

    def lines(self, name: str, *, for_training: bool = False) -> Iterator[str]:
        """A sentence for each reason to leave out or notice questions of the set ``name``."""
        for reason, number in self.counts.items():
            if not number:
                continue
            line = f"{name}: {number:,} {reason}"
            if reason in (native.NO_FACT_FOUND, UNANSWERABLE) and for_training:
                line += "; left out"
            elif reason == UNANSWERABLE:
                line += "; every prediction scores 0"
            line += self.first(reason)
            if reason == REPEATED:
                repeat, first = next(iter(self.repeated.items()))
                line += f"; all are kept; the first: {repeat}, as {first}"
            yield line


def read_questions(
    path: Path,
    dataset: str,
    *,
    required: Mapping[str, str | int] | None = None,
    rows: int | None = None,
    notes: Notes | None = None,
    unmet: dict[str, str | int] | None = None,
) -> Iterator[tuple[RawRecord, Question]]:
    """Yield the records of a file, or of its first ``rows`` rows, with their questions.

    ``required`` is as in `load_questions`; fields that a record has are removed from ``unmet``.
    Question ids are unique within the file. Malformed rows, rows without an answer and questions
    that their passages do not answer are left out and counted in ``notes``. Raises InputError with
    file, line or record number, and field when the file is broken, or all rows are malformed.
    """
    notes, bad, ids = Notes() if notes is None else notes, BadRows(), set[str]()
    required, unmet = required or {}, {} if unmet is None else unmet

    def found(row: RawRecord) -> Iterator[tuple[RawRecord, Question]]:
        # Raw fields first: a record that the filter excludes may be malformed.
        if not matches(row.value, required, unmet, whole=False):
            return
        for part in unfolded(row):
            if "answerable" not in required and is_unanswerable(part):
                notes.counts[NO_ANSWER_IN_TEXT] += 1
            elif (question := question_of(part, dataset)) is None:
                notes.counts[UNANSWERED] += 1
            else:
                own = {name: getattr(question, name) for name in Question.__dataclass_fields__}
                if matches(own | part.value, required, unmet, whole=True):
                    notes.counts.update(part.notes)
                    yield part, question

    try:
        for row, question in parsed_rows(path, islice(read_rows(path, bad), rows), bad, found):
            free = (name for name in numbered(question.question_id) if name not in ids)
            question.question_id = next(free)
            ids.add(question.question_id)
            yield row, question
    finally:  # a caller may stop before the last row
        notes.counts[MALFORMED] += bad.count
        notes.malformed += [] if bad.first is None else [str(bad.first)]


def numbered(question_id: str) -> Iterator[str]:
    """An id and those of its repeats, x-2, x-3, …: files without ids may repeat a question."""
    yield question_id
    yield from (f"{question_id}-{times}" for times in count(2))


def load_questions(
    path: Path,
    dataset: str,
    *,
    required: Mapping[str, str | int] | None = None,
    select: Selection = "first",
    limit: int | None = None,
    seed: int = 0,
    for_training: bool = False,
    keep: Keep | None = None,
    gold: Mapping[str, Path] | None = None,
    notes: Notes | None = None,
) -> list[Question]:
    """Questions of one file that match the filter ``required``, at most ``limit`` of them by
    ``select``; ``keep`` may leave out others before.

    ``required`` maps field names to required values. A name is looked up in the raw record first
    (``level: hard``), then in the `Question` (``hops: 3``). ``seed`` decides the random choice.
    ``gold`` is as in `with_gold`. ``for_training`` leaves out questions to which rewards give no
    signal: no supporting fact names a sentence of their context, or all their answers normalize to
    nothing. ``notes`` collects the counts and the other notes. Raises InputError as
    `read_questions` does, and when no question is left.
    """
    notes = Notes() if notes is None else notes
    unanswerable: dict[str, str] = {}  # by question id
    kept: list[Question] = []
    before, unmet = Counter(notes.counts), dict(required or {})
    for row, question in read_questions(path, dataset, required=required, notes=notes, unmet=unmet):
        if for_training and row.notes[native.NO_FACT_FOUND]:
            continue
        if not any(map(normalize, question.answers)):
            problem = InputError.at(path, brief(question.answers), row.place)
            unanswerable[question.question_id] = str(problem)
            if for_training:
                continue
        kept.append(question)
        if keep is None and select == "first" and len(kept) == limit:
            break
    if not kept:
        counts = notes.counts - before
        if counts[MALFORMED] and not unmet:
            raise InputError(notes.malformed[-1])
        raise InputError(_nothing_kept(path, required or {}, unmet, counts, unanswerable))
    kept = kept if keep is None else keep(kept)
    chosen = choose(kept, select, limit, seed)
    chosen = with_gold(chosen, gold or {}) if chosen else chosen
    for reason, hop in ((WITHOUT_EVIDENCE, "multi"), (UNKNOWN_HOPS, "unknown")):
        notes.counts[reason] += sum(one.hop == hop and not one.evidence for one in chosen)
    if not for_training:
        names = {question.question_id for question in chosen}
        unanswerable = {name: place for name, place in unanswerable.items() if name in names}
    notes.counts[UNANSWERABLE] += len(unanswerable)
    notes.unanswerable += unanswerable.values()
    return chosen


def ids_of_files(questions: Sequence[Question]) -> dict[str, str]:
    """The id of each question in its file; that of a repeated question ends in its number here."""
    texts = {question.question_id: question.question for question in questions}
    return {
        name: first if number.isdecimal() and texts.get(first) == text else name
        for name, text in texts.items()
        for first, _, number in [name.rpartition("-")]
    }


def with_gold(questions: Sequence[Question], files: Mapping[str, Path]) -> list[Question]:
    """The questions with all fields but text and answers from the records with their ids.

    ``files`` are in the original formats, by data set. A question without a record stays as it is.
    Raises InputError when a file has none of the questions.
    """
    names = ids_of_files(questions)
    wanted = set(names.values())
    found: dict[str, Question] = {}
    for dataset, path in files.items():
        before = len(found)
        for row, record in read_questions(path, dataset):
            if record.question_id in wanted and not row.notes[native.NO_FACT_FOUND]:
                found[record.question_id] = record
        if len(found) == before:
            raise InputError.at(path, "gold: no question has an id of this file; name another file")
    return [
        replace(known, question_id=own.question_id, question=own.question, answers=own.answers)
        if (known := found.get(names[own.question_id]))
        else own
        for own in questions
    ]


def _nothing_kept(
    path: Path,
    required: Mapping[str, str | int],
    unmet: Iterable[str],
    counts: Counter[str],
    unanswerable: Mapping[str, str],
) -> str:
    """Why no question of a file is left."""
    if fields := ", ".join(unmet):
        return f"{path}: filter: no record has the field {fields}; correct it"
    if missing := counts[native.NO_FACT_FOUND]:
        return (
            f"{path}: supporting_facts: {missing} questions, and none has a fact that names a "
            "sentence of its context; use the edition with gold paragraphs"
        )
    if unanswerable:
        first, *_ = unanswerable.values()
        return f"{first}: {UNANSWERABLE} cannot be trained on, and the file has no other"
    if counts[NO_ANSWER_IN_TEXT]:
        return f"{path}: {NO_ANSWER_IN_TEXT}, and the file has no other"
    if required:
        wanted = ", ".join(f"{field}: {value}" for field, value in required.items())
        return f"{path}: filter: no question has {wanted}; correct the filter"
    row = next(iter(read_rows(path, BadRows())))
    return f"{path}: no row has a question and an answer; {_columns(row)}"


def _columns(row: RawRecord) -> str:
    expected = "question and answer (or answers, golden_answers)"
    return f"expected {expected}; the rows have {row.fields()}; rename these columns"


def dataset_of(path: Path) -> str:
    """The data set of a file: a published one if only its files have such fields, else `OWN`.

    Raises InputError when the file is unreadable, or its first rows have no question and answer.
    """
    row = None
    for row in islice(read_rows(path, bad := BadRows()), _LOOKED_AT):
        with Place(path, row.place):
            for part in unfolded(row):
                if dataset := _only_dataset(part):
                    return dataset
    if row is None:  # then all rows are malformed
        raise bad.first or InputError.at(path, "empty; expected records")
    raise InputError.at(path, f"no row has a question and an answer; {_columns(row)}")


def _only_dataset(row: RawRecord) -> str | None:
    """The published data set whose files alone have the fields of a record; `OWN` for a question
    of another origin, None for what is no question."""
    fields = row.value.keys()
    if {"question_id", "dataset", "question", "answers", "hop"} <= fields:
        return OWN
    for dataset, is_theirs in _RECOGNIZED.items():
        with suppress(InputError):  # then it is of another form
            # PruneRAG publishes every data set in the shape with golden_context.
            if "golden_context" not in fields and is_theirs(row):
                return dataset
    with suppress(InputError):
        return OWN if question_of(row, OWN) else None
    return None


_RECOGNIZED: dict[str, Callable[[RawRecord], bool]] = {
    "musique": lambda row: {"question_decomposition", "paragraphs"} <= row.value.keys(),
    "2wiki": lambda row: (
        {"supporting_facts", "evidences"} <= row.value.keys()
        or bool(native.evidence_triples(row, "evidence"))
    ),
    "hotpotqa": lambda row: {"supporting_facts", "context", "level"} <= row.value.keys(),
    "popqa": lambda row: {"possible_answers", "prop"} <= row.value.keys(),
    "nq": lambda row: (
        isinstance(passages := row.find("ctxs"), list) and "isgold" in str(passages[:1])
    ),
    "triviaqa": lambda row: isinstance(answer := row.find("Answer"), dict) and "Aliases" in answer,
}
