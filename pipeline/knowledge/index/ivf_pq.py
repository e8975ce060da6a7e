"""Build an IVF-PQ index in blocks that can be kept, so that an interrupted build continues.

Input: vectors, which may be memory-mapped. Output: a FAISS index over them. The index is trained
first. Then the vectors are encoded in blocks: the code of a vector is the number of its cell and
its product-quantizer code, as in FAISS's standalone codec. The index has the bytes that adding the
vectors gives, however the build was interrupted. Training and encoding are on the CPU, so the kept
files do not depend on the device that searches the index.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipeline.knowledge.index.kinds import MIN_VECTORS, code_bytes

BLOCK = 1_048_576  # vectors whose codes are kept together: 100 MB at 96 bytes of code
_ENCODED = 65_536  # vectors encoded at once
_PER_CELL = 39  # FAISS warns about fewer training vectors per cell
_TRAINED_PER_CENTROID = 64  # training vectors per cell or code
_TRAIN_ROUNDS = 10  # of k-means; FAISS's default of 25 moves few vectors after these
_MAX_TRAINED = 1_000_000  # vectors

Bytes: TypeAlias = NDArray[np.uint8]
# Returns the array of a name that an earlier attempt kept, or makes it and keeps it.
Keep: TypeAlias = Callable[[str, Callable[[], Bytes]], Bytes]


def keep_nothing(name: str, make: Callable[[], Bytes]) -> Bytes:
    """A `Keep` for builds that are not continued."""
    return make()


def build_ivf_pq(vectors_ND: NDArray[np.float32], keep: Keep = keep_nothing) -> Any:
    """A FAISS index over vectors [N, D] with at least `MIN_VECTORS` rows.

    ``keep`` gets the trained index under the name ``trained``, and the codes of each `BLOCK`
    vectors under the first row and the row after the last.
    """
    import faiss

    count = len(vectors_ND)
    index = faiss.deserialize_index(
        keep("trained", lambda: faiss.serialize_index(_trained(faiss, vectors_ND)))
    )
    for first in range(0, count, BLOCK):
        last = min(first + BLOCK, count)
        make = partial(_codes, index, vectors_ND[first:last])
        index.add_sa_codes(keep(f"{first:012d}-{last:012d}", make))
    return index


def _codes(index: Any, vectors_ND: NDArray[np.float32]) -> Bytes:
    """The codes [N, bytes] of the vectors, which are read in blocks of `_ENCODED`."""
    codes_NB = np.empty((len(vectors_ND), index.sa_code_size()), dtype=np.uint8)
    for start in range(0, len(vectors_ND), _ENCODED):
        part_ND = np.ascontiguousarray(vectors_ND[start : start + _ENCODED])
        codes_NB[start : start + len(part_ND)] = index.sa_encode(part_ND)
    return codes_NB


def _trained(faiss: Any, vectors_ND: NDArray[np.float32]) -> Any:
    """An index without vectors, trained on a sample of the vectors."""
    count, dimension = vectors_ND.shape
    cells = max(1, min(int(4 * math.sqrt(count)), count // _PER_CELL))
    # "np" skips polysemous training, which takes 80 of 82 CPU seconds at 10,000 vectors and serves
    # a kind of search that is not used here.
    kind = f"IVF{cells},PQ{code_bytes(dimension)}x8np"
    index = faiss.index_factory(dimension, kind, faiss.METRIC_INNER_PRODUCT)
    for part in (index.cp, index.pq.cp):
        part.niter = _TRAIN_ROUNDS
        part.max_points_per_centroid = _TRAINED_PER_CENTROID
    trained = min(count, _TRAINED_PER_CENTROID * max(cells, MIN_VECTORS), _MAX_TRAINED)
    rows = np.sort(np.random.default_rng(0).choice(count, trained, replace=False))
    index.train(np.ascontiguousarray(vectors_ND[rows]))
    return index
