"""Stage ``candidates``: the chunks that the questions of a run can reach (``graph.scope``).

TeaRAG extracts triplets from every passage of Wikipedia (arXiv 2511.05385, 4.1), of which most are
never retrieved. Input: the corpus, its passage index, and the questions of every split. Output:
``chunks.parquet`` and ``chunks.arrow`` in the order of the corpus. They hold, for each query, the
``graph.candidates`` nearest chunks by their vectors and as many by BM25, and the gold paragraphs of
the cold start that the corpus has. Queries are the questions of the rounds, of validation and of
the test, and the sub-questions of the cold start. A question of the cold start is itself a query
only if it has no decomposition or a policy answers it (rejection sampling).

The second hop of a question is hardly in its words. With the inputs ``explore-<split>``, roll-outs
of policy 0 over all questions, the queries are its searches, and the chunks of the input
``candidates`` are kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING

from pipeline.core.errors import InputError
from pipeline.core.progress import counted
from pipeline.core.records import Chunk
from pipeline.engine.opened import QUERY_TOKENS, Opened, Work, embedder, vectors
from pipeline.engine.plan.clock import Clock
from pipeline.engine.plan.sizes import CHUNK_BYTES
from pipeline.engine.stage import StageTask
from tasks.corpus import Corpus
from tasks.explore import Explore
from tasks.graph import Explorable
from tasks.passage_index import PassageIndex
from tasks.questions import QUESTIONS_READ, SPLITS, question_sets, questions_by_split
from tasks.sft_data import titled_chunks

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pipeline.engine.context import StageContext

    Rows = NDArray[np.int64]


class Candidates(Explorable):
    """The passages that questions and the sub-questions of the cold start find, and its gold."""

    stage = "candidates"
    help = "passages that get triplets (graph.scope: candidates)"
    version = 2
    reads = ("graph.candidates", "index.embedder", "sft_data.rejection_sampling")

    @cached_property
    def inputs(self) -> dict[str, StageTask]:
        needs = {"corpus": self.clone(Corpus), "passages": self.clone(PassageIndex)}
        if not self.explored:
            return {**needs, **question_sets(self)}
        splits = [s for s in SPLITS if s != "sft" and getattr(self.settings.data, s)]
        explored = {f"explore-{split}": self.clone(Explore, split=split) for split in splits}
        return {**needs, "candidates": self.clone(Candidates, explored=False), **explored}

    @property
    def input_files(self) -> Mapping[str, tuple[str, ...]]:
        return dict.fromkeys(question_sets(self), QUESTIONS_READ["questions"])

    def opens(self) -> Iterator[Opened]:
        yield vectors(self.settings.index)
        yield embedder(self.settings, QUERY_TOKENS)

    def work(self, clock: Clock) -> Work:
        tokens = clock.sizes.queries * QUERY_TOKENS
        seconds = clock.encoding(embedder(self.settings), tokens)
        return Work(seconds, disk=CHUNK_BYTES * clock.sizes.extracted)


_BLOCK = 1024  # queries that are searched at once


def run(context: StageContext) -> dict[str, int]:
    """Write the tables of chunks; returns the numbers of queries and of chunks.

    Raises InputError when there are no queries.
    """
    import numpy as np

    from pipeline.core.columns import Columns, Records
    from pipeline.knowledge.corpus.chunk import write_chunks

    if "candidates" in context.inputs:
        queries = _searches(context)
        kept = Columns(context.inputs["candidates"] / "chunks.arrow", ("id",)).column(0)
    else:
        queries, kept = _queries(context)
        if not queries:
            raise InputError("graph.scope is candidates, and the run has no questions; add some")
    path = context.inputs["corpus"] / "chunks.arrow"
    context.progress.start(2 * len(queries), "searches")
    found = [*_by_vectors(context, queries), *_by_words(context, queries)]
    rows = np.unique(np.concatenate([Columns(path, ("id",)).where(0, kept), *found]))
    chunks = Records(path, Chunk)
    count = write_chunks(context.output, (chunks[int(row)] for row in rows))
    print(f"candidates: {count:,} of {len(chunks):,} chunks, for {len(queries):,} queries")
    return {"queries": len(queries), "chunks": count}


def _searches(context: StageContext) -> list[str]:
    """Distinct queries of the roll-outs."""
    from pipeline.core.trajectory_file import FILE, iterate_trajectories

    steps = (
        step
        for name, folder in context.inputs.items()
        if name.startswith("explore-")
        for trajectory in iterate_trajectories(folder / FILE, ("steps",))
        for step in trajectory.steps
    )
    found = (step.subquery or step.search or step.query for step in steps)
    return list(dict.fromkeys(text for text in found if text))


def _queries(context: StageContext) -> tuple[list[str], list[str]]:
    """Distinct queries, and the ids of the gold chunks of the cold start."""
    from pipeline.knowledge.graph.locate import Locator
    from pipeline.training.sft_data.steps import collect_hops

    queries: dict[str, None] = {}
    gold: set[str] = set()
    for split, questions in questions_by_split(context.inputs).items():
        teaches = split == "sft" and context.config.sft_data.rejection_sampling is None
        taught = []
        for question in questions:
            if teaches:
                taught.append(question)
            if not (teaches and question.decomposition):
                queries[question.question] = None
        locator = Locator(titled_chunks(taught, context.inputs["corpus"]))
        for hops in collect_hops(taught, locator, (), None):
            queries |= {hop.question: None for hop in hops}
            gold |= {chunk.id for hop in hops for chunk in hop.chunks}
    return list(queries), list(gold)


def _by_vectors(context: StageContext, queries: Sequence[str]) -> Iterable[Rows]:
    """Rows of the chunks nearest to each query."""
    from pipeline.core.content_cache import open_cache
    from pipeline.knowledge.index.embed import open_embedder
    from pipeline.knowledge.index.faiss_index import VectorIndex

    settings, folder = context.config.index, context.inputs["passages"]
    index = VectorIndex.load(folder / "chunks.faiss", folder / "chunks.npy", gpu=settings.gpu)
    embedder = open_embedder(settings.embedder, open_cache(context.config.cache_dir))
    for start in range(0, len(queries), _BLOCK):
        query_QD = embedder.encode(queries[start : start + _BLOCK], "query")
        for rows, _ in index.search(query_QD, context.config.graph.candidates):
            yield rows
        context.progress.advance(len(query_QD))


def _by_words(context: StageContext, queries: Sequence[str]) -> Iterable[Rows]:
    """Rows of the chunks with the highest BM25 for each query, without chunks that score 0."""
    from pipeline.knowledge.index.bm25 import BM25, Bm25
    from pipeline.knowledge.retrieval.base import top_positions

    bm25 = Bm25.load(context.inputs["passages"] / BM25)

    def best(query: str) -> Rows:
        scores_N = bm25.scores(query)
        rows = top_positions(scores_N, context.config.graph.candidates)
        return rows[scores_N[rows] > 0]

    with ThreadPoolExecutor(int(os.environ.get("OMP_NUM_THREADS") or 1)) as pool:
        yield from counted(pool.map(best, queries), context.progress)
