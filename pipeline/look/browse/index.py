"""The side table of the browser: one row per trajectory, with the words of its text.

Input: the Parquet files of a run. Output: a DuckDB file in the cache with the tables
``trajectories``, ``pairs``, ``words`` (which trajectory has which word), ``items`` (which
trajectory retrieved what) and ``verdicts``. Pages filter, sort and search in these tables; texts
and token ids stay in Parquet. The file is built once for each state of the run's files.
"""

from __future__ import annotations

import glob
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.atomic import replacing
from pipeline.core.errors import InputError, StoreError, missing
from pipeline.core.record_io import read_records
from pipeline.core.records import Question
from pipeline.core.row_files import iterate_parquet
from pipeline.core.trajectory_file import iterate_trajectories
from pipeline.engine.failures import explain_os_error
from pipeline.evaluation.failures import diagnose, mode_of_answer
from pipeline.look.browse.sources import VERDICTS, Group, RunSources

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

VERSION = 4  # of the tables; part of the file's name
WORDS = r"regexp_extract_all(strip_accents(lower({text})), '[\p{{L}}\p{{N}}]+')"
# Of one file: without the option, a folder such as ``round=2`` above it becomes a column.
PARQUET = "read_parquet({}, hive_partitioning = false)"
_ROWS = PARQUET.format("$file, file_row_number = true")
_DIAGNOSED = [
    "trajectory_id", "question_id", "question", "hop", "answers", "evidence", "answer", "stop",
    "steps",
]  # fmt: skip
_BESIDE = ("row", "failure", "hops", "type", "bin", "partner")
_TERM = re.compile(r"[a-z][a-z0-9_]{0,40}")


def duckdb() -> Any:
    """The package duckdb; raises DependencyError if it is missing."""
    try:
        import duckdb
    except ImportError:
        raise missing("steep browse needs duckdb", "browse") from None
    return duckdb


def pattern(path: Path) -> str:
    """The pattern of one file: DuckDB reads ``runs[1]`` in a path as any of these characters."""
    return glob.escape(str(path))


def open_index(sources: RunSources, folder: Path) -> DuckDBPyConnection:
    """A connection to the side table of a run, which is built first if ``folder`` lacks it.

    A build is told on standard error. Tables of earlier states of the run are removed. Raises
    DependencyError without duckdb, StoreError when a file of the run cannot be read, or ``folder``
    cannot be written.
    """
    library = duckdb()
    path = folder / f"{sources.name}-{sources.fingerprint}-v{VERSION}.duckdb"
    try:
        if not path.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            print(f"indexing {sources.name}, once: {path}", file=sys.stderr, flush=True)
            with replacing(path) as temporary:
                _build(temporary, sources)
            table = re.compile(rf"{re.escape(sources.name)}-[0-9a-f]{{16}}-v\d+\.duckdb")
            for other in folder.iterdir():
                if other != path and table.fullmatch(other.name):
                    other.unlink(missing_ok=True)
        connection: DuckDBPyConnection = library.connect(str(path), read_only=True)
    except OSError as error:
        raise StoreError(explain_os_error(error, folder)) from None
    except (library.Error, InputError) as error:
        raise StoreError(f"{sources.name}: {str(error).splitlines()[0]}") from None
    return connection


def _build(path: Path, sources: RunSources) -> None:
    path.unlink(missing_ok=True)  # an empty file is not a database
    with duckdb().connect(str(path)) as connection:
        connection.execute("SET preserve_insertion_order = false")
        connection.execute(_TABLES)
        for group in sources.groups:
            if group.trajectories is not None:
                _add_trajectories(connection, group, group.trajectories)
        _add_terms(connection)
        for group in sources.groups:
            if group.pairs is not None:
                connection.execute(_PAIRS, {"key": group.key, "file": pattern(group.pairs)})
        _add_pair_terms(connection)
        _sort_words(connection)
        connection.execute("CHECKPOINT")


_TABLES = """
CREATE TABLE base (
  n BIGINT, "group" VARCHAR, "row" BIGINT, trajectory_id VARCHAR, question_id VARCHAR,
  dataset VARCHAR, question VARCHAR, hop VARCHAR, hops BIGINT, type VARCHAR,
  sample BIGINT, answer VARCHAR, gold VARCHAR, correct BOOLEAN, format_ok BOOLEAN, stop VARCHAR,
  steps BIGINT, searches BIGINT, tokens BIGINT, characters BIGINT, failure VARCHAR, bin VARCHAR,
  partner VARCHAR, over BIGINT, under BIGINT, rewards VARCHAR
);
CREATE TABLE unsorted_words (word VARCHAR, n BIGINT);
CREATE TABLE unsorted_items (item VARCHAR, n BIGINT);
CREATE TABLE verdicts (
  "group" VARCHAR, trajectory_id VARCHAR, step BIGINT, kind VARCHAR, verdict VARCHAR,
  model VARCHAR, key VARCHAR
);
CREATE TABLE base_pairs (
  "group" VARCHAR, "row" BIGINT, round BIGINT, question_id VARCHAR, question VARCHAR, kind VARCHAR,
  chosen_id VARCHAR, rejected_id VARCHAR, tokens_chosen BIGINT, tokens_rejected BIGINT,
  chosen_rewards VARCHAR, rejected_rewards VARCHAR
);
"""

_TRAJECTORIES = f"""
INSERT INTO base
WITH judged AS (
  SELECT trajectory_id,
    count(*) FILTER (kind = 'over' AND verdict = 'yes') AS over,
    count(*) FILTER (kind = 'under' AND verdict = 'yes') AS under
  FROM verdicts WHERE "group" = $key GROUP BY trajectory_id
)
SELECT $first + t.file_row_number, $key, t.file_row_number, t.trajectory_id, t.question_id,
  t.dataset, t.question, t.hop, b.hops, b.type, t.sample, t.answer,
  array_to_string(t.answers, ' | '), b.failure = 'right', t.format_ok, t.stop, len(t.steps),
  len(list_filter(t.steps,
    lambda s: s.subquery <> '' OR s.search IS NOT NULL OR s.query IS NOT NULL)),
  nullif(t.tokens.thinking + t.tokens.retrieved, 0), length(t.output), b.failure,
  b.bin, b.partner, j.over, j.under, to_json(t.rewards)
FROM {_ROWS} t
LEFT JOIN judged j USING (trajectory_id)
LEFT JOIN beside b ON b."row" = t.file_row_number
"""

_WORDS = f"""
INSERT INTO unsorted_words
SELECT DISTINCT unnest({WORDS.format(text="concat_ws(' ', question, output, answer)")}),
  $first + file_row_number
FROM {_ROWS}
"""

_ITEMS = f"""
INSERT INTO unsorted_items
SELECT DISTINCT item.id, n FROM (
  SELECT unnest(flatten(list_transform(steps, lambda s: s.context))) AS item,
    $first + file_row_number AS n
  FROM {_ROWS}
) WHERE item.id <> ''
"""

_PAIRS = f"""
INSERT INTO base_pairs
SELECT $key, file_row_number, round, question_id, prompt[-1].content, kind, chosen_id, rejected_id,
  len(chosen_ids), len(rejected_ids), to_json(chosen_rewards), to_json(rejected_rewards)
FROM {_ROWS}
"""


def _add_trajectories(connection: DuckDBPyConnection, group: Group, file: Path) -> None:
    import pyarrow as pa

    [(first,)] = connection.execute("SELECT count(*) FROM base").fetchall()
    values = {"key": group.key, "file": pattern(file), "first": first}
    if group.judged is not None:
        connection.execute(
            "INSERT INTO verdicts SELECT ?, id, step, kind, verdict, model, key "
            f"FROM {PARQUET.format('?')}",
            [group.key, pattern(group.judged / VERDICTS)],
        )
    kinds = {name: pa.int64() if name in ("row", "hops") else pa.string() for name in _BESIDE}
    beside = pa.Table.from_pylist(list(_beside(group, file)), pa.schema(kinds))
    connection.register("beside", beside)
    connection.execute(_TRAJECTORIES, values)
    connection.unregister("beside")
    values.pop("key")
    connection.execute(_WORDS, values)
    connection.execute(_ITEMS, values)


def _beside(group: Group, file: Path) -> Iterator[dict[str, Any]]:
    """What other files say of each trajectory: of its question, and its pairing outcome.

    The failure mode is that of evaluation; "right" is none.
    """
    questions = {
        question.question_id: question
        for path in reversed(group.questions)
        for question in read_records(path, Question)
    }
    columns = ["trajectory_id", "bin", "partner"]
    outcomes = {
        row.pop("trajectory_id"): row
        for path in filter(None, [group.funnel])
        for row in iterate_parquet(path, columns)
    }
    for row, trajectory in enumerate(iterate_trajectories(file, _DIAGNOSED)):
        question = questions.get(trajectory.question_id)
        # Most failure modes do not depend on the hops.
        mode = mode_of_answer(trajectory) or diagnose(trajectory, question).failure_mode
        yield {
            "row": row,
            "failure": mode.value,
            "hops": question and question.hops,
            "type": question and question.type,
            **outcomes.get(trajectory.trajectory_id, {}),
        }


def _numeric_terms(connection: DuckDBPyConnection, table: str, column: str) -> list[str]:
    """The reward terms of a trajectory that are numbers, in the order of their first appearance."""
    rows = connection.execute(
        f"SELECT term, min(place) FROM (SELECT unnest(json_keys({column})) AS term, "
        f"generate_subscripts(json_keys({column}), 1) AS place, {column} AS value FROM {table} "
        f"WHERE {column} IS NOT NULL) WHERE json_type(value, '$.' || term) "
        "IN ('DOUBLE', 'BIGINT', 'UBIGINT') GROUP BY term ORDER BY 2, 1"
    ).fetchall()
    return [term for term, _ in rows if _TERM.fullmatch(term) and term != "id"]


def _add_terms(connection: DuckDBPyConnection) -> None:
    terms = _numeric_terms(connection, "base", "rewards")
    columns = "".join(f", (rewards->>'$.{t}')::DOUBLE AS term_{t}" for t in terms)
    connection.execute(
        f"CREATE TABLE trajectories AS SELECT * EXCLUDE (rewards){columns} FROM base ORDER BY n"
    )
    connection.execute("DROP TABLE base")


def _add_pair_terms(connection: DuckDBPyConnection) -> None:
    """Joins pairs with both trajectories; a pair without trajectories keeps its own fields."""
    terms = _numeric_terms(connection, "base_pairs", "chosen_rewards")
    columns = "".join(
        f", (p.{side}_rewards->>'$.{t}')::DOUBLE AS {side}_{t}"
        for t in terms
        for side in ("chosen", "rejected")
    )
    margins = "".join(f", chosen_{t} - rejected_{t} AS margin_{t}" for t in terms)
    connection.execute(
        f"""
        CREATE TABLE pairs AS SELECT *{margins} FROM (
          SELECT p."group", p."row", p.round, p.question_id, c.dataset,
            coalesce(c.question, p.question) AS question, c.hop, c.hops, p.kind, p.chosen_id,
            p.rejected_id, p.tokens_chosen, p.tokens_rejected, c.n AS n_chosen, r.n AS n_rejected,
            r.failure, c.answer AS answer_chosen, r.answer AS answer_rejected, c.gold,
            -- null only where neither side was judged
            greatest(c.over, r.over) AS over, greatest(c.under, r.under) AS under,
            c.steps AS steps_chosen, r.steps AS steps_rejected{columns}
          FROM base_pairs p
          LEFT JOIN trajectories c
            ON c."group" = p."group" AND c.trajectory_id = p.chosen_id
          LEFT JOIN trajectories r
            ON r."group" = p."group" AND r.trajectory_id = p.rejected_id
        ) ORDER BY "group", "row"
        """
    )
    connection.execute("DROP TABLE base_pairs")


def _sort_words(connection: DuckDBPyConnection) -> None:
    """Sorted tables, in which DuckDB reads only the blocks of the words that are searched for."""
    for name, column in (("words", "word"), ("items", "item")):
        connection.execute(
            f"CREATE TABLE {name} AS SELECT * FROM unsorted_{name} ORDER BY {column}, n"
        )
        connection.execute(f"DROP TABLE unsorted_{name}")
