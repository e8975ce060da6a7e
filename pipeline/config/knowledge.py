"""The blocks of data, corpus, graph, index and retrieval.

Input: values of a configuration file. Output: frozen models, in stage order.
"""

from __future__ import annotations

import difflib
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from pipeline.config.base import (
    AskedModel,
    AtLeastOne,
    Block,
    Count,
    Execution,
    Indirect,
    Items,
    PathOrName,
    Positive,
    Seconds,
    Seed,
    Share,
    check_address,
)
from pipeline.core.answer_metrics import is_average

WorldSize = Annotated[int, Field(ge=0, le=1_000_000)]


class ClosedWorld(Block):
    """Size of the generated world (``pipeline.closed_world``); all its facts are known."""

    seed: Seed = Field(0, description="seed of the facts, documents and questions")
    documents: int = Field(1500, ge=1, le=1_000_000, description="number of documents")
    musique_train: WorldSize = Field(1200, description="MuSiQue questions of the cold start")
    musique_sampling: WorldSize = Field(300, description="MuSiQue questions of the rounds")
    musique_dev: WorldSize = Field(150, description="MuSiQue questions for validation")
    musique_test: WorldSize = Field(200, description="MuSiQue test questions")
    hotpotqa_sampling: WorldSize = Field(200, description="HotpotQA questions of the rounds")
    hotpotqa_dev: WorldSize = Field(50, description="HotpotQA questions for validation")
    hotpotqa_test: WorldSize = Field(100, description="HotpotQA test questions")
    wiki2_test: WorldSize = Field(100, description="2WikiMultihopQA test questions")
    nq_sampling: WorldSize = Field(150, description="NQ questions of the rounds")
    nq_dev: WorldSize = Field(50, description="NQ questions for validation")
    nq_test: WorldSize = Field(100, description="NQ test questions")
    famous_share: Share = Field(
        0.0,
        description="share of chain questions with a hop that the tiny reader knows by heart",
    )
    comparison_share: Share = Field(
        0.0,
        description="share of musique_train that compares two facts, so that a guess may be right",
    )
    common_share: Share = Field(
        0.0,
        description="share of the facts about places, organizations, years, dates and professions "
        "with one of three values of their type, so that a wrong path often ends at the right "
        "answer",
    )
    family_share: Share = Field(
        0.0,
        description="share of the persons with one of twelve family names, so that a wrong person "
        "is often a partly right answer",
    )


_DATASETS = ("musique", "hotpotqa", "2wiki", "nq", "popqa", "triviaqa", "bamboogle", "questions")


def _dataset_name(name: str) -> str:
    close = difflib.get_close_matches(name, _DATASETS, n=1, cutoff=0.75)
    if close and name not in _DATASETS:
        raise ValueError(f"expected {close[0]}, or a name that differs more from it")
    if not name.strip() or is_average(name):
        raise ValueError(f"{name!r} names an average over data sets, or nothing; choose another")
    return name


DatasetName = Annotated[str, AfterValidator(_dataset_name)]


def _filter_value(value: object) -> object:
    if not isinstance(value, str | int):
        raise ValueError("expected a text, a whole number, true or false")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("the whole number does not fit into 64 bits; use a smaller one")
    return int(value) if isinstance(value, bool) else value  # in Python, True is equal to 1


FilterValue = Annotated[str | int, BeforeValidator(_filter_value)]


class QuestionFile(Block):
    """One file of questions: in the original format of its data set, or of any other origin."""

    dataset: DatasetName = Field(
        "questions",
        description="musique, hotpotqa, 2wiki, nq, popqa, triviaqa or bamboogle, in the format of "
        "the data set; any other name: JSONL, JSON, CSV, TSV or Parquet with question and answer, "
        "answers or golden_answers",
    )
    path: PathOrName = Field(description="the file, relative to data.root")
    limit: Positive | None = Field(
        None,
        description="number of questions to take, of those that share and, for training, the "
        "held-out questions leave; null: all",
    )
    filter: dict[str, FilterValue] = Field(
        default_factory=dict,
        description="values of fields; questions with other values are left out",
    )
    select: Literal["first", "random", "most-evidence", "even-hops"] = Field(
        "first",
        description="which questions `limit` takes: the first, random ones, those with the most "
        "evidence sentences, or equally many of each number of hops",
    )
    gold: dict[DatasetName, PathOrName] = Field(
        {},
        description="files of data sets in their original format, as `hotpotqa: FILE`, in which "
        "these questions are looked up by their ids: for hops, evidence, and the passages of "
        "corpus.add_gold; text and answers stay",
    )
    share: Items[Share] = Field(
        (0, 1),
        min_length=2,
        max_length=2,
        description="the part that is used, by the seed and the text: [0, 0.4] and "
        "[0.4, 1] of one file have no question in common",
    )

    @field_validator("share")
    @classmethod
    def _some_questions(cls, value: tuple[float, float]) -> tuple[float, float]:
        if value[0] >= value[1]:
            raise ValueError(f"{list(value)} has no question; raise the second number")
        return value


class CorpusFile(Block):
    """Files of documents: Markdown, text, HTML, PDF, Word, JSONL, JSON, CSV, TSV or Parquet."""

    path: PathOrName = Field(
        description="a file, a directory, or a glob such as docs/**/*.md, relative to data.root"
    )
    format: Literal["auto", "jsonl", "json", "titles", "dpr-tsv", "questions"] = Field(
        "auto",
        description="format of the file; auto: detected from its name and content; questions: the "
        "paragraphs of a question file",
    )
    dataset: DatasetName | None = Field(None, description="data set of a file in format questions")


class Data(Block):
    """Sources of documents and questions."""

    closed_world: ClosedWorld | None = Field(
        None, description="generate a world in place of the files below root; null: read the files"
    )
    root: Annotated[PathOrName | None, Indirect()] = Field(
        None, description="directory of the data files; `make … DATA=DIR` sets it"
    )
    sft: Items[QuestionFile] = Field(
        (),
        description="questions of the cold start; decomposed, or with one hop and a gold passage, "
        "unless it samples its trajectories (sft_data.rejection_sampling)",
    )
    sampling: Items[QuestionFile] = Field((), description="questions of the rounds")
    validation: Items[QuestionFile] = Field((), description="questions to choose settings by")
    test: Items[QuestionFile] = Field((), description="questions of the final evaluation")


class Corpus(Block):
    """Documents cut into chunks."""

    files: AtLeastOne[CorpusFile] = Field(description="files of documents")
    chunk_words: Positive = Field(
        100,
        description="maximum words per chunk (TeaRAG table 4: 100); in scripts without spaces, "
        "characters",
    )
    strict: bool = Field(
        False,
        description="whether a file of a directory or a glob that cannot be read, or a malformed "
        "row, stops the run; by default it is skipped, counted, and listed in skipped.json",
    )
    add_gold: Annotated[bool, Indirect()] = Field(
        False,
        description="whether gold passages that the files lack are added from the question files "
        "that hold them; off for comparisons with papers",
    )


class Graph(AskedModel):
    """The graph of triplets.

    Sources: ``annotated`` and ``openie`` read a file, ``llm`` extracts with a language model,
    ``titles`` links passages that name the titles of other passages, ``none`` makes no graph, for
    methods that retrieve only passages.
    """

    source: Literal["annotated", "openie", "llm", "titles", "none"] = Field(
        description="where the triplets come from"
    )
    path: PathOrName | None = Field(
        None, description="annotated, openie: the file, relative to data.root"
    )
    titles: bool = Field(False, description="whether the triplets of source titles are added")
    scope: Literal["all", "candidates"] = Field(
        "all",
        description="passages with triplets; candidates: passages that the questions of the run, "
        "the sub-questions of the cold start and the searches of policy 0 find",
    )
    candidates: Positive = Field(
        20,
        description="scope candidates: passages that each question finds by vectors, and as many "
        "by BM25",
    )

    @model_validator(mode="after")
    def _complete(self) -> Graph:
        _check_source(self, "graph")
        return self


class Hypergraph(AskedModel):
    """The hypergraph of n-ary facts.

    Sources: ``annotated`` reads a file, ``llm`` extracts with a language model, ``triplets`` groups
    the graph's triplets by sentence.
    """

    source: Literal["annotated", "triplets", "llm"] = Field(
        "triplets", description="where the facts come from"
    )
    path: PathOrName | None = Field(None, description="annotated: the file, relative to data.root")

    @model_validator(mode="after")
    def _complete(self) -> Hypergraph:
        _check_source(self, "hypergraph")
        return self


def _check_source(block: Graph | Hypergraph, name: str) -> None:
    if block.source == "llm":
        block.check_one_model(name)
    if block.source in ("annotated", "openie") and block.path is None:
        raise ValueError(f"source is {block.source}, which needs {name}.path; add it")


class Encoder(Block):
    """Settings of embedders and rerankers."""

    batch_size: Annotated[Positive, Execution()] = Field(
        64, description="texts or pairs per forward pass on a GPU"
    )
    device: Annotated[Literal["auto", "cpu", "cuda"], Execution()] = Field(
        "auto", description="device; auto: the GPU if there is one"
    )


class Embedder(Encoder):
    """A sentence-transformers bi-encoder."""

    model: PathOrName = Field(
        description="directory, hub name, or package:NAME of an installed package"
    )
    query_prefix: str = Field("", description="text before every query (E5: 'query: ')")
    passage_prefix: str = Field("", description="text before every passage (E5: 'passage: ')")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "float32",
        description="number format of weights and activations; auto: bfloat16 on a GPU, "
        "the faster one on a CPU",
    )
    max_length: Positive = Field(256, description="tokens of a text; the rest is cut off")


class Index(Block):
    """Embeddings and FAISS indexes."""

    embedder: Embedder = Field(description="the model that embeds texts and queries")
    faiss: Literal["flat", "ivf-pq", "hnsw", "auto"] = Field(
        "auto", description="kind of index; auto: chosen by the number of vectors"
    )
    gpu: Annotated[bool, Execution()] = Field(
        False,
        description="whether indexes are searched on the GPU (faiss-gpu); hnsw stays on the CPU",
    )
    links: bool = Field(
        False,
        description="whether BM25 and links between passages are indexed too, which the retrieval "
        "variants fused and linked read",
    )


class Reranker(Encoder):
    """The model of sim(text, query): a FlagReranker, a cross-encoder, or the calibrated bi-encoder.

    ``biencoder``: raw score = scale * cosine + offset of the embedder, whose sigmoid is a
    probability.
    """

    kind: Literal["flag", "cross-encoder", "biencoder"] = Field(
        "flag", description="the kind of model"
    )
    model: PathOrName | None = Field(None, description="flag, cross-encoder: directory or hub name")
    scale: float = Field(1.0, ge=-1e6, le=1e6, description="biencoder: factor of the cosine")
    offset: float = Field(0.0, ge=-1e6, le=1e6, description="biencoder: added to the scaled cosine")
    max_length: Positive = Field(512, description="tokens of a pair; the rest is cut off")

    @model_validator(mode="after")
    def _model_is_read(self) -> Reranker:
        if self.kind == "biencoder" and self.model is not None:
            raise ValueError(
                "model is set, and kind is biencoder, which scores with the embedder alone; set "
                "kind to flag or cross-encoder, or model to null"
            )
        return self


def _service_address(value: str) -> str:
    return check_address(value, "http://localhost:8765", "remove the rest").rstrip("/")


ServiceAddress = Annotated[str, AfterValidator(_service_address)]


Variant = Literal[
    "semantic",
    "fused",
    "linked",
    "graph",
    "concat",
    "ppr",
    "none",
    "hyperedges",
    "graph-r1",
    "prograph",
]
Show = Literal["nodes", "passages", "chunks"]


class Retrieval(Block):
    """Retrieval for one subquery (TeaRAG 4.2.3 to 4.2.5); the defaults are the paper's.

    Variants over passages and triplets (TeaRAG table 7): ``semantic`` (TeaRAG-S), ``graph``
    (TeaRAG-G), ``concat`` (TeaRAG-Con), ``ppr`` (TeaRAG). Variants over passages beyond the papers,
    which need ``index.links``: ``fused`` (cosine and BM25), ``linked`` (the same with links between
    passages, for whole questions). Variants over the hypergraph (ProGraph-R1 table 4), which show
    ``top_k`` hyperedges: ``hyperedges``, ``graph-r1``, ``prograph``. ``none``: no retrieval.
    """

    variant: Variant = Field(
        "ppr", description="the variant of search and ranking; none: no retrieval"
    )
    rounds: Literal["iterative", "single", "prompt", "ircot", "search-o1"] = Field(
        "iterative",
        description="iterative: the policy decides when to search; single: one retrieval with the "
        "question, as the first step; of an untrained model that only answers: prompt, one "
        "retrieval shown in the prompt; ircot, one with each sentence; search-o1, queries in tags",
    )
    reranker: Reranker = Field(description="the model of sim(text, query)")
    num_candidate_chunks: Positive = Field(
        20, description="nearest chunks, which the reranker scores"
    )
    chunks: Positive = Field(5, description="k_d: best chunks after reranking")
    chunk_scores: Literal["reranker", "fused"] = Field(
        "reranker",
        description="semantic, concat, ppr: how chunks are chosen and weighted; fused: by the "
        "score of variant fused, with the scale and the offset of the reranker block",
    )
    num_candidate_entities: Positive = Field(
        10, description="nearest entities of each key entity, which the reranker scores"
    )
    entities: Positive = Field(5, description="best entities of each key entity after reranking")
    num_candidate_triplets: Positive = Field(
        20, description="nearest triplets, which the reranker scores"
    )
    triplets: Positive = Field(10, description="k_t: best triplets after reranking")
    linked_chunks: Count = Field(
        0,
        description="number of chunks added to the KAG because triplets or key entities link to "
        "them",
    )
    linked_steps: Literal["first", "all"] = Field(
        "first",
        description="linked: which searches of a trajectory follow links; with first, later "
        "searches use the variant fused, because they ask for one fact",
    )
    named_entities: bool = Field(
        False,
        description="whether entities and titles named in the subquery are added to its key "
        "entities",
    )
    top_k: Positive = Field(5, description="k_f: items shown for a subquery")
    show: Show = Field(
        "nodes",
        description="ppr: what is shown: the best nodes, the best node of each passage, or chunks "
        "only",
    )
    hyperedge_candidates: Literal["near", "all"] = Field(
        "near",
        description="prograph: hyperedges to rank; near: hyperedges that share an entity with the "
        "query or with its 5 nearest hyperedges; all: every hyperedge (eq. 10)",
    )
    tau: Share = Field(
        0.2, description="eq. 2: threshold that is subtracted from a triplet's weight"
    )
    alpha: float = Field(0.5, gt=0, lt=1, description="eq. 3: damping factor of PageRank")
    service: Annotated[ServiceAddress | None, Execution()] = Field(
        None,
        description="http://HOST:PORT of `steep serve`; null: retrieval in the process",
    )
    service_patience: Annotated[Seconds, Execution()] = Field(
        60.0, description="seconds after which a silent service stops the stage"
    )

    @model_validator(mode="after")
    def _enough_are_ranked(self) -> Retrieval:
        limits = {"top_k": "chunks"} if self.variant == "semantic" else {}
        if self.variant in ("semantic", "concat", "ppr") and self.chunk_scores == "reranker":
            limits["chunks"] = "num_candidate_chunks"
        for name, limit in limits.items():
            wanted, there = getattr(self, name), getattr(self, limit)
            if wanted > there:
                raise ValueError(
                    f"{name} is {wanted}, and {limit} is {there}, so that variant {self.variant} "
                    f"has no more; raise {limit}, or lower {name}"
                )
        return self

    @property
    def over_hypergraph(self) -> bool:
        """Whether the variant reads the hypergraph and its index instead of graph and index."""
        return self.variant in ("hyperedges", "graph-r1", "prograph")

    @property
    def over_passages(self) -> bool:
        """Whether the variant reads passages alone, neither graph nor hypergraph."""
        return self.variant in ("semantic", "fused", "linked")

    @property
    def over_links(self) -> bool:
        """Whether the variant reads what ``index.links`` adds to the index."""
        scored = self.variant in ("semantic", "concat", "ppr") and self.chunk_scores == "fused"
        return scored or self.variant in ("fused", "linked")

    @property
    def shows(self) -> tuple[str, ...]:
        """The kinds of items that the variant shows, as `ContextItem` names them."""
        if self.over_hypergraph:
            return ("hyperedge",)
        if self.over_passages:
            return ("chunk",)
        return ("triplet",) if self.variant == "graph" else ("chunk", "triplet")
