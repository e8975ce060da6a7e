"""Stages ``index``, ``hyper-index`` and ``passage-index``: embeddings and FAISS indexes.

``index`` embeds chunks, and the graph stage's triplets and entities (TeaRAG, arXiv 2511.05385,
4.2.3); ``hyper-index`` embeds the hypergraph stage's hyperedges and entities (ProGraph-R1 3.1).
Output: the vectors of every table as ``.npy``, in the row order of the table; FAISS indexes over
the tables that are searched (triplets are only compared within one hop of an entity); and
``index.json`` with the embedder, the kind of each index and its measured recall, which the stage's
manifest repeats. A large table of triplets also gets codes (`pipeline.knowledge.index.signs`),
because an entity may have a million of them. With ``index.links`` the stage ``index`` also writes
BM25 and the links between chunks (`pipeline.knowledge.index.bm25`,
`pipeline.knowledge.graph.links`).

The stage ``passage-index`` has no graph: it embeds the chunks and writes BM25, for the choice of
the chunks that get triplets. ``index`` then takes both from there.

A shard embeds consecutive
rows of every table and writes their vectors; the joined stage copies them in order and builds the
indexes, for which it needs no model. The vectors, and the parts of a compressed index
(`pipeline.knowledge.index.ivf_pq`), are checkpoints until the stage is done.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import config
from pipeline.core.atomic import write_json
from pipeline.core.errors import StoreError
from pipeline.core.input_files import read_json
from pipeline.engine.fingerprint import model_identity
from pipeline.engine.opened import Opened, Work, embedder
from pipeline.engine.plan.clock import Clock
from pipeline.engine.plan.sizes import LINK_BYTES
from pipeline.engine.shards import DivisibleTask
from pipeline.engine.stage import STAGES, StageTask
from tasks.corpus import Corpus
from tasks.graph import Explorable, Graph
from tasks.hypergraph import Hypergraph

if TYPE_CHECKING:
    from pipeline.engine.context import StageContext
    from pipeline.knowledge.index.embed import Embedder, Vectors
    from pipeline.knowledge.index.ivf_pq import Bytes


class Indexing(DivisibleTask):
    """Base of the indexes of the graph, of the hypergraph, and of passages alone."""

    reads = ("index",)

    def files(self) -> dict[str, Path | str]:
        return {"embedder": model_identity(self.settings.index.embedder.model)}

    def opens(self) -> Iterator[Opened]:
        yield embedder(self.settings)

    def indexing(self, clock: Clock, texts: float, tokens: float) -> Work:
        """The work on ``texts`` texts, which have ``tokens`` tokens.

        Checkpoints, or the outputs of shards, hold every vector and the codes of indexes a second
        time.
        """
        from pipeline.engine.plan import memory

        settings, evaluated = self.settings, self.settings.for_evaluation()
        indexes = {
            **memory.searched(settings, clock.sizes),
            **memory.searched(evaluated, clock.sizes),
        }
        vectors = 4.0 * memory.dimension(settings) * texts
        return Work(
            clock.encoding(embedder(settings), tokens), 2 * (vectors + sum(indexes.values()))
        )


class Index(Explorable, Indexing):
    """Embeddings and indexes of chunks, entities and triplets."""

    stage = "index"
    help = "embeddings and indexes of passages, entities and triplets"
    version = 8

    @cached_property
    def inputs(self) -> dict[str, StageTask]:
        """Passages that are embedded before the graph exists are not embedded again."""
        needs: dict[str, StageTask] = {"corpus": self.clone(Corpus), "graph": self.clone(Graph)}
        if self.settings.graph.scope == "candidates":
            needs["passages"] = self.clone(STAGES["passage-index"])
        return needs

    def work(self, clock: Clock) -> Work:
        from pipeline.engine.plan.memory import dimension

        sizes, a = clock.sizes, clock.rates
        entities = sizes.entities * (self.settings.graph.source != "none")
        chunks = sizes.chunks * (self.settings.graph.scope == "all")
        tokens = chunks * a.chunk_tokens + sizes.triplets * a.triplet_tokens
        tokens += entities * a.entity_tokens
        disk = LINK_BYTES * sizes.chunks * self.settings.index.links
        disk += dimension(self.settings) / 8 * sizes.triplets  # codes
        work = self.indexing(clock, chunks + entities + sizes.triplets, tokens)
        return work + Work(disk=disk)


class HyperIndex(Indexing):
    """Embeddings and indexes of hyperedges and their entities."""

    stage = "hyper-index"
    help = "embeddings and indexes of hyperedges and their entities"
    version = 4

    @cached_property
    def inputs(self) -> dict[str, StageTask]:
        return {"corpus": self.clone(Corpus), "graph": self.clone(Hypergraph)}

    def work(self, clock: Clock) -> Work:
        sizes, a = clock.sizes, clock.rates
        tokens = sizes.entities * a.entity_tokens + sizes.hyperedges * a.hyperedge_tokens
        return self.indexing(clock, sizes.entities + sizes.hyperedges, tokens)


def knowledge(task: StageTask, *, explored: bool = True) -> dict[str, StageTask]:
    """The inputs ``corpus``, ``graph`` and ``index`` of a stage that retrieves.

    A graph of candidates has what policy 0 searches for, unless ``explored`` is false.
    """
    if task.settings.retrieval.over_hypergraph:
        graph, index = task.clone(Hypergraph), task.clone(HyperIndex)
    else:
        grown = explored and task.settings.graph.scope == "candidates"
        graph, index = task.clone(Graph, explored=grown), task.clone(Index, explored=grown)
    return {"corpus": task.clone(Corpus), "graph": graph, "index": index}


def searched(task: StageTask) -> dict[str, StageTask]:
    """The `knowledge` that roll-outs with the task's settings search; none without retrieval."""
    return {} if task.settings.retrieval.variant == "none" else knowledge(task)


_BLOCK = 50_000  # texts per checkpoint
# Embeddings of larger tables are not added to the cache, which would store them a second time. If
# they are cached, only the new texts of a grown corpus are embedded.
CACHED_TEXTS = 1_000_000
_ABOUT = "index.json"
_PASSAGES = "passages"  # the input with the output of the stage ``passage-index``
_SEARCHED = ("chunks", "entities", "hyperedges")
Table = tuple[Path, tuple[str, ...]]  # a file and the columns that are embedded
Tables = dict[str, Table]


def run(context: StageContext) -> dict[str, int]:
    """Embed every table and build the indexes; returns the number of vectors of each table.

    Raises DependencyError when the embedder is missing, ConfigError when ``index.faiss`` does not
    fit.
    """
    embedder = _open(context)
    return _build(context, embedder, _embed_tables(context, embedder))


def run_shard(context: StageContext) -> dict[str, int]:
    """Embed one shard of the rows of every table; counts and errors are as in `run`."""
    return {name: len(part) for name, part in _embed_tables(context, _open(context))}


def merge(context: StageContext) -> dict[str, int]:
    """Join the vectors of the shards and build the indexes; returns counts as `run` does.

    Raises StoreError when the vectors belong to other tables.
    """
    tables = _tables(context)
    context.progress.start(sum(map(_row_count, tables.values())), "texts")
    joined = ((name, _join(context, name, table)) for name, table in tables.items())
    return _build(context, _open(context), joined)


def _tables(context: StageContext) -> Tables:
    """The tables of ``hyper-index`` if the input ``graph`` is a hypergraph, else of ``index``.

    Without a graph: the chunks. With the input ``passages``: all but the chunks.
    """
    chunks: Tables = {}
    if _PASSAGES not in context.inputs and "corpus" in context.inputs:
        chunks["chunks"] = (context.inputs["corpus"] / "chunks.parquet", ("title", "text"))
    graph = context.inputs.get("graph")
    if graph is None:
        return chunks
    entities = (graph / "entities.parquet", ("name",))
    hyperedges = graph / "hyperedges.parquet"
    if hyperedges.is_file():
        return {"entities": entities, "hyperedges": (hyperedges, ("text",))}
    return {
        **chunks,
        "entities": entities,
        "triplets": (graph / "triplets.parquet", ("head", "relation", "tail")),
    }


def _open(context: StageContext) -> Embedder:
    from pipeline.core.content_cache import open_cache
    from pipeline.knowledge.index.embed import open_embedder

    return open_embedder(context.config.index.embedder, open_cache(context.config.cache_dir))


def _row_count(table: Table) -> int:
    import pyarrow.parquet as pq

    return int(pq.read_metadata(table[0]).num_rows)


def _embed_tables(context: StageContext, embedder: Embedder) -> Iterator[tuple[str, Vectors]]:
    """The vectors of every table, or of its rows in this shard, memory-mapped from the output."""
    from pipeline.engine.files.shards import first_and_last

    tables = _tables(context)
    _check_kinds(context.config.index, embedder, tables)
    rows = {
        name: first_and_last(_row_count(table), context.shard, context.shards)
        for name, table in tables.items()
    }
    context.progress.start(sum(last - first for first, last in rows.values()), "texts")
    for name, table in tables.items():
        yield name, _embed(context, embedder, name, table, rows[name])
    print(f"newly embedded: {embedder.computed:,} texts, the others came from the cache")


def _build(
    context: StageContext, embedder: Embedder, embedded: Iterable[tuple[str, Vectors]]
) -> dict[str, int]:
    """Build the indexes over the vectors of every table; returns the number of vectors of each."""
    from pipeline.knowledge.index.faiss_index import VectorIndex
    from pipeline.knowledge.index.signs import SignCodes

    counts: dict[str, int] = {}
    kinds: dict[str, dict[str, int | float | str]] = {}
    for name, vectors_ND in embedded:
        counts[name] = len(vectors_ND)
        if name in _SEARCHED:
            keep = partial(_kept, context, name)
            index = VectorIndex.build(vectors_ND, context.config.index.faiss, keep)
            index.save(context.output / f"{name}.faiss")
            kinds[name] = index.about
            print(f"{name}: {index.about}")
        elif name == "triplets":
            SignCodes.write(vectors_ND, context.output, name)
    if _PASSAGES in context.inputs:
        of_passages = _take_passages(context)
        counts, kinds = of_passages["counts"] | counts, of_passages["faiss"] | kinds
    if "chunks" in counts and ("graph" not in context.inputs or context.config.index.links):
        _link(context)
    about = {"embedder": embedder.identity, "counts": counts, "faiss": kinds}
    write_json(context.output / _ABOUT, about)
    context.notes["faiss"] = kinds
    return counts


def _take_passages(context: StageContext) -> dict[str, Any]:
    """Take the vectors and the index of the chunks as they are; returns their description."""
    source = context.inputs[_PASSAGES]
    for file in source.glob("chunks.*"):
        try:
            os.link(file, context.output / file.name)  # for all of Wikipedia they have 67 GB
        except OSError:  # a file system without hard links
            shutil.copyfile(file, context.output / file.name)
    described: dict[str, Any] = read_json(source / _ABOUT)
    return described


def _link(context: StageContext) -> None:
    """Write BM25 and, with a graph, the links of all chunks.

    The ends of triplets are names of their chunks.
    """
    import pyarrow.parquet as pq

    from pipeline.core.columns import Columns
    from pipeline.knowledge.graph.links import LINKS, write_links
    from pipeline.knowledge.index.bm25 import BM25, Bm25
    from pipeline.knowledge.index.embed import passage_text

    corpus, graph = context.inputs["corpus"], context.inputs.get("graph")
    texts = Columns(corpus / "chunks.arrow", ("title", "text"))
    if _PASSAGES in context.inputs:
        shutil.copytree(context.inputs[_PASSAGES] / BM25, context.output / BM25)
    else:
        Bm25.build(passage_text(*row) for row in texts.iterate()).save(context.output / BM25)
    if graph is None:
        return

    def triplet_names() -> Iterator[tuple[int, str]]:
        with pq.ParquetFile(graph / "triplets.parquet", pre_buffer=False) as file:
            if not file.metadata.num_rows:
                return
            ids = Columns(corpus / "chunks.arrow", ("id",)).column(0)
            rows = {chunk_id: row for row, chunk_id in enumerate(ids)}
            for batch in file.iter_batches(_BLOCK, columns=["chunk_id", "head", "tail"]):
                for triplet in batch.to_pylist():
                    yield rows[triplet["chunk_id"]], triplet["head"]
                    yield rows[triplet["chunk_id"]], triplet["tail"]

    count = write_links(context.output / LINKS, texts.iterate(), triplet_names())  # type: ignore[arg-type]
    print(f"links: {count:,} names")


def _kept(context: StageContext, table: str, part: str, make: Callable[[], Bytes]) -> Bytes:
    """A part of the index over a table, from the checkpoint directory if it is there."""
    import numpy as np

    from pipeline.engine.files.checkpoints import intact, save_array_checkpoint

    name = f"{table}-index-{part}"
    if finished := intact(context.checkpoint_dir, name, ".npy"):
        found: Bytes = np.load(finished[0])
        return found
    made = make()
    save_array_checkpoint(context.checkpoint_dir, name, made)
    return made


def _check_kinds(settings: config.knowledge.Index, embedder: Embedder, tables: Tables) -> None:
    """Refuse an index that cannot be built or searched before its texts are embedded."""
    from pipeline.knowledge.index.kinds import check_gpu, resolve_kind

    for name, table in tables.items():
        if name in _SEARCHED:
            kind = resolve_kind(settings.faiss, _row_count(table))
            if kind == "ivf-pq" and settings.gpu:
                check_gpu(embedder.encode([], "passage").shape[1])


def _embed(
    context: StageContext, embedder: Embedder, name: str, table: Table, rows: tuple[int, int]
) -> Vectors:
    """Vectors [N, D] of ``rows`` (first, and after the last), memory-mapped from the output.

    Finished blocks are kept in the checkpoint directory, so that an interrupted stage resumes after
    them.
    """
    import numpy as np

    from pipeline.engine.files.checkpoints import intact, save_array_checkpoint

    first, last = rows
    store = _row_count(table) <= CACHED_TEXTS

    def blocks() -> Iterator[Vectors]:
        for start, texts in _blocks(table, first, last):
            block = f"{name}-{start:09d}-{start + len(texts):09d}"
            if finished := intact(context.checkpoint_dir, block, ".npy"):
                yield np.load(finished[0])
                context.progress.skip(len(texts))
            else:
                made_ND = embedder.encode(texts, "passage", store=store, progress=context.progress)
                save_array_checkpoint(context.checkpoint_dir, block, made_ND)
                yield made_ND
        if first == last:
            yield embedder.encode([], "passage")

    return _stored(context, name, last - first, blocks())


def _join(context: StageContext, name: str, table: Table) -> Vectors:
    """Vectors [N, D] of a table, joined from its shards and memory-mapped from the output."""
    import numpy as np

    from pipeline.engine.files.shards import shard_directories

    count = _row_count(table)
    parts = [np.load(shard / f"{name}.npy", mmap_mode="r") for shard in shard_directories(context)]
    if (rows := sum(map(len, parts))) != count:
        raise StoreError(
            f"the shards hold {rows} vectors of {name}, and {table[0]} has {count} rows; rerun the "
            "stage with --force"
        )

    def blocks() -> Iterator[Vectors]:
        for part in parts:
            for low in range(0, len(part), _BLOCK):
                yield part[low : low + _BLOCK]
                context.progress.advance(len(part[low : low + _BLOCK]))
        if not count:
            yield np.array(parts[0])

    return _stored(context, name, count, blocks())


def _stored(context: StageContext, name: str, count: int, blocks: Iterator[Vectors]) -> Vectors:
    """Vectors [N, D] of consecutive blocks, memory-mapped from the output."""
    import numpy as np

    file, first_ND, start = context.output / f"{name}.npy", next(blocks), 0
    if not count:
        np.save(file, first_ND)
        return first_ND
    shape = (count, first_ND.shape[1])
    target: Any = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=shape)
    for block_ND in chain((first_ND,), blocks):
        target[start : start + len(block_ND)] = block_ND
        start += len(block_ND)
    target.flush()
    vectors: Vectors = target
    return vectors


def _blocks(table: Table, first: int, last: int) -> Iterator[tuple[int, list[str]]]:
    """(number of the first row, texts) of blocks of the rows ``first`` to ``last``."""
    import pyarrow.parquet as pq

    from pipeline.knowledge.index.embed import passage_text

    path, columns = table
    with pq.ParquetFile(path, pre_buffer=False) as file:
        sizes = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
        ends = list(accumulate(sizes))
        groups = [n for n, end in enumerate(ends) if end > first and end - sizes[n] < last]
        start = ends[groups[0]] - sizes[groups[0]] if groups else 0
        for batch in file.iter_batches(_BLOCK, row_groups=groups, columns=list(columns)):
            low, high = max(first, start), min(last, start + batch.num_rows)
            if low < high:
                rows = batch.slice(low - start, high - low)
                parts = [rows.column(column).to_pylist() for column in columns]
                yield low, [passage_text(*row) for row in zip(*parts, strict=True)]
            start += batch.num_rows
