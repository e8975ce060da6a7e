"""Open the configured retriever over complete stage directories.

Input: a settings block, and the directories of the stages ``corpus``, ``graph`` and ``index``.
Output: a `VariantRetriever` that has opened only the tables and models that its variant uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pipeline.core.columns import Columns, check_rows
from pipeline.core.content_cache import open_cache
from pipeline.core.errors import InputError, StoreError
from pipeline.core.input_files import read_json
from pipeline.knowledge.graph.adjacency import Adjacency
from pipeline.knowledge.graph.links import LINKS, Links
from pipeline.knowledge.graph.tables import HYPEREDGE_COLUMNS, MEMBERS, NEIGHBOURS
from pipeline.knowledge.index.bm25 import BM25, Bm25
from pipeline.knowledge.index.embed import Embedder, Vectors, open_embedder
from pipeline.knowledge.index.faiss_index import VectorIndex, load_vectors
from pipeline.knowledge.index.signs import SignCodes
from pipeline.knowledge.retrieval.base import ChunkRetriever
from pipeline.knowledge.retrieval.expansion import KeyEntityExpansion, LinkedChunkExpansion
from pipeline.knowledge.retrieval.graph import GraphRetrieval
from pipeline.knowledge.retrieval.hypergraph import HypergraphRetrieval, HypergraphVariant
from pipeline.knowledge.retrieval.informativeness import Incidence
from pipeline.knowledge.retrieval.linked import FusedRetrieval, LinkedRetrieval
from pipeline.knowledge.retrieval.rerank import Reranker, open_reranker
from pipeline.knowledge.retrieval.retriever import VariantRetriever
from pipeline.knowledge.retrieval.semantic import SemanticRetrieval

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
) -> VariantRetriever:
    """The retriever of a settings block.

    The hypergraph variants take the hypergraph stage's directory as ``graph`` and the hyper-index
    stage's as ``index``. ``embedder`` is an open embedder with the same settings.
    Raises StoreError when a file of the index is missing or broken, or when the index was built by
    another embedder or over other tables; DependencyError when a model or device is missing.
    """
    embedder_settings, gpu = index_settings.embedder, index_settings.gpu
    if settings.variant == "none":
        return VariantRetriever("none", None, None)
    embedder = embedder or open_embedder(embedder_settings, open_cache(cache_dir))
    _check_embedder(index / "index.json", embedder)
    files = _Files(settings, corpus, graph, index, embedder, gpu)
    if settings.over_hypergraph:
        return VariantRetriever(
            settings.variant, None, None, top_k=settings.top_k, hypergraph=files.hypergraph()
        )
    if settings.variant in ("fused", "linked"):
        fused, linked = files.fused_and_linked()
        first = fused if settings.variant == "fused" else linked
        later = fused if settings.linked_steps == "first" else first
        return VariantRetriever(settings.variant, first, None, top_k=settings.top_k, later=later)
    reranker = open_reranker(settings.reranker, embedder_settings, cache_dir, embedder=embedder)
    variant = settings.variant
    if variant != "semantic" and not len(Columns(graph / "triplets.arrow", ("id",))):
        print("the graph is empty; retrieval finds passages alone")
        variant = "semantic"
    over_graph = variant != "semantic"
    return VariantRetriever(
        variant,
        files.semantic(reranker) if variant != "graph" else None,
        files.graph_retrieval(reranker) if over_graph else None,
        top_k=settings.top_k,
        tau=settings.tau,
        alpha=settings.alpha,
        show=settings.show,
        key_entities=files.key_entities() if over_graph and settings.named_entities else None,
        linked_chunks=files.linked_chunks(reranker)
        if variant == "ppr" and settings.linked_chunks
        else None,
        embedder=embedder if variant not in ("semantic", "graph") else None,
    )


@dataclass(frozen=True)
class _Files:
    """The directories of the stages, and the parts of a retrieval that read them."""

    settings: Retrieval
    corpus: Path
    graph: Path
    index: Path
    embedder: Embedder
    gpu: bool

    def semantic(self, reranker: Reranker) -> ChunkRetriever:
        if self.settings.chunk_scores == "fused":
            parts, block, top_k = self._fused_parts(), self.settings.reranker, self.settings.chunks
            return FusedRetrieval(*parts, top_k=top_k, scale=block.scale, offset=block.offset)
        chunks, vectors = self._chunks(), self._load_index("chunks")
        check_rows("chunks", len(vectors), len(chunks), self.index)
        return SemanticRetrieval(
            chunks,
            vectors,
            self.embedder,
            reranker,
            num_candidates=self.settings.num_candidate_chunks,
            top_k=self.settings.chunks,
        )

    def fused_and_linked(self) -> tuple[FusedRetrieval, LinkedRetrieval]:
        parts, links = self._fused_parts(), Links(self.index / LINKS)
        check_rows("links", len(links), len(parts[0]), self.index)
        top_k = self.settings.top_k
        return FusedRetrieval(*parts, top_k=top_k), LinkedRetrieval(
            *parts, top_k=top_k, links=links
        )

    def graph_retrieval(self, reranker: Reranker) -> GraphRetrieval:
        columns = ("id", "head", "relation", "tail", "chunk_id")
        triplets = Columns(self.graph / "triplets.arrow", columns)
        entities = Columns(self.graph / "entities.arrow", ("name",))
        entity_index = self._load_index("entities")
        triplet_TD = load_vectors(self.index / "triplets.npy")
        check_rows("entities", len(entity_index), len(entities), self.index)
        check_rows("triplets", len(triplet_TD), len(triplets), self.index)
        return GraphRetrieval(
            triplets,
            entities,
            Adjacency.load(self.graph / NEIGHBOURS),
            triplet_TD,
            entity_index,
            self.embedder,
            reranker,
            signs=SignCodes.load(self.index, "triplets"),
            num_candidate_entities=self.settings.num_candidate_entities,
            top_k_entities=self.settings.entities,
            num_candidates=self.settings.num_candidate_triplets,
            top_k=self.settings.triplets,
        )

    def key_entities(self) -> KeyEntityExpansion:
        entities = Columns(self.graph / "entities.arrow", ("name",)).column(0)
        titles = Columns(self.corpus / "chunks.arrow", ("title",)).column(0)
        return KeyEntityExpansion((*entities, *titles))

    def linked_chunks(self, reranker: Reranker) -> LinkedChunkExpansion:
        chunks, chunk_CD = self._chunks(), load_vectors(self.index / "chunks.npy")
        check_rows("chunks", len(chunk_CD), len(chunks), self.index)
        return LinkedChunkExpansion(
            chunks, chunk_CD, self.embedder, reranker, top_k=self.settings.linked_chunks
        )

    def hypergraph(self) -> HypergraphRetrieval:
        hyperedges = Columns(self.graph / "hyperedges.arrow", HYPEREDGE_COLUMNS)
        names = Columns(self.graph / "entities.arrow", ("name",)).column(0)
        entity_VD = load_vectors(self.index / "entities.npy")
        indexes = {name: self._load_index(name) for name in ("entities", "hyperedges")}
        check_rows("entities", len(entity_VD), len(names), self.index)
        for name, rows in (("entities", len(names)), ("hyperedges", len(hyperedges))):
            check_rows(name, len(indexes[name]), rows, self.index)
        incidence = Incidence(
            Adjacency.load(self.graph / MEMBERS), Adjacency.load(self.graph / NEIGHBOURS)
        )
        return HypergraphRetrieval(
            cast(HypergraphVariant, self.settings.variant),
            hyperedges,
            names,
            incidence,
            entity_VD,
            indexes["entities"],
            indexes["hyperedges"],
            self.embedder,
            top_k=self.settings.top_k,
            every_candidate=self.settings.hyperedge_candidates == "all",
        )

    def _fused_parts(self) -> tuple[Columns, VectorIndex, Vectors, Embedder, Bm25]:
        chunks, vectors = self._chunks(), self._load_index("chunks")
        chunk_CD, bm25 = load_vectors(self.index / "chunks.npy"), Bm25.load(self.index / BM25)
        for rows in (len(vectors), len(chunk_CD), len(bm25)):
            check_rows("chunks", rows, len(chunks), self.index)
        return chunks, vectors, chunk_CD, self.embedder, bm25

    def _chunks(self) -> Columns:
        return Columns(self.corpus / "chunks.arrow", ("id", "title", "text"))

    def _load_index(self, name: str) -> VectorIndex:
        path = self.index / name
        return VectorIndex.load(path.with_suffix(".faiss"), path.with_suffix(".npy"), gpu=self.gpu)


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
