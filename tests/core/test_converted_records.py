"""Records that other libraries read and wrote again are the same records."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from pipeline.core.errors import InputError
from pipeline.core.record_io import as_json, read_records, write_parquet
from pipeline.core.records import (
    CalledFunction,
    ChatMessage,
    Chunk,
    ContextItem,
    Decomposed,
    Hyperedge,
    Message,
    Pair,
    Question,
    SftExample,
    Step,
    TokenCounts,
    ToolCall,
    Trajectory,
    Triplet,
)
from pipeline.core.row_files import iterate_rows

CALL = ToolCall(CalledFunction("search", '{"query": "a"}'), "id")
TURNS = [
    ChatMessage("assistant", "", tool_calls=[CALL]),
    ChatMessage("tool", "found", tool_call_id="id"),
    ChatMessage("assistant", "Answer: b", reasoning_content="so"),
]
STEP = Step(["a"], "s", [ContextItem("chunk", "c", "t", "x", 0.5)], "y")
RECORDS: list[list[Any]] = [
    [
        Trajectory(
            "q/0", "q", "nq", "Who?", "single", ["Ann"], ["T: x"], "tearag", "abcde",
            spans=[(0, 3, "model"), (3, 5, "observation")], prompt_ids=[1], token_ids=[5, 6],
            token_spans=[(0, 1, "model"), (1, 2, "observation")], logprobs=[-0.5, None],
            steps=[STEP, Step()], answer="Ann", format_ok=True, tokens=TokenCounts(1, 1, [1]),
            rewards={"outcome": 1.0, "memory": {"summary": [0.5, None]}}, reward=0.5,
        ),
        Trajectory("q/1", "q", "nq", "Who?", "unknown", ["Ann"], [], "hiprag", ""),
    ],
    [
        Pair(
            "q", [Message("user", "q")], TURNS, [ChatMessage("assistant", "n")], "a", "b", "easy",
            {"outcome": 1.0}, {"outcome": 0.0}, "p", 1, [1], [2, 3], [4], [(0, 2, "model")],
            [(0, 1, "frame")], "[]",
        )
    ],
    [
        Question("q", "d", "Who?", ["A"], "multi", ["T: e"], 2, "bridge",
                 [Decomposed("a?", "b", "T", "x"), Decomposed("c?", "d")], "unseen"),
        Question("r", "d", "When?", ["1969"], "unknown"),
    ],
    [Chunk("a", "t", "x", "d", "s")],
    [Triplet("a", "h", "r", "t", "c")],
    [Hyperedge("a", "t", ["x", "y"], "c")],
    [
        SftExample("e", "q", 1, [Message("user", "q")], "abc", [(0, 3, "model")]),
        SftExample("f", "q", 1, [Message("user", "q")], "", [], TURNS, "[]", [1], [2], [(0, 1, "model")]),
    ],
]  # fmt: skip


def lines(rows: Any) -> str:
    """Rows as JSON lines, NumPy's arrays as lists and its missing numbers as NaN."""
    return "".join(json.dumps(row, default=lambda value: value.tolist()) + "\n" for row in rows)


def with_datasets(source: Path, target: Path) -> None:
    """`datasets` reads the file and writes it in the format of the target's suffix."""
    import datasets

    datasets.disable_progress_bars()
    read = datasets.Dataset.from_parquet(str(source), cache_dir=str(target.parent / "cache"))
    if target.suffix == ".jsonl":
        read.to_json(str(target))
    elif target.suffix == ".parquet":
        read.to_parquet(str(target))
    else:  # a stream of Arrow
        read.save_to_disk(str(target.parent / "saved"))
        shutil.copy(next((target.parent / "saved").glob("*.arrow")), target)


def frame(source: Path) -> Any:
    import pandas as pd

    return pd.read_parquet(source)


CONVERSIONS: dict[str, Callable[[Path, Path], object]] = {
    "arrow.jsonl": lambda source, to: to.write_text(lines(pq.read_table(source).to_pylist())),
    "arrow.json": lambda source, to: to.write_text(json.dumps(pq.read_table(source).to_pylist())),
    "arrow.arrow": lambda source, to: feather.write_feather(pq.read_table(source), str(to)),
    "ARROW.FEATHER": lambda source, to: feather.write_feather(pq.read_table(source), str(to)),
    "pandas.jsonl": lambda source, to: frame(source).to_json(to, orient="records", lines=True),
    "pandas.json": lambda source, to: frame(source).to_json(to, orient="records"),
    "pandas.parquet": lambda source, to: frame(source).to_parquet(to),
    "pandas.feather": lambda source, to: frame(source).to_feather(to),
    "dumps.jsonl": lambda source, to: to.write_text(lines(frame(source).to_dict("records"))),
    "datasets.jsonl": with_datasets,
    "datasets.parquet": with_datasets,
    "datasets.arrow": with_datasets,
}  # fmt: skip


@pytest.mark.parametrize("records", RECORDS, ids=lambda records: type(records[0]).__name__)
def test_every_record_is_read_back_whichever_library_converted_it(
    tmp_path: Path, records: list[Any]
) -> None:
    kind, source = type(records[0]), tmp_path / "steep.parquet"
    write_parquet(source, records, kind)
    for name, convert in CONVERSIONS.items():
        convert(source, tmp_path / name)
        assert read_records(tmp_path / name, kind) == records, name


@pytest.mark.parametrize("suffix", ["jsonl", "json", "parquet", "arrow"])
def test_columns_that_nobody_reads_refuse_no_record(tmp_path: Path, suffix: str) -> None:
    [triplet] = RECORDS[4]
    path = tmp_path / f"t.{suffix}"
    if suffix in ("jsonl", "json"):
        odd = '"nan": NaN, "far": -Infinity, "large": 1e999, "half": "\\ud800"'
        row = json.dumps(as_json(triplet)).replace("}", f", {odd}}}")
        path.write_text(row if suffix == "jsonl" else f"[{row}]")
    else:
        odd_columns = {
            "when": pa.array([1], pa.timestamp("ns")),
            "day": pa.array([10**7], pa.date32()),  # after the year 9999
            "bytes": pa.array([b"\xff"]),
            "nan": pa.array([float("nan")]),
            "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())),
            "days": pa.array([[10**18]], pa.list_(pa.timestamp("us"))),
            "zone": pa.array([1], pa.timestamp("us", "Mars/Base")),
        }
        table = pa.table({name: [value] for name, value in as_json(triplet).items()} | odd_columns)
        write = pq.write_table if suffix == "parquet" else feather.write_feather
        write(table, str(path))
    assert read_records(path, Triplet) == [triplet]


LATE, FAR = 10**18, "<value out of range: 1000000000000000000>"
BYTES = pa.array([b"a", b"\xff"])
TEXT = pa.StringArray.from_buffers(2, *BYTES.buffers()[1:])  # the second is not UTF-8
WHEN = pa.timestamp("us")


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (pa.array([[LATE], None], pa.list_(WHEN)), [[FAR], None]),
        (pa.array([None, [LATE]], pa.list_(WHEN, 1)), [None, [FAR]]),
        (pa.array([[("a", LATE)], None], pa.map_(pa.string(), WHEN)), [[["a", FAR]], None]),
        (pa.array([{"a": [LATE]}, None], pa.struct([("a", pa.list_(WHEN))])), [{"a": [FAR]}, None]),
        (pa.array([2**62, 1], pa.duration("ms")), ["4611686018427387904", "1"]),
        (pa.array([0.5, float("nan")]).dictionary_encode(), [0.5, None]),
        (pa.StructArray.from_arrays([TEXT], ["a"]), [{"a": "a"}, {"a": "\udcff"}]),
        (pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), TEXT), [["a"], ["\udcff"]]),
        (pa.array([[float("inf")], []]), [["Infinity"], []]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)  # fmt: skip
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_values_inside_lists_and_objects_are_read_as_those_of_columns(
    tmp_path: Path, column: pa.Array, values: list[object], suffix: str
) -> None:
    path, write = (
        tmp_path / f"t.{suffix}",
        {"parquet": pq.write_table, "arrow": feather.write_feather},
    )
    write[suffix](pa.table({"a": column}), str(path))
    assert [row.value for row in iterate_rows(path)] == [{"a": value} for value in values]


@pytest.mark.parametrize("value", ["Infinity", "-Infinity", "1e999", '"0.5"', "true"])
def test_a_reward_that_is_no_finite_number_is_refused(tmp_path: Path, value: str) -> None:
    row = json.dumps(as_json(RECORDS[0][0])).replace('"reward": 0.5', f'"reward": {value}')
    (tmp_path / "t.jsonl").write_text(row)
    with pytest.raises(InputError, match=r"t\.jsonl:1: reward: Input should be a valid number"):
        read_records(tmp_path / "t.jsonl", Trajectory)
