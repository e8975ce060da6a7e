"""The stage ``passage-index``: the index of all passages, which finds candidates for triplets.

A run has this stage if ``graph.scope`` is ``candidates``.
"""

from __future__ import annotations

from functools import cached_property

from pipeline.engine.opened import Work
from pipeline.engine.plan.clock import Clock
from pipeline.engine.plan.sizes import LINK_BYTES
from pipeline.engine.stage import StageTask
from tasks.corpus import Corpus
from tasks.index import Indexing
from tasks.index import merge as merge
from tasks.index import run as run
from tasks.index import run_shard as run_shard


class PassageIndex(Indexing):
    """Embeddings, the vector index and BM25 of all passages, before a graph exists."""

    stage = "passage-index"
    help = "embeddings and indexes of passages, to choose those with triplets"
    version = 2

    @cached_property
    def inputs(self) -> dict[str, StageTask]:
        return {"corpus": self.clone(Corpus)}

    def work(self, clock: Clock) -> Work:
        chunks = clock.sizes.chunks
        work = self.indexing(clock, chunks, chunks * clock.rates.chunk_tokens)
        return work + Work(disk=LINK_BYTES * chunks)
