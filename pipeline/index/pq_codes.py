"""Sizes of product-quantizer codes: bytes for each vector of an IVF-PQ index.

Input: the dimension of the vectors, and whether the index is searched on a GPU. Output: the number
of sub-quantizers of 8 bits, which is the size of a code in bytes. On a CPU a code has d / 8 bytes.
FAISS's GPU index supports the sizes of `GPU_SIZES` alone, so that 1,024 dimensions take 64 bytes.
"""

from __future__ import annotations

from pipeline.core.errors import ConfigError

# The sizes above 48 need lookup tables in half precision (GpuIndexIVFPQ::isSupportedPQCodeLength).
GPU_SIZES = (1, 2, 3, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96)
_MOST_PER_BYTE = 64  # dimensions; a coarser code hardly tells neighbors apart


def code_bytes(dimension: int, *, gpu: bool = False) -> int:
    """The bytes of a code of ``dimension`` floats; it divides ``dimension``.

    Raises ConfigError when ``gpu`` is set and no supported size fits the dimension.
    """
    preferred = [size for size in (dimension // 8, dimension // 4) if size]
    fitting = [size for size in preferred if not dimension % size]
    if not gpu:
        return fitting[0] if fitting else 1
    if fitting and fitting[0] in GPU_SIZES:
        return fitting[0]
    most = max(1, dimension // 4)
    size = max(size for size in GPU_SIZES if size <= most and not dimension % size)
    if dimension > size * _MOST_PER_BYTE:
        raise ConfigError(
            f"index.gpu is true, but FAISS has no IVF-PQ index on a GPU for {dimension} dimensions: "
            f"of its code sizes, which end at {GPU_SIZES[-1]} bytes, the largest that divides them is "
            f"{size}; set index.gpu to false, or use an embedder of 384, 768 or 1,024 dimensions"
        )
    return size
