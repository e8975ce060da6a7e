"""``steep recall``: measure every retriever of a configuration.

Input: configurations that each name a corpus, questions and a graph, or one configuration with
files from the command line. Output: a `RecallResult` per configuration, with metrics and notes.
Only embeddings are written, to the cache. Messages of the stages go to standard error, because
standard output is for the table or the JSON.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipeline.config import Config, Corpus, CorpusFile, Data, Graph, QuestionFile, load
from pipeline.config.machine_choices import resolve_dtypes
from pipeline.core.content_cache import open_cache
from pipeline.core.errors import ConfigError, InputError
from pipeline.core.record_io import read_records
from pipeline.core.records import Chunk
from pipeline.evaluation.comparison_tables import Table
from pipeline.knowledge.corpus.questions.load import DATASETS
from pipeline.knowledge.index.embed import open_embedder
from pipeline.knowledge.retrieval.origins import passage_id
from pipeline.llm.tokenizer import model_tokenizer
from pipeline.look.recall.compare import (
    CountTokens,
    RetrievalMetrics,
    build_corpus,
    build_stages,
    measure_retrievers,
    retriever_variants,
)
from pipeline.look.recall.questions import DocumentOf, read_recall_questions

_SIGNIFICANT = 0.05


@dataclass(frozen=True, slots=True)
class InputFiles:
    """Files from the command line, which replace the files of the configuration.

    ``dataset`` is the format of the question file; None infers it from the fields.
    """

    corpus: Sequence[Path] = ()
    questions: Path | None = None
    dataset: str | None = None


@dataclass(slots=True)
class RecallResult:
    """Metrics of one configuration.

    Attributes:
        sizes: numbers of documents, chunks, entities, triplets, hyperedges, questions and
            sub-questions.
        notes: sentences about retrievers and questions that were left out.
    """

    config: str
    sizes: dict[str, int]
    rows: list[RetrievalMetrics]
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """A JSON object, for ``--json``."""
        rows = [row.as_json() for row in self.rows]
        return {"config": self.config, "sizes": self.sizes, "rows": rows, "notes": self.notes}


def run_recall(
    config: Path,
    files: InputFiles,
    *,
    overrides: Sequence[str] = (),
    data: str | None = None,
    limit: int | None = None,
) -> RecallResult:
    """Measure every retriever of one configuration.

    ``data`` is the directory of the configuration's data files, and ``limit`` the number of
    questions. Raises ConfigError or InputError when files are missing, broken or not given.
    """
    settings, (path, dataset, most) = _subject(config, files, overrides, data, limit)
    with TemporaryDirectory(prefix="steep-recall-") as name, redirect_stdout(sys.stderr):
        folder = Path(name)
        corpus = build_corpus(settings, folder)
        chunks = read_records(corpus / "chunks.parquet", Chunk)
        questions = read_recall_questions(path, dataset, chunks, most)
        built = build_stages(settings, folder, corpus)
        embedder = open_embedder(settings.index.embedder, open_cache(settings.cache_dir))
        variants, notes = retriever_variants(settings, built, embedder)
        rows = measure_retrievers(
            questions, variants, _document_of(chunks), _token_counter(embedder.directory)
        )
    notes += questions.notes.lines("questions")
    if questions.skipped:
        notes.append(
            f"{questions.skipped} questions are left out: the corpus lacks some gold passages, or "
            "they have none and the answer yes or no"
        )
    if questions.by_answer:
        notes.append(
            f"{questions.by_answer} questions have no gold passages; recall is the share whose "
            f"answer a retrieved document states ({questions.unstated} answers are in no document)"
        )
    if not questions.sub_questions:
        notes.append("there are no sub-questions: the questions have no decomposition")
    sizes = {
        "documents": len({chunk.doc_id for chunk in chunks}),
        "chunks": len(chunks),
        "entities": built.entities,
        "triplets": built.triplets,
        "hyperedges": built.hyperedges,
        "questions": len(questions.questions),
        "sub_questions": len(questions.sub_questions),
    }
    return RecallResult(settings.name, sizes, rows, notes)


def _subject(
    path: Path, files: InputFiles, overrides: Sequence[str], data: str | None, limit: int | None
) -> tuple[Config, tuple[Path, str | None, int | None]]:
    """The settings with the files of the command line; and file, data set and number of questions.

    The data set None is inferred from the fields.
    """
    config = resolve_dtypes(load(path, tuple(overrides), data)).settings
    root = Path(config.data.root or ".")
    if files.dataset is not None and files.dataset not in DATASETS:
        raise InputError(f"--dataset {files.dataset}: expected one of {', '.join(DATASETS)}")
    if bool(files.corpus) != (files.questions is not None):
        raise InputError("--corpus and --questions must be given together; give both or neither")
    if files.questions is not None:
        corpus, graph = _corpus_of(config, files), config.graph
        questions, dataset = files.questions, files.dataset
        if graph.source not in ("titles", "llm"):  # its file belongs to another corpus
            graph = Graph(source="none")
    else:
        file = _question_file(config, path)
        corpus, graph = config.corpus, config.graph
        questions, dataset, limit = root / file.path, file.dataset, limit or file.limit
    if not questions.is_file():
        hint = "" if config.data.root or files.questions else "; pass --data DIR"
        raise InputError.at(questions, f"no such file{hint}")
    index = config.index.model_copy(update={"links": find_spec("bm25s") is not None})
    own = config.model_copy(update={"data": Data(root=str(root)), "corpus": corpus})
    return own.model_copy(update={"graph": graph, "index": index}), (questions, dataset, limit)


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


def _document_of(chunks: Sequence[Chunk]) -> DocumentOf:
    document_by_chunk = {chunk.id: chunk.doc_id for chunk in chunks}
    return lambda item: document_by_chunk[passage_id(item)]


def _token_counter(directory: Path) -> CountTokens:
    """Counts tokens with the embedder's tokenizer, because this command always has it."""
    tokenizer: Any = model_tokenizer(directory)
    tokenizer.model_max_length = 10**9  # avoids warnings about long texts
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False))


def table(result: RecallResult) -> Table:
    """The metrics of a configuration, with its sizes and notes below them."""
    sizes = [f"{count:,} {name.replace('_', '-')}" for name, count in result.sizes.items()]
    return Table(
        result.config,
        ["data", "query", "n", "retriever", "reranker", "@2", "@5", "all@5", "strict @5",
         "strict all@5", "@5 - semantic", "tokens", "ms"],
        [_cells(row) for row in result.rows],
        "\n".join([", ".join(sizes), *result.notes, _LEGEND]),
    )  # fmt: skip


_LEGEND = (
    "@k: recall, the share of gold passages among the first k documents; a triplet or hyperedge "
    "counts for its source document; strict: chunks only; * p < 0.05, paired t-test; ms: retrieval "
    "without embedding the query"
)


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
