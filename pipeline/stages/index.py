"""Stages ``index`` and ``hyper-index``: embeddings and FAISS indexes.

``index`` embeds chunks, and the graph stage's triplets and entities (TeaRAG, arXiv 2511.05385,
4.2.3); ``hyper-index`` embeds the hypergraph stage's hyperedges and entities (ProGraph-R1 3.1).
Output: the vectors of every table as ``.npy``, in the row order of the table; FAISS indexes over
the tables that are searched (triplets are only compared within one hop of an entity); and
``index.json`` with the embedder, the kind of each index and its measured recall, which the stage's
manifest repeats.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config.knowledge import Index
from pipeline.core.atomic import write_json
from pipeline.index.embed import Embedder, Vectors, open_cache, open_embedder, passage_text
from pipeline.index.faiss_index import VectorIndex, resolve_kind
from pipeline.index.pq_codes import check_gpu
from pipeline.run.context import StageContext
from pipeline.stages.checkpoint_files import intact, save_array_checkpoint

_BLOCK = 50_000  # texts per checkpoint
_SEARCHED = ("chunks", "entities", "hyperedges")
EMBEDDED = "newly embedded"
Tables = dict[str, tuple[Path, tuple[str, ...]]]  # the file of each table and the columns embedded


def run(context: StageContext) -> dict[str, int]:
    """Stage ``index``: returns the number of vectors of each table and of newly embedded texts.

    Raises DependencyError when the embedder is missing, ConfigError when ``index.faiss`` does not
    fit.
    """
    graph = context.inputs["graph"]
    return _build(
        context,
        {
            "chunks": (context.inputs["corpus"] / "chunks.parquet", ("title", "text")),
            "entities": (graph / "entities.parquet", ("name",)),
            "triplets": (graph / "triplets.parquet", ("head", "relation", "tail")),
        },
    )


def run_hyper(context: StageContext) -> dict[str, int]:
    """Stage ``hyper-index``: returns counts and raises errors as `run` does."""
    hypergraph = context.inputs["graph"]
    return _build(
        context,
        {
            "entities": (hypergraph / "entities.parquet", ("name",)),
            "hyperedges": (hypergraph / "hyperedges.parquet", ("text",)),
        },
    )


def _build(context: StageContext, tables: Tables) -> dict[str, int]:
    import pyarrow.parquet as pq

    settings = context.config.index
    embedder = open_embedder(settings.embedder, open_cache(context.config.cache_dir))
    _check_kinds(settings, embedder, tables)
    total = sum(pq.read_metadata(path).num_rows for path, _ in tables.values())
    context.progress.start(total, "texts")
    counts: dict[str, int] = {}
    kinds: dict[str, dict[str, int | float | str]] = {}
    for name, (path, columns) in tables.items():
        vectors_ND = _embed(path, columns, embedder, name, context)
        counts[name] = len(vectors_ND)
        if name in _SEARCHED:
            index = VectorIndex.build(vectors_ND, settings.faiss)
            index.save(context.output / f"{name}.faiss")
            kinds[name] = index.about
            print(f"{name}: {index.about}")
    about = {"embedder": embedder.identity, "counts": counts, "faiss": kinds}
    write_json(context.output / "index.json", about)
    context.notes["faiss"] = kinds
    context.work.update(
        texts=sum(counts.values()),
        embedded_texts=embedder.computed,
        start_seconds=round(embedder.load_seconds, 2),
    )
    return {**counts, EMBEDDED: embedder.computed}


def _check_kinds(settings: Index, embedder: Embedder, tables: Tables) -> None:
    """Refuse an index that cannot be built or searched before its texts are embedded."""
    import pyarrow.parquet as pq

    for name, (path, _) in tables.items():
        if name in _SEARCHED:
            count = pq.read_metadata(path).num_rows
            if resolve_kind(settings.faiss, count) == "ivf-pq" and settings.gpu:
                check_gpu(embedder.encode([], "passage").shape[1])


def _embed(
    path: Path, columns: tuple[str, ...], embedder: Embedder, name: str, context: StageContext
) -> Vectors:
    """Vectors [N, D] of a table, memory-mapped from the output.

    Finished blocks are kept in the checkpoint directory, so an interrupted stage resumes after
    them.
    """
    import pyarrow.parquet as pq

    count = pq.read_metadata(path).num_rows
    target: Any = None
    for start, texts in _blocks(path, columns):
        block = f"{name}-{start:09d}-{start + len(texts):09d}"
        if finished := intact(context.checkpoint_dir, block, ".npy"):
            vectors_ND = np.load(finished[0])
            context.progress.skip(len(texts))
        else:
            store = count <= context.config.index.cached_texts
            vectors_ND = embedder.encode(texts, "passage", store=store, progress=context.progress)
            save_array_checkpoint(context.checkpoint_dir, block, vectors_ND)
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
    with pq.ParquetFile(path, pre_buffer=False) as file:
        for part in file.iter_batches(batch_size=_BLOCK, columns=list(columns)):
            parts = [part.column(column).to_pylist() for column in columns]
            texts = [passage_text(*row) for row in zip(*parts, strict=True)]
            yield start, texts
            start += len(texts)
