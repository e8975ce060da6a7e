"""``steep recall``: files and configurations in, a table or JSON out.

Input: configurations, each with a corpus, questions and a graph of its own, or one configuration
with files named on the command line. Output: rows of figures, and sentences about what was left
out. Nothing is written but embeddings to the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from pipeline.config import Config, Corpus, CorpusFile, Data, Graph, load
from pipeline.errors import ConfigError, DependencyError, InputError
from pipeline.index.embed import Embedder, open_cache, open_embedder
from pipeline.recall.asked import Questions, read_asked
from pipeline.recall.bases import Bases, build_bases
from pipeline.recall.figures import Source
from pipeline.recall.rows import Row, Tokens, measure, ways_of
from pipeline.records import ContextItem

_TIMED_QUERIES = 32


@dataclass(frozen=True, slots=True)
class Files:
    """Files given on the command line; they take the place of the configuration's."""

    corpus: Sequence[Path] = ()
    questions: Path | None = None
    triplets: Path | None = None
    dataset: str | None = None


@dataclass(slots=True)
class Measured:
    """One configuration's rows, the sizes behind them, and what is to be said about them."""

    config: str
    sizes: dict[str, int]
    embedding_seconds: float
    rows: list[Row]
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "config": self.config,
            "sizes": self.sizes,
            "embedding_seconds_per_query": self.embedding_seconds,
            "rows": [row.as_json() for row in self.rows],
            "notes": self.notes,
        }


def recall(
    config: Path,
    files: Files,
    *,
    overrides: Sequence[str] = (),
    data: Path | None = None,
    limit: int | None = None,
) -> Measured:
    """Measure all ways to retrieve of one configuration.

    Raises ConfigError or InputError when files are missing, broken, or not named.
    """
    settings, questions_path, dataset, with_graph = _settings(config, files, overrides, data)
    with TemporaryDirectory(prefix="steep-recall-") as folder:
        bases = build_bases(settings, Path(folder), with_graph=with_graph)
        questions = read_asked(questions_path, dataset, bases.chunks, limit)
        embedder = open_embedder(settings, open_cache(settings))
        ways, notes = ways_of(settings, bases, embedder)
        rows = measure(questions, ways, _source(bases), _tokens(embedder.directory))
        seconds = _embedding_seconds(settings, questions)
    if questions.absent:
        notes.append(f"{questions.absent} questions left out: not all gold passages in the corpus")
    if not questions.parts:
        notes.append("no sub-questions: the questions come without a decomposition")
    sizes = {
        "documents": len({chunk.doc_id for chunk in bases.chunks}),
        "chunks": len(bases.chunks),
        "entities": bases.entities,
        "triplets": len(bases.triplets),
        "questions": len(questions.whole),
        "sub_questions": len(questions.parts),
    }
    return Measured(settings.name, sizes, seconds, rows, notes)


def _settings(
    path: Path, files: Files, overrides: Sequence[str], data: Path | None
) -> tuple[Config, Path, str | None, bool]:
    """Configuration, questions, their data set, and whether the graph belongs to this corpus."""
    config = load(path, tuple(overrides), str(data) if data else None)
    root = Path(config.data.root or ".")
    if bool(files.corpus) != (files.questions is not None):
        raise InputError("--corpus and --questions belong together; name both, or neither")
    if files.questions is None:
        if config.data.closed_world is not None or not config.data.test:
            raise ConfigError(
                f"{path}: names no questions and corpus of its own to measure; name them with "
                "--corpus and --questions, or use a file of configs/recall/ with --data"
            )
        first = config.data.test[0]
        corpus, graph = config.corpus, config.graph
        questions, with_graph = root / first.path, True
        dataset: str | None = first.dataset
    else:
        corpus_files = tuple(CorpusFile(path=str(one.absolute())) for one in files.corpus)
        if files.dataset is not None:  # question files may be named for their context paragraphs
            corpus_files = tuple(
                CorpusFile.model_validate({**one.model_dump(), "dataset": files.dataset})
                for one in corpus_files
            )
        corpus = Corpus(files=corpus_files, chunk_words=config.corpus.chunk_words)
        graph = config.graph
        questions, dataset = files.questions.absolute(), files.dataset
        with_graph = graph.source in ("titles", "llm")
    if files.triplets is not None:
        source = "annotated" if files.triplets.suffix == ".jsonl" else "openie"
        changed = {"source": source, "path": str(files.triplets.absolute())}
        graph = Graph.model_validate({**graph.model_dump(), **changed})
        with_graph = True
    if not questions.is_file():
        hint = "" if data or files.questions else "; pass --data DIR"
        raise InputError.at(questions, None, f"no such file{hint}")
    update = {"data": Data(root=str(root)), "corpus": corpus, "graph": graph}
    return config.model_copy(update=update), questions, dataset or files.dataset, with_graph


def _source(bases: Bases) -> Source:
    chunk_of = {triplet.id: triplet.chunk_id for triplet in bases.triplets}
    document_of = {chunk.id: chunk.doc_id for chunk in bases.chunks}

    def source(item: ContextItem) -> str:
        return document_of[item.id if item.kind == "chunk" else chunk_of[item.id]]

    return source


def _tokens(directory: Path) -> Tokens:
    """Tokens as the embedder's tokenizer counts them: at hand wherever this command runs."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
    except (OSError, ValueError) as error:
        cause = str(error).splitlines()[0]
        raise DependencyError(f"index.embedder.model: {directory}: no tokenizer: {cause}") from None
    tokenizer.model_max_length = 10**9  # counting, not embedding: no warning about long texts
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False))


def _embedding_seconds(config: Config, questions: Questions) -> float:
    """Seconds per query that the model takes, by an embedder without any cache, warmed up."""
    settings = config.index.embedder
    fresh = Embedder(**settings.model_dump())
    queries = [one.query for one in questions.whole[:_TIMED_QUERIES]]
    fresh.encode(["warm up"], "query")
    start = perf_counter()
    fresh.encode(queries, "query")
    return (perf_counter() - start) / len(queries)
