"""The CSR table: triplets one hop from entities."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import StoreError
from pipeline.knowledge.graph.adjacency import Adjacency, write_csr


def table(folder: Path, blocks: list[list[tuple[int, int]]], entities: int) -> Adjacency:
    """The table of triplets from the entities of their ends, written in blocks."""
    rows = itertools.count()
    pairs = [
        [(end, row) for ends, row in zip(block, rows, strict=False) for end in set(ends)]
        for block in blocks
    ]
    keyed = [np.array(part, dtype=np.int64).reshape(-1, 2).T for part in pairs]
    write_csr(folder, lambda: [(keys, of_keys) for keys, of_keys in keyed], entities)
    return Adjacency.load(folder)


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=5), max_size=5),
    st.lists(st.lists(st.integers(0, 6), max_size=4), max_size=4),
)
def test_union_equals_a_search_through_all_triplets(
    tmp_path_factory: pytest.TempPathFactory,
    blocks: list[list[tuple[int, int]]],
    queries: list[list[int]],
) -> None:
    neighbours = table(tmp_path_factory.mktemp("neighbours"), blocks, 7)
    triplets = [ends for block in blocks for ends in block]
    assert [rows.tolist() for rows in neighbours.union(queries)] == [
        [row for row, ends in enumerate(triplets) if set(ends) & set(query)] for query in queries
    ]


def test_broken_table_raises_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"not an adjacency table.*run the graph stage again"):
        Adjacency.load(tmp_path)
    table(tmp_path, [[(0, 1)]], 2)
    np.save(tmp_path / "rows.npy", np.zeros(3, dtype=np.uint32))
    with pytest.raises(StoreError, match="does not match"):
        Adjacency.load(tmp_path)
