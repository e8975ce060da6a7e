"""Building an IVF-PQ index: its bytes, and what an interrupted build makes again."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.knowledge.index import ivf_pq
from pipeline.knowledge.index.faiss_index import VectorIndex
from tests.index.test_faiss_search import unit

VECTORS = unit(1000, 32)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ivf_pq, "BLOCK", 300)


class Kept:
    """Keeps arrays by name, and fails when it should keep one more than ``most``."""

    def __init__(self, most: int) -> None:
        self.arrays: dict[str, NDArray[np.uint8]] = {}
        self.made: list[str] = []
        self.most = most

    def __call__(self, name: str, make: Callable[[], NDArray[np.uint8]]) -> NDArray[np.uint8]:
        if name not in self.arrays:
            if len(self.arrays) == self.most:
                raise KeyboardInterrupt
            self.arrays[name] = make()
            self.made.append(name)
        return self.arrays[name]


def serialized(index: object) -> bytes:
    import faiss

    return bytes(faiss.serialize_index(index))


def test_the_index_has_the_bytes_that_adding_the_vectors_gives() -> None:
    import faiss

    kept = Kept(99)
    built = ivf_pq.build_ivf_pq(VECTORS, kept)
    assert len(kept.made) == 5
    added = faiss.deserialize_index(kept.arrays["trained"])
    added.add(VECTORS)
    assert serialized(built) == serialized(added)
    assert serialized(built) == serialized(ivf_pq.build_ivf_pq(VECTORS))


@pytest.mark.parametrize("most", [0, 1, 3])
def test_an_interrupted_build_continues_and_has_the_same_bytes(most: int) -> None:
    names = ["trained", *(f"{n:012d}-{min(n + 300, 1000):012d}" for n in range(0, 1000, 300))]
    kept = Kept(most)
    with pytest.raises(KeyboardInterrupt):
        ivf_pq.build_ivf_pq(VECTORS, kept)
    assert kept.made == names[:most]
    kept.most = 99
    built = ivf_pq.build_ivf_pq(VECTORS, kept)
    assert kept.made == names  # each once
    assert serialized(built) == serialized(ivf_pq.build_ivf_pq(VECTORS))


@pytest.mark.parametrize(("kind", "kept_arrays"), [("ivf-pq", 5), ("hnsw", 0), ("flat", 0)])
def test_only_a_compressed_index_is_kept(kind: str, kept_arrays: int) -> None:
    kept = Kept(99)
    assert len(VectorIndex.build(VECTORS, kind, kept)) == 1000  # type: ignore[arg-type]
    assert len(kept.made) == kept_arrays
