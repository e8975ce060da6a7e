"""Kinds of vector indexes, and the bytes of a code for each vector of an IVF-PQ index.

Input: the number of vectors, or their dimension. Output: the kind of index for them, or the number
of sub-quantizers of 8 bits, which is the size of a code in bytes. FAISS's GPU index supports the
sizes of `GPU_SIZES` alone. A code has d / 8 bytes if that is a supported size, and otherwise the
largest supported size that fits, so that every index can be searched on a CPU and on a GPU: 1,024
dimensions take 64 bytes.
"""

from __future__ import annotations

from typing import Literal

from pipeline.core.errors import ConfigError

Kind = Literal["flat", "ivf-pq", "hnsw", "auto"]

_MAX_FLAT = 100_000  # vectors
_MAX_HNSW = 2_000_000  # vectors
MIN_VECTORS = 256  # a product quantizer of 8 bits has 256 centroids per part

# The sizes above 48 need lookup tables in half precision (GpuIndexIVFPQ::isSupportedPQCodeLength).
GPU_SIZES = (1, 2, 3, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96)
_MOST_PER_BYTE = 64  # dimensions; a coarser code hardly tells neighbors apart


def resolve_kind(kind: Kind, count: int) -> Literal["flat", "ivf-pq", "hnsw"]:
    """The kind of index for ``count`` vectors; ``auto`` is resolved, other kinds are checked.

    Raises ConfigError when the kind does not fit the number of vectors.
    """
    if kind == "auto":
        if count <= _MAX_FLAT:
            return "flat"
        return "hnsw" if count <= _MAX_HNSW else "ivf-pq"
    if kind == "ivf-pq" and count < MIN_VECTORS:
        raise ConfigError(
            f"index.faiss is ivf-pq, which needs at least {MIN_VECTORS} vectors to train "
            f"on; there are {count}; use flat or auto"
        )
    return kind


def code_bytes(dimension: int) -> int:
    """The bytes of a code of ``dimension`` floats; it divides ``dimension``.

    If no size for GPUs fits, the code is for CPUs only, and `check_gpu` refuses it.
    """
    preferred = [size for size in (dimension // 8, dimension // 4) if size]
    fitting = [size for size in preferred if not dimension % size]
    if fitting and fitting[0] in GPU_SIZES:
        return fitting[0]
    most = max(1, dimension // 4)
    size = max(size for size in GPU_SIZES if size <= most and not dimension % size)
    if dimension <= size * _MOST_PER_BYTE:
        return size
    return fitting[0] if fitting else 1


def check_gpu(dimension: int) -> None:
    """Raise ConfigError when a GPU cannot search an IVF-PQ index of ``dimension`` floats."""
    size = code_bytes(dimension)
    if size not in GPU_SIZES or dimension > size * _MOST_PER_BYTE:
        raise ConfigError(
            f"index.gpu is true, but FAISS has no IVF-PQ index on a GPU for vectors of {dimension} "
            "dimensions; set index.gpu to false, or use an embedder of 384, 768 or 1,024 dimensions"
        )
