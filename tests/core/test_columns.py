"""Records read on demand from a memory-mapped table."""

from itertools import repeat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.columns import Records
from pipeline.core.errors import InputError
from pipeline.core.records import Chunk
from pipeline.knowledge.corpus.chunk import write_chunks

COUNT = 10_000  # more rows than one block
CHUNKS = [Chunk(f"c{n}", f"T{n % 7}", f"text {n}", f"d{n // 3}") for n in range(COUNT)]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Records[Chunk]:
    folder = tmp_path_factory.mktemp("corpus")
    assert write_chunks(folder, iter(CHUNKS)) == COUNT
    return Records(folder / "chunks.arrow", Chunk)


def test_records_equal_the_list_that_was_written(table):
    assert len(table) == COUNT
    assert list(table) == CHUNKS
    assert table.distinct("doc_id") == len({chunk.doc_id for chunk in CHUNKS})


@given(st.slices(COUNT) | st.integers(-COUNT, COUNT - 1))
def test_indexing_and_slicing_equal_those_of_a_list(table, wanted):
    assert table[wanted] == CHUNKS[wanted]


@settings(max_examples=16)  # of 16 sets
@given(st.sets(st.sampled_from(["T0", "T3", "T6", "other"])))
def test_where_returns_all_matching_records_in_order(table, titles):
    assert table.where("title", titles) == [item for item in CHUNKS if item.title in titles]


def test_several_record_batches_read_as_one_table(tmp_path: Path, table):
    # The writer's record batches hold fewer rows than these.
    many = [Chunk(f"c{n}", title, "", "d") for n, title in enumerate(repeat("T", 40_000))]
    many[39_999].title = many[3].title = "rare"
    write_chunks(tmp_path, many)
    results = Records(tmp_path / "chunks.arrow", Chunk).where("title", ["rare"])
    assert [chunk.id for chunk in results] == ["c3", "c39999"]


def test_file_without_the_columns_raises_input_error(tmp_path: Path):
    (tmp_path / "chunks.arrow").write_bytes(b"no table")
    with pytest.raises(InputError, match="not a readable Arrow file"):
        Records(tmp_path / "chunks.arrow", Chunk)
