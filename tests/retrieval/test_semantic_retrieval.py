"""Semantic retrieval: candidates by embedding, results by the reranker."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.core.columns import Columns
from pipeline.core.record_io import write_parquet
from pipeline.core.records import Chunk
from pipeline.knowledge.index.faiss_index import VectorIndex
from pipeline.knowledge.retrieval.semantic import SemanticRetrieval

COUNT = 30


class CircleEmbedder:
    """Chunk n is at n degrees, "low" at 0, "high" at 30: candidates are ordered by number."""

    def encode(self, texts, role):
        assert role == "query"
        angles = np.radians([{"low": 0.0, "high": 30.0}[text] for text in texts])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


class ReversingReranker:
    """Scores the last candidates highest; chunks 2 n and 2 n + 1 have equal scores."""

    def __init__(self) -> None:
        self.calls: list[list[tuple[str, str]]] = []

    def score(self, pairs):
        self.calls.append(list(pairs))
        signs = {"low": 1.0, "high": -1.0}
        return np.array([signs[query] * (int(text.split()[-1]) // 2) for query, text in pairs])


@pytest.fixture
def chunks(tmp_path: Path) -> Columns:
    rows = [Chunk(f"c{n}", f"Title {n}", f"text {n}", "d") for n in range(COUNT)]
    write_parquet(tmp_path / "chunks.parquet", rows, Chunk)
    return Columns(tmp_path / "chunks.parquet", ("id", "title", "text"))


def retrieval(chunks: Columns, reranker: ReversingReranker, **sizes: int) -> SemanticRetrieval:
    angles = np.radians(np.arange(COUNT))
    vectors_ND = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    return SemanticRetrieval(
        chunks, VectorIndex.build(vectors_ND), CircleEmbedder(), reranker, **sizes
    )


def test_rerankers_best_five_of_twenty_candidates_are_returned(chunks: Columns) -> None:
    """Chunks 20 to 29 would score higher for "low", but are not among the candidates."""
    reranker = ReversingReranker()
    low, high = retrieval(chunks, reranker).retrieve(["low", "high"])
    # Equal scores keep the order of candidates: ascending for "low", descending for "high".
    assert [chunk.id for chunk in low] == ["c18", "c19", "c16", "c17", "c14"]
    assert [chunk.id for chunk in high] == ["c11", "c10", "c13", "c12", "c15"]
    assert [chunk.score for chunk in low] == [9, 9, 8, 8, 7]
    assert (low[0].title, low[0].text) == ("Title 18", "text 18")
    [pairs] = reranker.calls  # both queries in one call
    assert pairs == [("low", f"Title {n} text {n}") for n in range(20)] + [
        ("high", f"Title {n} text {n}") for n in range(29, 9, -1)
    ]
