"""Memory of embedders, rerankers and vector indexes.

Input: the shape of an encoder, a batch, or the number and dimension of vectors. Output: bytes. An
encoder of b bytes a number over T = batch × length tokens holds, besides its weights, one layer at
a time::

    activations = T (2 i + 6 h) b

An index over n vectors of d floats holds (`docs/scale.md`)::

    flat    4 d n
    HNSW    (4 d + 256) n                        32 links of 4 bytes on both sides
    IVF-PQ  (code + 8) n + 4 d cells             codes of d / 8 bytes, ids of 8, 4 √n cells
"""

from __future__ import annotations

import math

from pipeline.core.gpus import GIB
from pipeline.core.model_shapes import DTYPE_BYTES, ModelShape
from pipeline.knowledge.index.kinds import Kind, code_bytes, resolve_kind

# Scratch memory of FAISS, which ``StandardGpuResources`` reserves for each index on a GPU. It is at
# most 1 GiB on a GPU of up to 8 GiB, which no published configuration fits.
SCRATCH_BYTES = 1.5 * GIB


def encoder_activations(shape: ModelShape, dtype: str, batch: int, length: int) -> float:
    """Bytes of a forward pass of ``batch`` texts of ``length`` tokens."""
    tokens = batch * min(length, shape.positions)
    return float(tokens * (2 * shape.intermediate + 6 * shape.hidden) * DTYPE_BYTES[dtype])


def index_bytes(vectors: int, dimension: int, kind: Kind = "auto") -> float:
    """Bytes of a vector index in the memory of a process, or of a GPU."""
    resolved = "flat" if vectors < 256 else resolve_kind(kind, vectors)
    if resolved == "flat":
        return 4.0 * dimension * vectors
    if resolved == "hnsw":
        return (4.0 * dimension + 256) * vectors
    cells = 4 * math.sqrt(vectors)
    return vectors * (code_bytes(dimension) + 8.0) + cells * dimension * 4


def is_on_gpu(vectors: int, kind: Kind = "auto") -> bool:
    """Whether FAISS can search an index of this size on a GPU: it has HNSW on the CPU only."""
    return vectors < 256 or resolve_kind(kind, vectors) != "hnsw"
