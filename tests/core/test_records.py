"""Records round-trip through JSONL and Parquet; a malformed one raises InputError with its position."""

import json

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.atomic import write_json
from pipeline.core.errors import InputError, Place
from pipeline.core.record_io import as_json, parse_record, read_records, write_jsonl, write_parquet
from pipeline.core.records import ContextItem, Step, TokenCounts, Trajectory
from tests.smallest import small_trajectory

texts = st.text(max_size=20)
items = st.builds(ContextItem, score=st.floats(0, 1))
steps = st.builds(
    Step,
    entities=st.lists(texts, max_size=2),
    subquery=texts,
    context=st.lists(items, max_size=2),
    summary=texts,
)
spans = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9), st.sampled_from(["model", "observation"])),
    max_size=3,
)
trajectories = st.builds(  # the fields without a default are drawn by their types
    Trajectory,
    spans=spans,
    token_ids=st.lists(st.integers(0, 9), max_size=3),
    token_spans=spans,
    logprobs=st.lists(st.none() | st.floats(-9, 0), max_size=3),
    steps=st.lists(steps, max_size=2),
    answer=st.none() | texts,
    tokens=st.builds(TokenCounts, per_retrieval=st.lists(st.integers(0, 9), max_size=2)),
    rewards=st.none() | st.just({"outcome": 1.0, "memory": {"summary": [0.5]}}),
)


@given(st.lists(trajectories, max_size=3))
def test_trajectories_round_trip_through_jsonl_and_parquet(tmp_path_factory, records):
    directory = tmp_path_factory.mktemp("records")
    write_jsonl(directory / "t.jsonl", records)
    write_parquet(directory / "t.parquet", records, Trajectory)
    assert read_records(directory / "t.jsonl", Trajectory) == records
    assert read_records(directory / "t.parquet", Trajectory) == records


def test_missing_field_raises_input_error_with_line_and_field(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"trajectory_id": "a"}\n')
    with pytest.raises(InputError, match=r"t\.jsonl:1: question_id: Field required"):
        read_records(path, Trajectory)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sample", True),
        ("sample", "3"),
        ("sample", 2**63),
        ("trajectory_id", 7),
        ("format_ok", 1),
        ("answers", "one"),
        ("answers", [None]),
        ("rewards", 5),
        ("logprobs", [True]),
    ],
)
def test_values_of_another_type_are_refused_instead_of_converted(field, value):
    record = as_json(small_trajectory())
    with pytest.raises(InputError, match=rf"t\.jsonl:1: {field}"), Place("t.jsonl", 1):
        parse_record(Trajectory, record | {field: value})


def test_parquet_bytes_depend_on_the_records_only(tmp_path):
    records = [ContextItem("chunk", str(n), "title", "text", 0.5) for n in range(3000)]
    write_parquet(tmp_path / "list.parquet", records, ContextItem)
    write_parquet(tmp_path / "stream.parquet", iter(records), ContextItem)
    assert (tmp_path / "list.parquet").read_bytes() == (tmp_path / "stream.parquet").read_bytes()
    assert pq.ParquetFile(tmp_path / "list.parquet").num_row_groups == 3


def test_failed_json_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "statistics.json"
    write_json(path, {"paths": 3, "Zoë": "half a pair: \ud800"})
    before = path.read_bytes()
    assert json.loads(before) == {"paths": 3, "Zoë": "half a pair: \ud800"}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"loss": float("nan")})
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["statistics.json"]
