"""Building an IVF-PQ index: its bytes, and what an interrupted build makes again."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.knowledge.index import ivf_pq
from pipeline.knowledge.index.faiss_index import VectorIndex
from tests.index.test_faiss_search import unit

VECTORS = unit(1000, 32)
NAMES = ["trained", *(f"{n:012d}-{min(n + 300, 1000):012d}" for n in range(0, 1000, 300))]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ivf_pq, "BLOCK", 300)


class Kept:
    """Keeps arrays by name."""

    def __init__(self) -> None:
        self.arrays: dict[str, NDArray[np.uint8]] = {}

    def __call__(self, name: str, make: Callable[[], NDArray[np.uint8]]) -> NDArray[np.uint8]:
        self.arrays[name] = make()
        return self.arrays[name]


def serialized(index: object) -> bytes:
    import faiss

    return bytes(faiss.serialize_index(index))


def test_the_index_has_the_bytes_that_adding_the_vectors_gives() -> None:
    import faiss

    kept = Kept()
    built = ivf_pq.build_ivf_pq(VECTORS, kept)
    assert list(kept.arrays) == NAMES
    added = faiss.deserialize_index(kept.arrays["trained"])
    added.add(VECTORS)
    assert serialized(built) == serialized(added)
    assert serialized(built) == serialized(ivf_pq.build_ivf_pq(VECTORS))


@pytest.mark.parametrize(("kind", "kept_arrays"), [("ivf-pq", 5), ("hnsw", 0), ("flat", 0)])
def test_only_a_compressed_index_is_kept(kind: str, kept_arrays: int) -> None:
    kept = Kept()
    assert len(VectorIndex.build(VECTORS, kind, kept)) == 1000  # type: ignore[arg-type]
    assert len(kept.arrays) == kept_arrays
