"""Stage ``corpus``: documents to chunks (TeaRAG 4.1, table 4).

Input: the files of the configuration's ``corpus`` block. Output: ``chunks.parquet``, the same rows
uncompressed in ``chunks.arrow``, for memory-mapping, and ``skipped.json``: the files that were not
read and the numbers of malformed rows, with the reasons. With ``corpus.add_gold`` the questions are
inputs, and ``added_gold.json`` has title and file of every gold passage that was added.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline import config
from pipeline.config import CorpusFile
from pipeline.core.atomic import write_json
from pipeline.core.errors import DependencyError, InputError
from pipeline.core.progress import counted
from pipeline.core.records import Chunk
from pipeline.core.row_files import BadRows
from pipeline.core.text import file_name
from pipeline.engine.opened import Opened, Work
from pipeline.engine.plan.clock import Clock
from pipeline.engine.plan.sizes import CHUNK_BYTES
from pipeline.engine.stage import StageTask
from tasks.questions import question_files, question_sets, questions_by_split
from tasks.world import DataTask

if TYPE_CHECKING:
    from pipeline.core.content_cache import ContentCache
    from pipeline.engine.context import StageContext
    from pipeline.knowledge.corpus.raw_records import Document


class Corpus(DataTask):
    """Documents cut into chunks."""

    stage = "corpus"
    help = "passages of the documents"
    version = 5
    reads = ("corpus", "data.root")

    @property
    def paths(self) -> tuple[str, ...]:
        """The files of documents; with ``corpus.add_gold`` also the files of questions."""
        documents = tuple(file.path for file in self.settings.corpus.files)
        if not self.settings.corpus.add_gold:
            return documents
        return (*documents, *(file.path for file in question_files(self.settings)))

    @cached_property
    def inputs(self) -> dict[str, StageTask]:
        """The closed world; with ``corpus.add_gold`` also all questions."""
        questions = question_sets(self) if self.settings.corpus.add_gold else {}
        return {**self.world(), **questions}

    def files(self) -> dict[str, Path | str]:
        """The files of documents; a missing package is one too, so its installation is noticed."""
        raw = super().files()
        if not raw:  # the closed world has them
            return raw
        from pipeline.knowledge.corpus.documents import is_read
        from pipeline.knowledge.corpus.folders import find_files
        from pipeline.knowledge.corpus.prose import missing_package

        return {
            found.name: f"{missing} (not installed)" if missing else found.path
            for name in raw
            for found in find_files(self._root, name)
            if found.problem is None and (found.named or is_read(found.path))
            for missing in [missing_package(found.path)]
        }

    def opens(self) -> tuple[Opened, ...]:
        return ()

    def work(self, clock: Clock) -> Work:
        return Work(disk=CHUNK_BYTES * clock.sizes.chunks)

    def faults(self) -> Iterator[str]:
        from pipeline.knowledge.corpus.first_records import document_faults

        yield from super().faults()
        for file in self._raw_files():
            yield from document_faults(self._root, file, strict=self.settings.corpus.strict)

    def notes(self) -> Iterator[str]:
        """A sentence for each reason to skip files."""
        from pipeline.knowledge.corpus.first_records import skipped_documents
        from pipeline.knowledge.corpus.folders import find_files

        for file in self._raw_files():
            for reason, count in skipped_documents(find_files(self._root, file.path)).items():
                noun = "file" if count == 1 else "files"
                yield f"corpus.files: {file.path}: {count:,} {noun} skipped: {reason}"

    def small(self) -> Iterator[Chunk] | None:
        """The chunks of the files, without gold that is added.

        None if the files have more than 64 MiB, must be converted, or are not written yet. Raises
        InputError.
        """
        from pipeline.knowledge.corpus.chunk import chunk_documents
        from pipeline.knowledge.corpus.first_records import is_small
        from pipeline.knowledge.corpus.folders import find_files
        from pipeline.knowledge.corpus.prose import is_converted

        files = self.settings.corpus.files
        found = (one for file in files for one in find_files(self._root, file.path))
        paths = [one.path for one in found if one.problem is None]
        written = len(list(self._raw_files())) == len(files)
        if not written or any(map(is_converted, paths)) or not is_small(*paths):
            return None
        counts = {"files": 0, "documents": 0, "documents_without_text": 0}
        documents = read_corpus(self.settings.corpus, self._root, counts, [])
        return chunk_documents(documents, self.settings.corpus.chunk_words)

    def _raw_files(self) -> Iterator[CorpusFile]:
        """The files, directories and globs that exist before the run."""
        raw = super().files()
        return (file for file in self.settings.corpus.files if file.path in raw)

    @property
    def _root(self) -> Path:
        return Path(self.settings.data.root or ".")


Skipped = dict[str, str | int]  # file and reason; rows if only so many rows were left out


def run(context: StageContext) -> dict[str, int]:
    """Write the stage's files and return the counts of files, documents and chunks.

    Raises InputError when a file is unusable that must not be skipped (`skips`), or when the corpus
    has no text.
    """
    from pipeline.core.content_cache import open_cache
    from pipeline.knowledge.corpus.chunk import chunk_documents, write_chunks

    counts = {"files": 0, "documents": 0, "documents_without_text": 0, "duplicate_passages": 0}
    skipped: list[Skipped] = []
    for file in context.config.corpus.files:
        context.resolve(file.path)
    kept = cache(lambda: open_cache(context.config.cache_dir))
    settings = context.config.corpus
    documents = read_corpus(settings, context.data_root, counts, skipped, kept)
    context.progress.start(None, "chunks")
    if settings.add_gold:
        chunks = _with_gold(context, documents, counts)
    else:
        chunks = chunk_documents(documents, settings.chunk_words, counts)
    counts["chunks"] = write_chunks(context.output, counted(chunks, context.progress))
    files = [one for one in skipped if "rows" not in one]
    rows = [one for one in skipped if "rows" in one]
    counts["skipped_files"] = len(files)
    write_json(context.output / "skipped.json", skipped)
    if counts["chunks"] == 0:
        reason = f"; {len(skipped):,} files have faults, {_first(skipped)}" if skipped else ""
        raise InputError(f"corpus.files: no document has any text{reason}; name other files")
    if files:
        print(f"corpus.files: {len(files):,} files skipped (skipped.json); {_first(files)}")
    if rows:
        counts["skipped_rows"] = sum(int(one["rows"]) for one in rows)
        left_out = f"{counts['skipped_rows']:,} malformed rows left out (skipped.json)"
        print(f"corpus.files: {left_out}; {_first(rows)}")
    if repeated := counts["duplicate_passages"]:
        print(f"corpus.files: {repeated:,} passages repeat the title and text of another; merged")
    return counts


def read_corpus(
    settings: config.Corpus,
    root: Path,
    counts: dict[str, int],
    skipped: list[Skipped],
    kept: Callable[[], ContentCache | None] = lambda: None,
) -> Iterator[Document]:
    """The documents of a corpus; ``kept`` opens the cache of converted files.

    Adds to the counts of files and documents, and to the skipped files. Raises InputError and
    DependencyError for files that must not be skipped.
    """
    from pipeline.knowledge.corpus.documents import is_streamed, read_documents, skips
    from pipeline.knowledge.corpus.folders import find_files
    from pipeline.knowledge.corpus.prose import is_converted

    for file in settings.files:
        for found in find_files(root, file.path):
            bad = BadRows()
            try:
                if not found.named and is_streamed(found.path):
                    # A file of a folder that is broken at its end is skipped whole.
                    deque(read_documents(found, file.format, file.dataset), maxlen=0)
                cached = kept() if is_converted(found.path) else None
                for document in read_documents(found, file.format, file.dataset, cached, bad):
                    counts["documents"] += 1
                    counts["documents_without_text"] += not document.text.strip()
                    yield document
                counts["files"] += 1
            except (InputError, DependencyError) as error:
                if not skips(found, strict=settings.strict):
                    raise
                skipped.append({"file": found.name, "reason": _reason(error, found.path)})
                continue
            if bad.first is not None:
                if settings.strict:
                    raise bad.first
                reason = _reason(bad.first, found.path)
                skipped.append({"file": found.name, "rows": bad.count, "reason": reason})


def _first(skipped: list[Skipped]) -> str:
    return f"the first: {skipped[0]['file']}: {skipped[0]['reason']}"


def _reason(error: Exception, path: Path) -> str:
    reason = str(error).removeprefix(file_name(path)).lstrip(": ")
    return f"line {reason}" if reason[:1].isdigit() else reason


def _with_gold(
    context: StageContext, documents: Iterator[Document], counts: dict[str, int]
) -> Iterator[Chunk]:
    """The chunks of all documents, then of the gold passages that these lack."""
    from pipeline.knowledge.corpus.chunk import chunk_documents
    from pipeline.knowledge.corpus.coverage import ADDED, GoldCoverage
    from pipeline.knowledge.corpus.raw_records import Document

    coverage = GoldCoverage(questions_by_split(context.inputs))
    added: list[dict[str, str]] = []

    def gold() -> Iterator[Document]:
        for file in question_files(context.config):
            for document in _paragraphs(context.resolve(file.path), file.dataset):
                if coverage.find_gold(document.title, document.text):
                    added.append({"title": document.title, "file": file.path})
                    yield Document(document.title, document.text, source=file.path)

    # gold() begins after the chunks of all other documents.
    everything = chain(documents, gold())
    for chunk in chunk_documents(everything, context.config.corpus.chunk_words, counts):
        coverage.find_gold(chunk.title, chunk.text)
        yield chunk
    counts["gold_passages_added"] = len(added)
    write_json(context.output / ADDED, added)
    print(f"corpus.add_gold: {len(added):,} gold passages of question files added ({ADDED})")


def _paragraphs(path: Path, dataset: str) -> Iterator[Document]:
    """The paragraphs of a question file; none, and a line in the log, if it holds none."""
    from pipeline.knowledge.corpus.documents import read_documents

    documents = read_documents(path, "questions", dataset)
    try:
        yield from islice(documents, 1)
    except InputError as error:
        print(f"corpus.add_gold: {error}")
    yield from documents
