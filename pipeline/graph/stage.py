"""Stage ``graph``: chunks to triplets and entities (TeaRAG 4.1).

Input: the corpus stage, and triples from one of three sources: annotations, ready OpenIE results,
or a language model. Output: ``triplets.parquet``, ``entities.parquet`` (id = row, key, name),
``statistics.json`` and ``rejects.jsonl`` (every triple that was not taken, with the reason); from a
language model also ``chat.json`` (answers, tokens, cost).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.errors import InputError
from pipeline.graph.annotated import read_annotated
from pipeline.graph.build import Extracted, build_graph
from pipeline.graph.entities import EntityTable
from pipeline.graph.openie import read_openie
from pipeline.records import (
    Chunk,
    Triplet,
    read_records,
    replace_text,
    write_jsonl,
    write_parquet,
)
from pipeline.stage import StageContext


def run(context: StageContext) -> dict[str, int]:
    """Write the stage's files; returns how many triplets, entities and rejects."""
    chunks = read_records(context.inputs["corpus"] / "chunks.parquet", Chunk)
    graph = build_graph(_extracted(context, chunks))
    if not graph.triplets:
        rejected = f"; {len(graph.rejects)} were rejected" if graph.rejects else ""
        raise InputError(f"graph: source {context.config.graph.source} gave no triplet{rejected}")
    documents = len({chunk.doc_id for chunk in chunks})
    statistics = {"documents": documents, "chunks": len(chunks), **graph.statistics()}
    write_parquet(context.output / "triplets.parquet", graph.triplets, Triplet)
    _write_entities(context.output / "entities.parquet", graph.entities)
    write_jsonl(context.output / "rejects.jsonl", graph.rejects)
    text = json.dumps(statistics, ensure_ascii=False, indent=1)
    replace_text(context.output / "statistics.json", text + "\n")
    return {
        "triplets": len(graph.triplets),
        "entities": len(graph.entities),
        "rejects": len(graph.rejects),
    }


def _extracted(context: StageContext, chunks: Sequence[Chunk]) -> Iterator[Extracted]:
    settings = context.config.graph
    if settings.path is not None and settings.source != "llm":
        path = context.resolve(settings.path)
        read = read_annotated if settings.source == "annotated" else read_openie
        return read(path, chunks)
    return _by_model(context, chunks)


def _by_model(context: StageContext, chunks: Sequence[Chunk]) -> Iterator[Extracted]:
    """Triplets from the configured model; when all are there, ``chat.json`` says what they took."""
    from pipeline.chat.opening import open_chat
    from pipeline.graph.extract import extract

    settings = context.config.graph
    with open_chat(
        context.config,
        "graph",
        model=settings.model,
        engine=settings.engine,
        endpoint=settings.endpoint,
        window=settings.batch,
        seed=context.seed,
    ) as chat:
        yield from extract(chunks, chat=chat)
    print(chat.usage.line())
    text = json.dumps(chat.usage.total(), indent=1)
    replace_text(context.output / "chat.json", text + "\n")


def _write_entities(path: Path, entities: EntityTable) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"id": range(len(entities)), "key": entities.keys, "name": entities.names}
    schema = pa.schema([("id", pa.int64()), ("key", pa.string()), ("name", pa.string())])
    pq.write_table(pa.table(columns, schema=schema), path, compression="zstd")
