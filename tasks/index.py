"""Embeddings and FAISS indexes: of the graph, and of the hypergraph; the inputs of retrieval."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tasks.base import STAGES, StageTask
from tasks.corpus import Corpus
from tasks.fingerprint import model_identity
from tasks.graph import Explorable, Graph, Hypergraph
from tasks.opened import Opened, Work, embedder
from tasks.planning.clock import Clock
from tasks.planning.sizes import LINK_BYTES
from tasks.sharding import DivisibleTask


class Indexing(DivisibleTask):
    """Base of the indexes of the graph, of the hypergraph, and of passages alone."""

    reads = ("index",)
    entry = "pipeline.stages.index:run"
    shard_entry = "pipeline.stages.index:run_shard"
    merge_entry = "pipeline.stages.index:merge"

    def files(self) -> dict[str, Path | str]:
        return {"embedder": model_identity(self.settings.index.embedder.model)}

    def opens(self) -> Iterator[Opened]:
        yield embedder(self.settings)

    def indexing(self, clock: Clock, texts: float, tokens: float) -> Work:
        """The work on ``texts`` texts, which have ``tokens`` tokens.

        Checkpoints, or the outputs of shards, hold every vector and the codes of indexes a second
        time.
        """
        from tasks.planning import memory

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

    def upstream(self) -> dict[str, StageTask]:
        """Passages that are embedded before the graph exists are not embedded again."""
        needs: dict[str, StageTask] = {"corpus": self.clone(Corpus), "graph": self.clone(Graph)}
        if self.settings.graph.scope == "candidates":
            needs["passages"] = self.clone(STAGES["passage-index"])
        return needs

    def work(self, clock: Clock) -> Work:
        from tasks.planning.memory import dimension

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

    def upstream(self) -> dict[str, StageTask]:
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
