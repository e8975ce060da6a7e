"""Stage ``index``: embeddings and FAISS indexes (TeaRAG, arXiv 2511.05385, 4.2.3).

Input: chunks of the corpus stage, triplets and entities of the graph stage. Output: vectors of all
three as ``.npy`` (rows as in their tables), FAISS indexes over chunks and entities (triplets are
only compared within one hop of an entity), and ``index.json``, which names the embedder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.index.embed import Embedder, Vectors, open_cache, open_embedder
from pipeline.index.faiss_index import VectorIndex, chosen
from pipeline.records import replace_text
from pipeline.stage import StageContext

_BLOCK = 50_000  # texts per checkpoint
# Beyond this the vectors are not put into the shared cache as well: it would double the disk.
_CACHED_UP_TO = 1_000_000
_SEARCHED = ("chunks", "entities")


def run(context: StageContext) -> dict[str, int]:
    """Write the stage's files; returns how many vectors of each table.

    Raises DependencyError when the embedder is missing, InputError when a table is unreadable.
    """
    settings = context.config.index
    embedder = open_embedder(context.config, open_cache(context.config))
    tables = {
        "chunks": (context.inputs["corpus"] / "chunks.parquet", ("title", "text")),
        "entities": (context.inputs["graph"] / "entities.parquet", ("name",)),
        "triplets": (context.inputs["graph"] / "triplets.parquet", ("head", "relation", "tail")),
    }
    counts: dict[str, int] = {}
    kinds: dict[str, str] = {}
    for name, (path, columns) in tables.items():
        vectors_ND = _embed(path, columns, embedder, name, context)
        counts[name] = len(vectors_ND)
        if name in _SEARCHED:
            kinds[name] = chosen(settings.faiss, len(vectors_ND), gpu=settings.gpu)
            index = VectorIndex.build(vectors_ND, settings.faiss, gpu=settings.gpu)
            index.save(context.output / f"{name}.faiss")
    about = {"embedder": embedder.identity, "counts": counts, "faiss": kinds}
    replace_text(context.output / "index.json", json.dumps(about, indent=1) + "\n")
    return counts


def passage(*parts: str) -> str:
    """The text that stands for a row: title and text, or head, relation and tail."""
    return " ".join(part for part in parts if part)


def _embed(
    path: Path, columns: tuple[str, ...], embedder: Embedder, name: str, context: StageContext
) -> Vectors:
    """Vectors [N, D] of a table, memory-mapped from the output; blocks survive a kill."""
    import pyarrow.parquet as pq

    count = pq.read_metadata(path).num_rows
    target: Any = None
    for start, texts in _blocks(path, columns):
        block = context.partial / f"{name}-{start:09d}-{start + len(texts):09d}.npy"
        if block.exists():
            vectors_ND = np.load(block)
        else:
            vectors_ND = embedder.encode(texts, "passage", store=count <= _CACHED_UP_TO)
            _save(block, vectors_ND)
        if target is None:
            shape = (count, vectors_ND.shape[1])
            target = np.lib.format.open_memmap(  # type: ignore[no-untyped-call]
                context.output / f"{name}.npy", mode="w+", dtype=np.float32, shape=shape
            )
        target[start : start + len(texts)] = vectors_ND
    if target is None:
        empty = embedder.encode([], "passage")
        np.save(context.output / f"{name}.npy", empty)
        return empty
    target.flush()
    return target  # type: ignore[no-any-return]


def _blocks(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    import pyarrow.parquet as pq

    start = 0
    with pq.ParquetFile(path) as file:
        for part in file.iter_batches(batch_size=_BLOCK, columns=list(columns)):
            parts = [part.column(column).to_pylist() for column in columns]
            texts = [passage(*row) for row in zip(*parts, strict=True)]
            yield start, texts
            start += len(texts)


def _save(path: Path, vectors_ND: Vectors) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as stream:
        np.save(stream, vectors_ND)
    temporary.replace(path)
