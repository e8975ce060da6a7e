"""Recall and cost of every retriever on the same queries.

Input: a configuration, the directories built for it, and its questions. Output: one
`RetrievalMetrics` per kind of query, retriever and reranker. The retrievers are ``bm25``; the
variants ``fused`` and ``linked`` of `open_retriever`, which use no reranker; ``semantic``,
``graph``, ``concat`` and ``ppr``, each with the configured reranker and without one (ranked by the
cosine of the embedder); and ``hyperedges``, ``graph-r1`` and ``prograph`` without one. A
bi-encoder with the same embedder does not change the order, so a configuration with it has one
result per variant.

`build_corpus` and `build_stages` write what the stages ``corpus`` to ``hyper-index`` write, without
a run around them. Embeddings are read from the cache below ``cache_dir`` if it has them; everything
else is rebuilt in seconds. The corpus is built separately, so that the questions can be checked
against it before anything is embedded.

A query is used as subquery and as key entity, as in Single-* (TeaRAG, arXiv 2511.05385, definition
3.1). ``retrieval.named_entities`` finds better entities. Seconds are measured in a second pass with
all vectors in memory, so they exclude the embedding of the query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np

from pipeline.config import Config, Reranker
from pipeline.core.columns import Columns
from pipeline.core.records import ContextItem
from pipeline.engine.context import StageContext
from pipeline.engine.process.worker import call_stage
from pipeline.evaluation.compare import paired_test
from pipeline.knowledge.index.bm25 import BM25, Bm25
from pipeline.knowledge.index.embed import Embedder
from pipeline.knowledge.retrieval.base import Query, top_positions
from pipeline.knowledge.retrieval.factory import open_retriever
from pipeline.look.recall.questions import (
    DocumentOf,
    RecallQuery,
    RecallQuestions,
    ranked_documents,
    recall_at,
)
from pipeline.methods.prograph.grammar import ProGraph
from pipeline.methods.tearag.grammar import TeaRag

CUTS = (2, 5)
VARIANTS = ("semantic", "graph", "concat", "ppr")
LINK_VARIANTS = ("fused", "linked")
HYPER_VARIANTS = ("hyperedges", "graph-r1", "prograph")
# Scale and offset for the cosine of all-MiniLM-L6-v2 between question and passage.
COSINE_SCALE, COSINE_OFFSET = 16.8, -7.75
QueryKind = Literal["question", "sub-question"]
Retrieve = Callable[[Sequence[str]], list[list[ContextItem]]]
CountTokens = Callable[[str], int]


@dataclass(slots=True)
class RetrievalMetrics:
    """Metrics of one retriever over the queries of one kind.

    Attributes:
        n: number of queries.
        recall: mean ``recall@k`` over queries, and ``all_gold@5``: the share of questions with
            recall@5 = 1 for each of their queries.
        strict: the same with chunks only.
        tokens_per_retrieval: mean tokens of the observation text.
        items, triplets: mean number of retrieved items, and of triplets among them.
        seconds_per_query: retrieval time without the embedding of the query.
        against_semantic: paired test of recall@5 against semantic retrieval on the same queries.
    """

    dataset: str
    query: QueryKind
    retriever: str
    reranker: str | None
    n: int
    recall: dict[str, float]
    strict: dict[str, float]
    tokens_per_retrieval: float
    items: float
    triplets: float
    seconds_per_query: float
    against_semantic: dict[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """A flat object with keys such as ``recall@5``, for ``--json``."""
        values = asdict(self)
        recall: dict[str, Any] = values.pop("recall")
        return recall | values


@dataclass(frozen=True, slots=True)
class RetrieverVariant:
    """A retriever and its reranker.

    ``open`` returns a context manager that opens a retriever with empty caches and closes it.
    """

    retriever: str
    reranker: str | None
    open: Callable[[], AbstractContextManager[Retrieve]]


def measure_retrievers(
    questions: RecallQuestions,
    variants: Sequence[RetrieverVariant],
    document_of: DocumentOf,
    count_tokens: CountTokens,
) -> list[RetrievalMetrics]:
    """Measure every variant on questions and on sub-questions.

    Within a kind of query, each variant is tested against semantic retrieval with the same
    reranker.
    """
    result = []
    kinds: dict[QueryKind, list[RecallQuery]]
    kinds = {"question": questions.questions, "sub-question": questions.sub_questions}
    for kind, queries in kinds.items():
        of_kind, recalls = [], {}
        for variant in variants if queries else ():
            retrieved, seconds = _retrieve(variant, [query.query for query in queries])
            loose, strict = (
                _recalls(queries, retrieved, document_of, strict=strict) for strict in (False, True)
            )
            ids = [query.question_id for query in queries]
            grammar = ProGraph() if variant.retriever in HYPER_VARIANTS else TeaRag()
            texts = [grammar.observation(list(items), "\n") for items in retrieved]
            metrics = RetrievalMetrics(
                dataset=questions.dataset,
                query=kind,
                retriever=variant.retriever,
                reranker=variant.reranker,
                n=len(queries),
                recall=_means(ids, loose),
                strict=_means(ids, strict),
                tokens_per_retrieval=float(np.mean([count_tokens(text) for text in texts])),
                items=float(np.mean([len(items) for items in retrieved])),
                triplets=float(
                    np.mean([sum(i.kind == "triplet" for i in items) for items in retrieved])
                ),
                seconds_per_query=seconds / len(queries),
            )
            of_kind.append(metrics)
            recalls[variant.retriever, variant.reranker] = loose[CUTS[-1]]
        for metrics in of_kind:
            semantic = recalls.get(("semantic", metrics.reranker), recalls.get(("semantic", None)))
            if semantic is not None and metrics.retriever != "semantic":
                recall_Q = recalls[metrics.retriever, metrics.reranker]
                metrics.against_semantic = paired_test([recall_Q - semantic])
        result += of_kind
    return result


def retriever_variants(
    config: Config, built: BuiltStages, embedder: Embedder
) -> tuple[list[RetrieverVariant], list[str]]:
    """All variants for these indexes, and notes about the variants that are left out."""
    notes = []
    variants = []
    plain = _rerankers(config)[0][1]
    if config.index.links:
        variants = [_bm25(config, built)]
        variants += [_variant(config, built, embedder, name, None, plain) for name in LINK_VARIANTS]
    else:
        notes.append("bm25, fused and linked are left out: bm25s is not installed")
    names: tuple[str, ...] = VARIANTS
    if not built.triplets:
        names = ("semantic",)
        notes.append(
            "graph, concat, ppr and the hypergraph are left out: there are no triplets of this "
            "corpus; link passages by their titles with --set graph.source=titles"
        )
    kinds = [(name, *one) for one in _rerankers(config) for name in names]
    kinds += [(name, None, plain) for name in HYPER_VARIANTS if built.hyperedges]
    return variants + [_variant(config, built, embedder, *kind) for kind in kinds], notes


def _retrieve(
    variant: RetrieverVariant, queries: list[str]
) -> tuple[list[list[ContextItem]], float]:
    """Retrieved items, and the seconds of a second pass with cached embeddings."""
    with variant.open() as retrieve:
        retrieved = retrieve(queries)
    with variant.open() as retrieve:
        start = perf_counter()
        retrieve(queries)
        seconds = perf_counter() - start
    return retrieved, seconds


def _recalls(
    queries: Sequence[RecallQuery],
    retrieved: Sequence[Sequence[ContextItem]],
    document_of: DocumentOf,
    *,
    strict: bool,
) -> dict[int, np.ndarray]:
    """Recall@k per query, by k."""
    rankings = [ranked_documents(items, document_of, strict=strict) for items in retrieved]
    ranked = list(zip(queries, rankings, strict=True))
    return {k: np.array([recall_at(each, query.gold, k) for query, each in ranked]) for k in CUTS}


def _means(question_ids: Sequence[str], recalls: dict[int, np.ndarray]) -> dict[str, float]:
    """Mean recalls, and the share of questions whose queries all have recall 1."""
    means = {f"recall@{k}": float(recall_Q.mean()) for k, recall_Q in recalls.items()}
    complete: dict[str, bool] = {}
    for question_id, recall in zip(question_ids, recalls[CUTS[-1]].tolist(), strict=True):
        complete[question_id] = complete.get(question_id, True) and recall == 1
    return means | {f"all_gold@{CUTS[-1]}": sum(complete.values()) / len(complete)}


def _bm25(config: Config, built: BuiltStages) -> RetrieverVariant:
    chunks = Columns(built.folder / "corpus" / "chunks.arrow", ("id", "title", "text"))
    index = Bm25.load(built.folder / "index" / BM25)

    def best(query: str) -> list[ContextItem]:
        scores_N = index.scores(query)
        rows = [n for n in top_positions(scores_N, config.retrieval.top_k) if scores_N[n] > 0]
        ranked = [(chunks[int(row)], float(scores_N[row])) for row in rows]
        return [ContextItem("chunk", i, title, text, score) for (i, title, text), score in ranked]

    return RetrieverVariant("bm25", None, lambda: nullcontext(lambda qs: list(map(best, qs))))


def _variant(
    config: Config,
    built: BuiltStages,
    embedder: Embedder,
    name: str,
    label: str | None,
    reranker: Reranker,
) -> RetrieverVariant:
    changes = {"variant": name, "reranker": reranker}
    retrieval = config.retrieval.model_copy(update=changes)

    @contextmanager
    def open_variant() -> Iterator[Retrieve]:
        retriever = open_retriever(
            retrieval,
            config.index,
            *built.knowledge(over_hypergraph=retrieval.over_hypergraph),
            cache_dir=config.cache_dir,
            embedder=embedder,
        )
        try:
            yield lambda queries: retriever.retrieve([Query(text, (text,)) for text in queries])
        finally:
            retriever.close()

    return RetrieverVariant(name, label, open_variant)


def _rerankers(config: Config) -> list[tuple[str | None, Reranker]]:
    settings = config.retrieval.reranker
    if settings.kind == "biencoder" and settings.model is None:
        return [(None, settings)]
    plain = Reranker(kind="biencoder", scale=COSINE_SCALE, offset=COSINE_OFFSET)
    return [(None, plain), (f"{settings.kind} {settings.model}", settings)]


@dataclass(frozen=True, slots=True)
class BuiltStages:
    """The directory of the stages' outputs, and their numbers of rows."""

    folder: Path
    entities: int
    triplets: int
    hyperedges: int

    def knowledge(self, *, over_hypergraph: bool) -> tuple[Path, Path, Path]:
        """The corpus, the graph or hypergraph, and its index."""
        graph, index = ("hypergraph", "hyper-index") if over_hypergraph else ("graph", "index")
        return self.folder / "corpus", self.folder / graph, self.folder / index


def build_corpus(config: Config, folder: Path) -> Path:
    """Run the stage ``corpus`` below ``folder`` and return its directory.

    Raises the errors of the stage.
    """
    _make(config, folder, "corpus")
    return folder / "corpus"


def build_stages(config: Config, folder: Path, corpus: Path) -> BuiltStages:
    """Run the stages after ``corpus`` below ``folder``; there is no hypergraph without triplets.

    Raises the errors of the stages.
    """
    graph, hypergraph = folder / "graph", folder / "hypergraph"
    hyperedges = 0
    _make(config, folder, "graph", corpus=corpus)
    counts = _make(config, folder, "index", corpus=corpus, graph=graph)
    if counts["triplets"]:
        hyperedges = _make(config, folder, "hypergraph", corpus=corpus, graph=graph)["hyperedges"]
        _make(config, folder, "hyper-index", graph=hypergraph)
    return BuiltStages(folder, counts["entities"], counts["triplets"], hyperedges)


def _make(config: Config, folder: Path, stage: str, **inputs: Path) -> dict[str, int]:
    """Run a stage, which is above this package; returns its counts."""
    output = folder / stage
    output.mkdir(parents=True)
    context = StageContext(config, stage, output, folder / f"{stage}-checkpoints", inputs)
    return call_stage(f"tasks.{stage.removeprefix('hyper-')}:run", context)
