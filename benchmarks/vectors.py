"""Generated vectors, and indexes over them that are built in separate processes.

Embedding a million texts on two cores would take too long, so vectors are generated: 384 dimensions
(as all-MiniLM-L6-v2), around topics of fifty vectors each, with variances proportional to 1 / rank,
as for embeddings. Two vectors of one topic have a cosine of about 0.67. Queries are further vectors
of the same topics.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from benchmarks.measured_process import Measured, cached_figures, run_measured
from pipeline.knowledge.index.faiss_index import VectorIndex
from pipeline.knowledge.index.kinds import Kind

DIMENSIONS = 384
_PER_TOPIC = 50
_APART = 0.7  # distance from the topic's center, whose norm is about 1
_BLOCK = 65_536

Vectors = NDArray[np.float32]


def blocks(size: int, count: int | None = None, *, seed: int = 0) -> Iterator[Vectors]:
    """``count`` unit vectors (default: ``size``) of a collection of ``size``, in blocks [N, D].

    Equal arguments give equal blocks. Seed 0 is the collection; other seeds give queries to it.
    """
    scale_D = np.arange(1, DIMENSIONS + 1, dtype=np.float32) ** -0.5
    scale_D /= np.linalg.norm(scale_D)
    topics = max(1, size // _PER_TOPIC)
    centre_TD = _normal(np.random.default_rng(0), topics) * scale_D
    rng = np.random.default_rng(seed + 1)
    remaining = size if count is None else count
    while remaining:
        number = min(_BLOCK, remaining)
        vectors_ND = centre_TD[rng.integers(0, topics, number)]
        vectors_ND = vectors_ND + _APART * scale_D * _normal(rng, number)
        yield vectors_ND / np.linalg.norm(vectors_ND, axis=1, keepdims=True)
        remaining -= number


def queries(size: int, count: int) -> Vectors:
    """Queries [count, D] to the collection of ``size`` vectors."""
    return np.concatenate(list(blocks(size, count, seed=1)))


def write_vectors(folder: Path, size: int) -> Path:
    """Write the collection to ``vectors.npy`` unless the file exists; returns its path."""
    path = folder / "vectors.npy"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / "vectors.tmp"
        target = np.lib.format.open_memmap(  # type: ignore[no-untyped-call]
            temporary, mode="w+", dtype=np.float32, shape=(size, DIMENSIONS)
        )
        start = 0
        for block_ND in blocks(size):
            target[start : start + len(block_ND)] = block_ND
            start += len(block_ND)
        target.flush()
        temporary.replace(path)
    return path


def build_in_process(folder: Path, size: int, kind: Kind) -> dict[str, Any]:
    """Figures of building ``<kind>.faiss`` over the collection, and the chosen parameters.

    ``file_bytes`` is the size of the index, which a retrieving process holds in memory.
    """

    def build() -> dict[str, Any]:
        write_vectors(folder, size)
        return run_measured("benchmarks.vectors", folder, kind)

    return cached_figures(folder / f"{kind}.json", build)


def load(folder: Path, kind: Kind) -> VectorIndex:
    """The index that `build_in_process` built."""
    return VectorIndex.load(folder / f"{kind}.faiss", folder / "vectors.npy")


def _normal(rng: np.random.Generator, count: int) -> Vectors:
    return rng.standard_normal((count, DIMENSIONS), dtype=np.float32)


def _build(folder: Path, kind: Kind) -> None:
    import faiss

    assert faiss  # imported before memory is measured
    vectors_ND = np.load(folder / "vectors.npy", mmap_mode="r")
    with Measured() as spent:
        index = VectorIndex.build(vectors_ND, kind)
        index.save(folder / f"{kind}.faiss")
    size = (folder / f"{kind}.faiss").stat().st_size
    print(json.dumps({**spent.figures, "file_bytes": size, "about": index.about}))


if __name__ == "__main__":
    _build(Path(sys.argv[1]), cast(Kind, sys.argv[2]))
