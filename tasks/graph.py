"""Stage ``graph``: chunks to triplets and entities (TeaRAG 4.1).

Input: the corpus stage, and triples from one of four sources: annotations, OpenIE results, a
language model, or mentions of titles in other passages. With the stage ``candidates`` as an input
only the triples of its chunks are taken, and a model reads these alone. Output: the graph's tables
(`graph.tables`), ``statistics.json``, ``rejects.jsonl`` (rejected triples with reasons), and for a
language model ``chat.json`` (calls, tokens, cost).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pipeline.core.atomic import write_json
from pipeline.core.errors import InputError
from pipeline.core.progress import counted
from pipeline.core.records import Chunk
from pipeline.engine.fingerprint import model_identity
from pipeline.engine.luigi_adapter import luigi
from pipeline.engine.opened import Opened, Work, chat
from pipeline.engine.plan.clock import Clock
from pipeline.engine.plan.sizes import ANSWER_BYTES, ENTITY_BYTES, TRIPLET_BYTES
from pipeline.engine.shards import DivisibleTask
from pipeline.engine.stage import STAGES, StageTask
from tasks.corpus import Corpus
from tasks.world import DataTask

if TYPE_CHECKING:
    from pipeline import config
    from pipeline.core.columns import Records
    from pipeline.engine.context import StageContext
    from pipeline.knowledge.graph.build import Extracted, Reject


class FactsTask(DataTask, DivisibleTask):
    """Base of both: facts from a file, from a rule, or from a model that reads the chunks."""

    block: ClassVar[str]  # of the settings
    file_sources: ClassVar[tuple[str, ...]]  # sources that read the file ``path``
    fact_kind: ClassVar[str]  # the field of `Sizes` with their number
    fact_bytes: ClassVar[float]

    @property
    def source(self) -> config.Graph | config.Hypergraph:
        """The block of settings."""
        found: config.Graph | config.Hypergraph = getattr(self.settings, self.block)
        return found

    @property
    def runs_model(self) -> bool:
        return self.source.source == "llm"

    @property
    def paths(self) -> tuple[str, ...]:
        return (str(self.source.path),) if self.source.source in self.file_sources else ()

    def files(self) -> dict[str, Path | str]:
        if self.runs_model:
            return {"model": model_identity(self.source.model)} if self.source.model else {}
        return super().files()

    def opens(self) -> Iterator[Opened]:
        if self.runs_model:
            yield from chat(self.block, self.source)

    def read(self, clock: Clock) -> float:
        """The number of chunks that are read, by the sizes of the data."""
        return clock.sizes.chunks

    def work(self, clock: Clock) -> Work:
        sizes, chunks = clock.sizes, self.read(clock)
        disk = self.fact_bytes * getattr(sizes, self.fact_kind) + ENTITY_BYTES * sizes.entities
        disk += ANSWER_BYTES * chunks * self.runs_model
        return chunks * clock.extraction(self.opens()) + Work(disk=disk)

    def faults(self) -> Iterator[str]:
        from pipeline.knowledge.corpus.first_records import source_faults

        yield from super().faults()
        listed = self.source.source == "annotated"
        for path in super().files().values():
            yield from source_faults(Path(path), f"{self.block}.path", listed=listed)


class Explorable(StageTask):
    """A stage that ``graph.scope: candidates`` has twice.

    The first is for the cold start and for the roll-outs of policy 0 that explore. The second adds
    the passages that these found.
    """

    explored = luigi.BoolParameter(default=False, description="with what policy 0 searches for")

    @property
    def label(self) -> str:
        return f"{super().label}-explored" if self.explored else super().label

    @property
    def command(self) -> tuple[str, ...]:
        return ("run", "report") if self.explored else super().command


class Graph(Explorable, FactsTask):
    """The knowledge graph of all chunks, or of candidates."""

    stage = "graph"
    help = "knowledge graph of the passages"
    version = 4
    shard_version = 3  # the answers, whose reading is no part of a shard
    reads = ("graph", "data.root")
    block = "graph"
    file_sources = ("annotated", "openie")
    fact_kind, fact_bytes = "triplets", TRIPLET_BYTES

    @cached_property
    def inputs(self) -> dict[str, StageTask]:
        needs = {"corpus": self.clone(Corpus), **self.world()}
        if self.settings.graph.scope == "candidates":
            needs["candidates"] = self.clone(STAGES["candidates"])
        return needs

    def read(self, clock: Clock) -> float:
        """The second graph has the answers about the chunks of the first."""
        sizes = clock.sizes
        return sizes.extracted - sizes.reached if self.explored else sizes.reached


def run(context: StageContext) -> dict[str, int]:
    """Write the stage's files and return the counts of triplets, entities and rejects.

    Raises InputError when every triple that the source yields is rejected, StoreError when shards
    have answers on other chunks. Without any triple the graph is empty, and retrieval finds
    passages alone.
    """
    from pipeline.engine.files.extraction import chosen_chunks
    from pipeline.knowledge.graph.build import Graph
    from pipeline.knowledge.graph.tables import write_triplets

    chunks, graph = chosen_chunks(context), Graph()
    write_triplets(context.output, graph.edges(_extracted(context, chunks)), graph.entities)
    if not graph.per_chunk and context.config.graph.source != "none":
        nothing = f"graph.source is {context.config.graph.source}; it yields no triplet"
        if graph.rejects:
            raise InputError(f"{nothing}; {len(graph.rejects)} were rejected")
        print(f"warning: {nothing}; retrieval will find passages alone")
    write_statistics(context, chunks, graph.statistics(), graph.rejects)
    return {
        "triplets": graph.per_chunk.total(),
        "entities": len(graph.entities),
        "rejects": len(graph.rejects),
    }


def run_shard(context: StageContext) -> dict[str, int]:
    """Ask the model about one shard of the chunks; returns the number of answers."""
    from pipeline.engine.files.extraction import chosen_chunks, write_answers
    from pipeline.knowledge.graph.extract import TRIPLETS

    settings = context.config.graph
    return write_answers(context, "graph", settings, chosen_chunks(context), TRIPLETS)


def write_statistics(
    context: StageContext,
    chunks: Records[Chunk],
    counts: Mapping[str, int | float],
    rejects: Sequence[Reject],
) -> None:
    """Write and print the counts of a graph or hypergraph, and write the rejected items."""
    from pipeline.core.record_io import write_jsonl

    statistics = {"documents": chunks.distinct("doc_id"), "chunks": len(chunks), **counts}
    write_jsonl(context.output / "rejects.jsonl", rejects)
    write_json(context.output / "statistics.json", statistics)
    for name, value in statistics.items():
        print(f"{name}: {value:,}")


def _extracted(context: StageContext, chunks: Sequence[Chunk]) -> Iterator[Extracted]:
    from pipeline.knowledge.graph.sources import link_titles

    settings = context.config.graph
    if settings.source not in ("titles", "none"):
        yield from _from_source(context, chunks)
    if settings.source == "titles" or settings.titles:
        context.progress.start(None, "links between titles")
        yield from counted(link_titles(chunks), context.progress)


def _from_source(context: StageContext, chunks: Sequence[Chunk]) -> Iterator[Extracted]:
    from pipeline.engine.files.extraction import corpus_chunks, extract_by_model
    from pipeline.knowledge.graph.extract import TRIPLETS
    from pipeline.knowledge.graph.sources import read_annotated, read_openie

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
