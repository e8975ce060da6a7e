"""Generated vectors, and indexes over them built in processes of their own.

A million texts cannot be embedded by a model on two cores, so vectors are drawn: of 384 dimensions
(all-MiniLM-L6-v2's), around topics of fifty vectors each, with variances that fall off as 1 / rank,
as those of embeddings do. Two vectors of one topic have a cosine around 0.67. Queries are further
vectors of the same topics.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.own_process import Measured, in_own_process, kept
from pipeline.index.faiss_index import Kind, VectorIndex

DIMENSIONS = 384
_PER_TOPIC = 50
_APART = 0.7  # from the topic's centre, whose length is about 1
_BLOCK = 65_536

Vectors = NDArray[np.float32]


def blocks(size: int, count: int | None = None, *, seed: int = 0) -> Iterator[Vectors]:
    """``count`` vectors (default: ``size``) of a collection of ``size``, in blocks.

    Equal arguments give equal blocks; seed 0 is the collection, another one queries to it.
    """
    scale_D = np.arange(1, DIMENSIONS + 1, dtype=np.float32) ** -0.5
    scale_D /= np.linalg.norm(scale_D)
    topics = max(1, size // _PER_TOPIC)
    centre_TD = _normal(np.random.default_rng(0), topics) * scale_D
    rng = np.random.default_rng(seed + 1)
    left = size if count is None else count
    while left:
        number = min(_BLOCK, left)
        vectors_ND = centre_TD[rng.integers(0, topics, number)]
        vectors_ND = vectors_ND + _APART * scale_D * _normal(rng, number)
        yield vectors_ND / np.linalg.norm(vectors_ND, axis=1, keepdims=True)
        left -= number


def queries(size: int, count: int) -> Vectors:
    """Queries to the collection of ``size`` vectors."""
    return np.concatenate(list(blocks(size, count, seed=1)))


def write_vectors(folder: Path, size: int) -> Path:
    """The collection as ``vectors.npy``, if it is not there."""
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
    """Figures of building ``<kind>.faiss`` over the collection: what it took and what was chosen.

    ``file_bytes`` are the index's own, which a process that retrieves holds in memory.
    """

    def build() -> dict[str, Any]:
        write_vectors(folder, size)
        return in_own_process("benchmarks.vectors", folder, kind)

    return kept(folder / f"{kind}.json", build)


def load(folder: Path, kind: Kind) -> VectorIndex:
    """The index that was built."""
    return VectorIndex.load(folder / f"{kind}.faiss", folder / "vectors.npy")


def _normal(rng: np.random.Generator, count: int) -> Vectors:
    return rng.standard_normal((count, DIMENSIONS), dtype=np.float32)


def _build(folder: Path, kind: Kind) -> None:
    import faiss

    assert faiss  # its memory is no index's
    vectors_ND = np.load(folder / "vectors.npy", mmap_mode="r")
    with Measured() as spent:
        index = VectorIndex.build(vectors_ND, kind)
        index.save(folder / f"{kind}.faiss")
    size = (folder / f"{kind}.faiss").stat().st_size
    print(json.dumps({**spent.figures, "file_bytes": size, "about": index.about}))


if __name__ == "__main__":
    _build(Path(sys.argv[1]), sys.argv[2])  # type: ignore[arg-type]
