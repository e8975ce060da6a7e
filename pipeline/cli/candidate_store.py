"""Pairing candidates of a file, grouped by question in a temporary database on disk.

The trajectories of a question need not be adjacent in a file, and standard input can be read only once.
The database holds the values that the selection reads and a digest of each output, about 250 bytes per
trajectory, and is deleted when it is closed. Memory holds its cache and one question.
"""

from __future__ import annotations

import hashlib
import itertools
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pipeline.core.errors import StoreError
from pipeline.pairs.select import Candidate

_CACHE = 16384  # KiB
_TABLES = (
    "CREATE TABLE questions (number INTEGER PRIMARY KEY, id BLOB UNIQUE, trajectories INTEGER)",
    "CREATE TABLE candidates (question INTEGER, place INTEGER, id BLOB UNIQUE, dataset BLOB, "
    "sample INTEGER, hop TEXT, format REAL, outcome REAL, process REAL, output TEXT, "
    "broken INTEGER, reward REAL, judged INTEGER, PRIMARY KEY (question, place)) WITHOUT ROWID",
)
_COLUMNS = "format, outcome, process, output, broken, reward, judged"


class CandidateStore:
    """Candidates by question, in the order in which they and their questions were added."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._question: tuple[str, int, int] = ("", -1, 0)  # of the last one: id, number, size

    def add(self, question_id: str, candidate: Candidate, *, ordered: bool) -> bool:
        """Add a candidate; False when one with its id is there.

        With ``ordered`` its sample is replaced by its place among those of the question.
        """
        number, place = self._place(question_id)
        values = (
            number,
            place,
            _encode(candidate.id),
            _encode(candidate.dataset),
            place if ordered else candidate.sample,
            candidate.hop,
            candidate.format,
            candidate.outcome,
            candidate.process,
            candidate.output,
            candidate.broken,
            candidate.reward,
            candidate.judged,
        )
        marks = ", ".join("?" * len(values))
        try:
            self._database.execute(f"INSERT INTO candidates VALUES ({marks})", values)
        except sqlite3.IntegrityError:
            return False
        self._question = (question_id, number, place + 1)
        return True

    def _place(self, question_id: str) -> tuple[int, int]:
        """The number of a question, and the place of its next candidate."""
        last, number, size = self._question
        if last == question_id and number >= 0:
            return number, size
        execute, key = self._database.execute, _encode(question_id)
        if number >= 0:
            execute("UPDATE questions SET trajectories = ? WHERE number = ?", (size, number))
        execute("INSERT OR IGNORE INTO questions (id, trajectories) VALUES (?, 0)", (key,))
        row = execute("SELECT number, trajectories FROM questions WHERE id = ?", (key,)).fetchone()
        return int(row[0]), int(row[1])

    def questions(self) -> Iterator[tuple[str, list[Candidate]]]:
        """(question id, its candidates), a question at a time."""
        rows = self._database.execute(
            f"SELECT question, questions.id, candidates.id, dataset, sample, hop, {_COLUMNS} "
            "FROM candidates JOIN questions ON question = number ORDER BY question, place"
        )
        for _, of_question in itertools.groupby(rows, key=lambda row: row[0]):
            question_rows = list(of_question)
            yield _decode(question_rows[0][1]), [_candidate(row[2:]) for row in question_rows]


@contextmanager
def candidate_store() -> Iterator[CandidateStore]:
    """An empty store. Raises StoreError when the temporary file cannot be written."""
    try:
        with _database() as database:
            yield CandidateStore(database)
    except sqlite3.OperationalError as error:
        raise StoreError(
            f"the temporary file of the candidates cannot be written: {error}; "
            "free disk space, or set SQLITE_TMPDIR to a directory with more"
        ) from None


@contextmanager
def _database() -> Iterator[sqlite3.Connection]:
    """A private database in a temporary file, which the system deletes."""
    database = sqlite3.connect("", isolation_level=None)
    try:
        for setting in (f"cache_size = -{_CACHE}", "journal_mode = OFF", "synchronous = OFF"):
            database.execute(f"PRAGMA {setting}")
        for table in _TABLES:
            database.execute(table)
        database.execute("BEGIN")
        yield database
    finally:
        database.close()


def digest(output: str) -> str:
    """16 bytes that stand for an output in comparisons, in hexadecimal digits."""
    return hashlib.blake2b(_encode(output), digest_size=16).hexdigest()


def _candidate(row: tuple[Any, ...]) -> Candidate:
    name, dataset, sample, hop, form, outcome, process, output, broken, reward, judged = row
    return Candidate(
        id=_decode(name),
        sample=sample,
        hop=hop,
        format=form,
        outcome=outcome,
        process=process,
        output=output,
        broken=bool(broken),
        reward=reward,
        judged=bool(judged),
        dataset=_decode(dataset),
    )


def _encode(text: str) -> bytes:
    # Ids may hold unpaired surrogates, which a column of text cannot.
    return text.encode(errors="surrogatepass")


def _decode(text: bytes) -> str:
    return text.decode(errors="surrogatepass")
