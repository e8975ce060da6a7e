"""Stage ``hypergraph``: chunks to n-ary facts and their entities (ProGraph-R1 3.1).

Input: the corpus stage, and facts from one of three sources: annotations (the closed world's
truth), a language model, or the graph stage's triplets grouped by sentence. Output: the
hypergraph's tables (`graph.tables`), ``statistics.json``, ``rejects.jsonl`` (rejected facts with
reasons), and for a language model ``chat.json`` (calls, tokens, cost).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from pipeline.core.errors import InputError
from pipeline.core.progress import counted
from pipeline.core.records import Chunk, Triplet
from pipeline.engine.plan.sizes import HYPEREDGE_BYTES
from pipeline.engine.stage import StageTask
from tasks.corpus import Corpus
from tasks.graph import FactsTask, Graph, write_statistics

if TYPE_CHECKING:
    from pipeline.engine.context import StageContext
    from pipeline.knowledge.graph.build import Extracted


class Hypergraph(FactsTask):
    """The hypergraph of all chunks."""

    stage = "hypergraph"
    help = "n-ary facts of the passages"
    version = 3
    shard_version = 2
    reads = ("hypergraph", "data.root")
    block = "hypergraph"
    file_sources = ("annotated",)
    fact_kind, fact_bytes = "hyperedges", HYPEREDGE_BYTES

    @cached_property
    def inputs(self) -> dict[str, StageTask]:
        needs = {"corpus": self.clone(Corpus), **self.world()}
        if self.settings.hypergraph.source == "triplets":
            needs["graph"] = self.clone(Graph)
        return needs


def run(context: StageContext) -> dict[str, int]:
    """Write the stage's files and return the counts of hyperedges, entities and rejects.

    Raises InputError when the source yields no fact, StoreError when shards have answers on other
    chunks.
    """
    from pipeline.engine.files.extraction import corpus_chunks
    from pipeline.knowledge.graph.facts import Facts
    from pipeline.knowledge.graph.tables import write_hyperedges

    chunks, facts = corpus_chunks(context), Facts()
    extracted = _extracted(context, chunks)
    count = write_hyperedges(context.output, facts.edges(extracted), facts.entities)
    if not count:
        rejected = f"; {len(facts.rejects)} were rejected" if facts.rejects else ""
        source = context.config.hypergraph.source
        raise InputError(f"hypergraph.source is {source}; it yields no fact{rejected}")
    write_statistics(context, chunks, facts.statistics(), facts.rejects)
    return {
        "hyperedges": count,
        "entities": len(facts.entities),
        "rejects": len(facts.rejects),
    }


def run_shard(context: StageContext) -> dict[str, int]:
    """Ask the model about one shard of the chunks; returns the number of answers."""
    from pipeline.engine.files.extraction import corpus_chunks, write_answers
    from pipeline.knowledge.graph.facts import FACTS

    settings = context.config.hypergraph
    return write_answers(context, "hypergraph", settings, corpus_chunks(context), FACTS)


def _extracted(context: StageContext, chunks: Sequence[Chunk]) -> Iterator[Extracted]:
    from pipeline.core.columns import Records
    from pipeline.engine.files.extraction import extract_by_model
    from pipeline.knowledge.graph.facts import FACTS
    from pipeline.knowledge.graph.sources import group_triplets, read_annotated_facts

    settings = context.config.hypergraph
    if settings.source == "triplets":
        triplets = Records(context.inputs["graph"] / "triplets.arrow", Triplet)
        context.progress.start(None, "facts")
        return counted(group_triplets(triplets, chunks), context.progress)
    if settings.source == "annotated":
        assert settings.path is not None  # checked by the configuration
        facts = read_annotated_facts(context.resolve(settings.path), chunks)
        context.progress.start(None, "facts")
        return counted(facts, context.progress)
    return extract_by_model(context, "hypergraph", settings, chunks, FACTS)
