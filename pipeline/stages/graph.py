"""Stage ``graph``: chunks to triplets and entities (TeaRAG 4.1).

Input: the corpus stage, and triples from one of four sources: annotations, OpenIE results, a
language model, or mentions of titles in other passages. With the stage ``candidates`` as an input
only the triples of its chunks are taken, and a model reads these alone. Output: the graph's tables
(`graph.tables`), ``statistics.json``, ``rejects.jsonl`` (rejected triples with reasons), and for a
language model ``chat.json`` (calls, tokens, cost).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pipeline.core.atomic import write_json
from pipeline.core.columns import Records
from pipeline.core.errors import InputError
from pipeline.core.progress import counted
from pipeline.core.record_io import write_jsonl
from pipeline.core.records import Chunk
from pipeline.graph.build import Extracted, Graph, Reject
from pipeline.graph.extract import TRIPLETS
from pipeline.graph.sources import link_titles, read_annotated, read_openie
from pipeline.graph.tables import write_triplets
from pipeline.run.context import StageContext
from pipeline.stages.files.extraction import (
    chosen_chunks,
    corpus_chunks,
    extract_by_model,
    extract_by_shards,
    write_answers,
)


def run(context: StageContext) -> dict[str, int]:
    """Write the stage's files and return the counts of triplets, entities and rejects.

    Raises InputError when every triple that the source yields is rejected. Without any triple the
    graph is empty, and retrieval finds passages alone.
    """
    chunks = chosen_chunks(context)
    return _build(context, chunks, _extracted(context, chunks))


def run_shard(context: StageContext) -> dict[str, int]:
    """Ask the model about one shard of the chunks; returns the number of answers."""
    settings = context.config.graph
    return write_answers(context, "graph", settings, chosen_chunks(context), TRIPLETS)


def merge(context: StageContext) -> dict[str, int]:
    """Like `run`, with the answers of the shards.

    Raises StoreError when they are not on the chunks of the corpus.
    """
    chunks = chosen_chunks(context)
    return _build(context, chunks, _extracted(context, chunks, divided=True))


def _build(
    context: StageContext, chunks: Records[Chunk], extracted: Iterator[Extracted]
) -> dict[str, int]:
    graph = Graph()
    write_triplets(context.output, graph.edges(extracted), graph.entities)
    if not graph.triplets and context.config.graph.source != "none":
        nothing = f"graph.source is {context.config.graph.source}; it yields no triplet"
        if graph.rejects:
            raise InputError(f"{nothing}; {len(graph.rejects)} were rejected")
        print(f"warning: {nothing}; retrieval will find passages alone")
    write_statistics(context, chunks, graph.statistics(), graph.rejects)
    return {
        "triplets": graph.triplets,
        "entities": len(graph.entities),
        "rejects": len(graph.rejects),
    }


def write_statistics(
    context: StageContext,
    chunks: Records[Chunk],
    counts: Mapping[str, int | float],
    rejects: Sequence[Reject],
) -> None:
    """Write and print the counts of a graph or hypergraph, and write the rejected items."""
    statistics = {"documents": chunks.distinct("doc_id"), "chunks": len(chunks), **counts}
    write_jsonl(context.output / "rejects.jsonl", rejects)
    write_json(context.output / "statistics.json", statistics)
    for name, value in statistics.items():
        print(f"{name}: {value:,}")


def _extracted(
    context: StageContext, chunks: Sequence[Chunk], *, divided: bool = False
) -> Iterator[Extracted]:
    settings = context.config.graph
    if divided:
        yield from extract_by_shards(context, settings, chunks)
    elif settings.source not in ("titles", "none"):
        yield from _from_source(context, chunks)
    if settings.source == "titles" or settings.titles:
        context.progress.start(None, "links between titles")
        yield from counted(link_titles(chunks), context.progress)


def _from_source(context: StageContext, chunks: Sequence[Chunk]) -> Iterator[Extracted]:
    settings = context.config.graph
    if settings.path is not None and settings.source != "llm":
        path = context.resolve(settings.path)
        read = read_annotated if settings.source == "annotated" else read_openie
        context.progress.start(None, "triples")
        triples = counted(read(path, corpus_chunks(context)), context.progress)
        if "candidates" not in context.inputs:
            return triples
        chosen = {chunk.id for chunk in chunks}
        return (triple for triple in triples if triple.chunk_id in chosen)
    return extract_by_model(context, "graph", settings, chunks, TRIPLETS)
