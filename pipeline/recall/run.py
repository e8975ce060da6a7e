"""``steep recall``: measure every retriever of a configuration.

Input: configurations that each name a corpus, questions and a graph, or one configuration with
files from the command line. Output: a `RecallResult` per configuration, with metrics and notes.
Only embeddings are written, to the cache. Messages of the stages go to standard error, because
standard output is for the table or the JSON (`print_table`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from pipeline.config import Config, Corpus, CorpusFile, Data, Graph, QuestionFile, load
from pipeline.config.machine_choices import resolve_dtypes
from pipeline.core.errors import ConfigError, InputError
from pipeline.core.record_io import read_records
from pipeline.core.records import Chunk, ContextItem
from pipeline.corpus.questions.load import DATASETS
from pipeline.grammars.tokenizer import model_tokenizer
from pipeline.index.embed import Embedder, open_cache, open_embedder
from pipeline.recall.compare import (
    BuiltStages,
    CountTokens,
    RetrievalMetrics,
    build_corpus,
    build_stages,
    measure_retrievers,
    retriever_variants,
)
from pipeline.recall.questions import DocumentOf, RecallQuestions, read_recall_questions

_TIMED_QUERIES = 32


@dataclass(frozen=True, slots=True)
class InputFiles:
    """Files from the command line, which replace the files of the configuration.

    ``dataset`` is the format of the question file; None infers it from the fields.
    """

    corpus: Sequence[Path] = ()
    questions: Path | None = None
    triplets: Path | None = None
    dataset: str | None = None


@dataclass(slots=True)
class RecallResult:
    """Metrics of one configuration.

    Attributes:
        sizes: numbers of documents, chunks, entities, triplets, hyperedges, questions and
            sub-questions.
        faiss: kind and parameters of each FAISS index.
        embedding_seconds: time to embed a query, in seconds.
        notes: sentences about retrievers and questions that were left out.
    """

    config: str
    sizes: dict[str, int]
    faiss: dict[str, dict[str, Any]]
    embedding_seconds: float
    rows: list[RetrievalMetrics]
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """A JSON object, for ``--json``."""
        values = asdict(self)
        seconds = values.pop("embedding_seconds")
        rows = [row.as_json() for row in self.rows]
        return values | {"embedding_seconds_per_query": seconds, "rows": rows}


def silence_model_loading() -> None:
    """Turn off progress bars and warnings that libraries print while a model loads."""
    import logging

    from transformers.utils import logging as transformers_logging

    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    transformers_logging.disable_progress_bar()


def run_recall(
    config: Path,
    files: InputFiles,
    *,
    overrides: Sequence[str] = (),
    data: Path | None = None,
    limit: int | None = None,
) -> RecallResult:
    """Measure every retriever of one configuration.

    ``data`` is the directory of the configuration's data files, and ``limit`` the number of
    questions. Raises ConfigError or InputError when files are missing, broken or not given.
    """
    subject = _subject(config, files, overrides, data, limit)
    settings = subject.config
    with TemporaryDirectory(prefix="steep-recall-") as name, redirect_stdout(sys.stderr):
        folder = Path(name)
        corpus = build_corpus(settings, folder)
        chunks = read_records(corpus / "chunks.parquet", Chunk)
        questions = read_recall_questions(subject.questions, subject.dataset, chunks, subject.limit)
        built = build_stages(settings, folder, corpus, with_graph=subject.with_graph)
        embedder = open_embedder(settings.index.embedder, open_cache(settings.cache_dir))
        variants, notes = retriever_variants(settings, built, embedder)
        rows = measure_retrievers(
            questions, variants, _document_of(chunks, built), _token_counter(embedder.directory)
        )
        seconds = _embedding_seconds(settings, questions)
    if questions.skipped:
        notes.append(
            f"{questions.skipped} questions are left out: the corpus lacks some gold passages"
        )
    if not questions.sub_questions:
        notes.append("there are no sub-questions: the questions have no decomposition")
    sizes = {
        "documents": len({chunk.doc_id for chunk in chunks}),
        "chunks": len(chunks),
        "entities": built.entities,
        "triplets": len(built.triplets),
        "hyperedges": len(built.hyperedges),
        "questions": len(questions.questions),
        "sub_questions": len(questions.sub_questions),
    }
    return RecallResult(settings.name, sizes, built.faiss, seconds, rows, notes)


@dataclass(frozen=True, slots=True)
class _Subject:
    """Inputs of one measurement; ``with_graph`` is False if the corpus has no triplets."""

    config: Config
    questions: Path
    dataset: str | None
    limit: int | None
    with_graph: bool


def _subject(
    path: Path, files: InputFiles, overrides: Sequence[str], data: Path | None, limit: int | None
) -> _Subject:
    if data is not None and not data.is_dir():
        raise InputError.at(
            data, None, "no such directory; --data takes the directory of the data files"
        )
    config = resolve_dtypes(load(path, tuple(overrides), str(data) if data else None)).settings
    root = Path(config.data.root or ".")
    if files.dataset is not None and files.dataset not in DATASETS:
        raise InputError(f"--dataset {files.dataset}: expected one of {', '.join(DATASETS)}")
    if bool(files.corpus) != (files.questions is not None):
        raise InputError("--corpus and --questions must be given together; give both or neither")
    if files.questions is not None:
        corpus, graph = _corpus_of(config, files), config.graph
        questions, dataset = files.questions.absolute(), files.dataset
        with_graph = graph.source in ("titles", "llm")  # other graph files belong to another corpus
    else:
        file = _question_file(config, path)
        corpus, graph, with_graph = config.corpus, config.graph, True
        questions, dataset, limit = root / file.path, file.dataset, limit or file.limit
    if files.triplets is not None:
        source = "annotated" if files.triplets.suffix == ".jsonl" else "openie"
        changes = {"source": source, "path": str(files.triplets.absolute())}
        graph, with_graph = Graph.model_validate({**graph.model_dump(), **changes}), True
    if not questions.is_file():
        hint = "" if config.data.root or files.questions else "; pass --data DIR"
        raise InputError.at(questions, None, f"no such file{hint}")
    update = {"data": Data(root=str(root)), "corpus": corpus, "graph": graph}
    return _Subject(config.model_copy(update=update), questions, dataset, limit, with_graph)


def _question_file(config: Config, path: Path) -> QuestionFile:
    """The single file under ``data.test``.

    Raises ConfigError when there is not exactly one, or when it has a filter or a selection.
    """
    if config.data.closed_world is not None or not config.data.test:
        raise ConfigError(
            f"{path}: recall needs a question file under data.test and no closed world; give "
            "--corpus and --questions, or a configuration of configs/recall/ with --data DIR"
        )
    first = config.data.test[0]
    if len(config.data.test) > 1 or first.filter or first.select != "first":
        raise ConfigError(
            f"{path}: data.test: recall reads the first questions of one file; give one file "
            "without filter and select"
        )
    return first


def _corpus_of(config: Config, files: InputFiles) -> Corpus:
    """The documents of the command line; with ``dataset``, the paragraphs of a question file."""
    corpus_files = tuple(
        CorpusFile.model_validate({"path": str(path.absolute()), "dataset": files.dataset})
        for path in files.corpus
    )
    return Corpus(files=corpus_files, chunk_words=config.corpus.chunk_words)


def _document_of(chunks: Sequence[Chunk], built: BuiltStages) -> DocumentOf:
    chunk_of = {triplet.id: triplet.chunk_id for triplet in built.triplets}
    chunk_of.update((hyperedge.id, hyperedge.chunk_id) for hyperedge in built.hyperedges)
    document_by_chunk = {chunk.id: chunk.doc_id for chunk in chunks}

    def document_of(item: ContextItem) -> str:
        return document_by_chunk[item.id if item.kind == "chunk" else chunk_of[item.id]]

    return document_of


def _token_counter(directory: Path) -> CountTokens:
    """Counts tokens with the embedder's tokenizer, because this command always has it."""
    tokenizer: Any = model_tokenizer(directory)
    tokenizer.model_max_length = 10**9  # avoids warnings about long texts
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False))


def _embedding_seconds(config: Config, questions: RecallQuestions) -> float:
    """Seconds per query for embedding, after a warm-up and without a cache."""
    settings = config.index.embedder
    embedder = Embedder(**settings.model_dump())
    queries = [query.query for query in questions.questions[:_TIMED_QUERIES]]
    embedder.encode(["warm up"], "query")
    start = perf_counter()
    embedder.encode(queries, "query")
    return (perf_counter() - start) / len(queries)


_SIGNIFICANT = 0.05


def print_table(results: Sequence[RecallResult]) -> None:
    """Print one table of all configurations, then sizes, indexes and notes."""
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "data", "query", "n", "retriever", "reranker", "@2", "@5", "all@5", "strict @5",
        "strict all@5", "@5 - semantic", "tokens", "ms",
    )  # fmt: skip
    for result in results:
        previous = None
        for row in result.rows:
            if previous not in (None, row.query):
                table.add_section()
            previous = row.query
            table.add_row(*_cells(row))
        table.add_section()
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    for result in results:
        sizes = ", ".join(
            f"{count:,} {name.replace('_', '-')}" for name, count in result.sizes.items()
        )
        embedding = f"{1000 * result.embedding_seconds:.1f} ms to embed a query"
        console.print(f"{result.config}: {sizes}; {embedding}", highlight=False)
        indexes = "; ".join(f"{name} {_index(facts)}" for name, facts in result.faiss.items())
        console.print(f"{result.config}: index of {indexes}", highlight=False)
        for note in result.notes:
            console.print(f"{result.config}: {note}", highlight=False)
    console.print(
        "@k: recall, the share of gold passages among the first k documents; a triplet or "
        "hyperedge counts for its source document; strict: chunks only; * p < 0.05, paired "
        "t-test; ms: retrieval without embedding the query",
        highlight=False,
    )


def _index(facts: dict[str, Any]) -> str:
    """Format an index, such as ``hnsw (links 32, candidates 64, recall_at_20 0.97)``."""
    parameters = ", ".join(f"{name} {value}" for name, value in facts.items() if name != "kind")
    return f"{facts['kind']} ({parameters})" if parameters else str(facts["kind"])


def _cells(row: RetrievalMetrics) -> list[str]:
    test = row.against_semantic
    difference = ""
    if test is not None and test["difference"] is not None:
        star = "*" if test["p"] is not None and test["p"] < _SIGNIFICANT else ""
        difference = f"{test['difference']:+.3f}{star}"
    return [
        row.dataset,
        row.query,
        str(row.n),
        row.retriever,
        row.reranker or "–",
        f"{row.recall['recall@2']:.3f}",
        f"{row.recall['recall@5']:.3f}",
        f"{row.recall['all_gold@5']:.2f}",
        f"{row.strict['recall@5']:.3f}",
        f"{row.strict['all_gold@5']:.2f}",
        difference,
        f"{row.tokens_per_retrieval:.0f}",
        f"{1000 * row.seconds_per_query:.1f}",
    ]
