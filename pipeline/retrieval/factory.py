"""Open the configured retriever over complete stage directories.

Input: a settings block, and the directories of the stages ``corpus``, ``graph`` and ``index``.
Output: a `VariantRetriever` that has opened only the tables and models that its variant uses.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pipeline.core.columns import Columns, check_rows
from pipeline.core.errors import InputError, StoreError
from pipeline.core.input_files import read_json
from pipeline.graph.adjacency import Adjacency
from pipeline.graph.tables import HYPEREDGE_COLUMNS, MEMBERS, NEIGHBOURS
from pipeline.index.embed import Embedder, open_cache, open_embedder
from pipeline.index.faiss_index import VectorIndex, load_vectors
from pipeline.retrieval.expansion import KeyEntityExpansion, LinkedChunkExpansion
from pipeline.retrieval.graph import GraphRetrieval
from pipeline.retrieval.hypergraph import HypergraphRetrieval, HypergraphVariant
from pipeline.retrieval.informativeness import Incidence
from pipeline.retrieval.rerank import Reranker, open_reranker
from pipeline.retrieval.retriever import VariantRetriever
from pipeline.retrieval.semantic import SemanticRetrieval

if TYPE_CHECKING:
    from pipeline.config.knowledge import Index, Retrieval


def open_retriever(
    settings: Retrieval,
    index_settings: Index,
    corpus: Path,
    graph: Path,
    index: Path,
    *,
    cache_dir: Path | str,
    embedder: Embedder | None = None,
    work: MutableMapping[str, float] | None = None,
) -> VariantRetriever:
    """The retriever of a settings block.

    The hypergraph variants take the hypergraph stage's directory as ``graph`` and the hyper-index
    stage's as ``index``. ``embedder`` is an open
    embedder with the same settings. ``work`` gets the number of pairs that the reranker scores.
    Raises StoreError when a file of the index is missing or broken, or when the index was built by
    another embedder or over other tables; DependencyError when a model or device is missing.
    """
    embedder_settings, gpu = index_settings.embedder, index_settings.gpu
    semantic: SemanticRetrieval | None = None
    graph_retrieval: GraphRetrieval | None = None
    key_entities: KeyEntityExpansion | None = None
    linked_chunks: LinkedChunkExpansion | None = None
    hypergraph: HypergraphRetrieval | None = None
    if settings.over_hypergraph:
        embedder = embedder or open_embedder(embedder_settings, open_cache(cache_dir))
        _check_embedder(index / "index.json", embedder)
        hypergraph = _open_hypergraph(settings, graph, index, embedder, gpu)
    elif settings.variant != "none":
        embedder = embedder or open_embedder(embedder_settings, open_cache(cache_dir))
        _check_embedder(index / "index.json", embedder)
        reranker = open_reranker(
            settings.reranker, embedder_settings, cache_dir, embedder=embedder, work=work
        )
        if settings.variant != "graph":
            semantic = _open_semantic(settings, corpus, index, embedder, reranker, gpu)
        if settings.variant != "semantic":
            graph_retrieval = _open_graph(settings, graph, index, embedder, reranker, gpu)
            if settings.named_entities:
                key_entities = _open_key_entities(corpus, graph)
        if settings.variant == "ppr" and settings.linked_chunks:
            linked_chunks = _open_linked_chunks(settings, corpus, index, embedder, reranker)
    return VariantRetriever(
        settings.variant,
        semantic,
        graph_retrieval,
        top_k=settings.top_k,
        tau=settings.tau,
        alpha=settings.alpha,
        show=settings.show,
        key_entities=key_entities,
        linked_chunks=linked_chunks,
        hypergraph=hypergraph,
    )


def _open_semantic(
    settings: Retrieval,
    corpus: Path,
    index: Path,
    embedder: Embedder,
    reranker: Reranker,
    gpu: bool,
) -> SemanticRetrieval:
    chunks = Columns(corpus / "chunks.arrow", ("id", "title", "text"))
    vectors = _load_index(index, "chunks", gpu)
    check_rows("chunks", len(vectors), len(chunks), index)
    return SemanticRetrieval(
        chunks,
        vectors,
        embedder,
        reranker,
        num_candidates=settings.num_candidate_chunks,
        top_k=settings.chunks,
    )


def _open_graph(
    settings: Retrieval,
    graph: Path,
    index: Path,
    embedder: Embedder,
    reranker: Reranker,
    gpu: bool,
) -> GraphRetrieval:
    columns = ("id", "head", "relation", "tail", "chunk_id")
    triplets = Columns(graph / "triplets.arrow", columns)
    entities = Columns(graph / "entities.arrow", ("name",))
    entity_index = _load_index(index, "entities", gpu)
    triplet_TD = load_vectors(index / "triplets.npy")
    check_rows("entities", len(entity_index), len(entities), index)
    check_rows("triplets", len(triplet_TD), len(triplets), index)
    return GraphRetrieval(
        triplets,
        entities,
        Adjacency.load(graph / NEIGHBOURS),
        triplet_TD,
        entity_index,
        embedder,
        reranker,
        num_candidate_entities=settings.num_candidate_entities,
        top_k_entities=settings.entities,
        num_candidates=settings.num_candidate_triplets,
        top_k=settings.triplets,
    )


def _load_index(index: Path, name: str, gpu: bool) -> VectorIndex:
    return VectorIndex.load(index / f"{name}.faiss", index / f"{name}.npy", gpu=gpu)


def _open_key_entities(corpus: Path, graph: Path) -> KeyEntityExpansion:
    entities = Columns(graph / "entities.arrow", ("name",)).column(0)
    titles = Columns(corpus / "chunks.arrow", ("title",)).column(0)
    return KeyEntityExpansion((*entities, *titles))


def _open_linked_chunks(
    settings: Retrieval, corpus: Path, index: Path, embedder: Embedder, reranker: Reranker
) -> LinkedChunkExpansion:
    chunks = Columns(corpus / "chunks.arrow", ("id", "title", "text"))
    chunk_CD = load_vectors(index / "chunks.npy")
    check_rows("chunks", len(chunk_CD), len(chunks), index)
    return LinkedChunkExpansion(chunks, chunk_CD, embedder, reranker, top_k=settings.linked_chunks)


def _open_hypergraph(
    settings: Retrieval, graph: Path, index: Path, embedder: Embedder, gpu: bool
) -> HypergraphRetrieval:
    hyperedges = Columns(graph / "hyperedges.arrow", HYPEREDGE_COLUMNS)
    names = Columns(graph / "entities.arrow", ("name",)).column(0)
    tables = ("entities", "hyperedges")
    vectors = {name: load_vectors(index / f"{name}.npy") for name in tables}
    indexes = {name: _load_index(index, name, gpu) for name in tables}
    for name, rows in (("entities", len(names)), ("hyperedges", len(hyperedges))):
        check_rows(name, len(vectors[name]), rows, index)
        check_rows(name, len(indexes[name]), rows, index)
    return HypergraphRetrieval(
        cast(HypergraphVariant, settings.variant),
        hyperedges,
        names,
        Incidence(Adjacency.load(graph / MEMBERS), Adjacency.load(graph / NEIGHBOURS)),
        vectors["entities"],
        vectors["hyperedges"],
        indexes["entities"],
        indexes["hyperedges"],
        embedder,
        top_k=settings.top_k,
        every_candidate=settings.hyperedge_candidates == "all",
    )


def _check_embedder(path: Path, embedder: Embedder) -> None:
    try:
        built_by = read_json(path)["embedder"]
    except (InputError, KeyError):
        raise StoreError(
            f"{path}: not the description of an index; run the index stage again"
        ) from None
    if built_by != embedder.identity:
        raise StoreError(
            f"{path}: built by embedder {built_by}, but the configured one is "
            f"{embedder.identity}; run the index stage again"
        )
