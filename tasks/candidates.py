"""The passages that questions can reach, and the index of all passages that finds them.

A run has these stages if ``graph.scope`` is ``candidates``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import luigi

from tasks.base import StageTask
from tasks.corpus import Corpus
from tasks.evaluate_any import EvaluateAny
from tasks.graph import Explorable
from tasks.index import Indexing, knowledge
from tasks.opened import QUERY_TOKENS, Opened, Vectors, Work, embedder
from tasks.planning.clock import Clock
from tasks.planning.sizes import CHUNK_BYTES, LINK_BYTES
from tasks.policy import policy
from tasks.questions import QUESTIONS_READ, SPLITS, question_sets, questions
from tasks.sample import RollOutTask


class PassageIndex(Indexing):
    """Embeddings, the vector index and BM25 of all passages, before a graph exists."""

    stage = "passage-index"
    help = "embeddings and indexes of passages, to choose those with triplets"
    version = 2

    def upstream(self) -> dict[str, StageTask]:
        return {"corpus": self.clone(Corpus)}

    def work(self, clock: Clock) -> Work:
        chunks = clock.sizes.chunks
        work = self.indexing(clock, chunks, chunks * clock.rates.chunk_tokens)
        return work + Work(disk=LINK_BYTES * chunks)


class Explore(RollOutTask):
    """Policy 0 answers the questions of a split as in an evaluation; it searches for passages."""

    stage = "explore"
    help = "searches of policy 0, to choose passages with triplets"
    named = False
    made_by = "evaluate"
    entry = "pipeline.stages.evaluate:run"
    merge_entry = "pipeline.stages.evaluate:merge_shards"
    reads = EvaluateAny.reads
    split = luigi.Parameter(description="sampling, validation or test")

    @property
    def variant(self) -> str | None:
        return str(self.split)

    def upstream(self) -> dict[str, StageTask]:
        return {
            **knowledge(self, explored=False),
            "questions": questions(self, self.split),
            "policy": policy(self, 0),
        }

    def trajectories(self, clock: Clock) -> float:
        return clock.sizes.questions[self.split]


class Candidates(Explorable):
    """The passages that questions and the sub-questions of the cold start find, and its gold."""

    stage = "candidates"
    help = "passages that get triplets (graph.scope: candidates)"
    entry = "pipeline.stages.candidates:run"
    reads = ("graph.candidates", "index.embedder", "sft_data.rejection_sampling")

    def upstream(self) -> dict[str, StageTask]:
        needs = {"corpus": self.clone(Corpus), "passages": self.clone(PassageIndex)}
        if not self.explored:
            return {**needs, **question_sets(self)}
        splits = [s for s in SPLITS if s != "sft" and getattr(self.settings.data, s)]
        explored = {f"explore-{split}": self.clone(Explore, split=split) for split in splits}
        return {**needs, "candidates": self.clone(Candidates, explored=False), **explored}

    @property
    def input_files(self) -> Mapping[str, tuple[str, ...]]:
        files = QUESTIONS_READ["questions"]
        return dict.fromkeys(question_sets(self), files)

    def opens(self) -> Iterator[Opened]:
        index = self.settings.index
        yield Vectors(key="index.faiss", name=index.faiss, block="index", on_gpu=index.gpu)
        yield embedder(self.settings, QUERY_TOKENS)

    def work(self, clock: Clock) -> Work:
        tokens = clock.sizes.queries * QUERY_TOKENS
        seconds = clock.encoding(embedder(self.settings), tokens)
        return Work(seconds, disk=CHUNK_BYTES * clock.sizes.extracted)
