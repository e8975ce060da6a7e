"""Chunks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipeline.config import CorpusFile
from pipeline.core.records import Chunk
from tasks.base import StageTask
from tasks.opened import Opened, Work
from tasks.planning.clock import Clock
from tasks.planning.sizes import CHUNK_BYTES
from tasks.world import DataTask


class Corpus(DataTask):
    """Documents cut into chunks."""

    stage = "corpus"
    help = "passages of the documents"
    version = 5
    entry = "pipeline.stages.corpus:run"
    reads = ("corpus", "data.root")

    @property
    def paths(self) -> tuple[str, ...]:
        """The files of documents; with ``corpus.add_gold`` also the files of questions."""
        documents = tuple(file.path for file in self.settings.corpus.files)
        if not self.settings.corpus.add_gold:
            return documents
        from pipeline.stages.questions import question_files

        return (*documents, *(file.path for file in question_files(self.settings)))

    def upstream(self) -> dict[str, StageTask]:
        """The closed world; with ``corpus.add_gold`` also all questions."""
        from tasks.questions import question_sets  # it is declared after this stage

        questions = question_sets(self) if self.settings.corpus.add_gold else {}
        return {**super().upstream(), **questions}

    def files(self) -> dict[str, Path | str]:
        """The files of documents; a missing package is one too, so its installation is noticed."""
        raw = super().files()
        if not raw:  # the closed world has them
            return raw
        from pipeline.corpus.documents import is_read
        from pipeline.corpus.folders import find_files
        from pipeline.corpus.prose import missing_package

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
        from pipeline.corpus.first_records import document_faults

        for file in self._raw_files():
            yield from document_faults(self._root, file, strict=self.settings.corpus.strict)

    def notes(self) -> Iterator[str]:
        """A sentence for each reason to skip files."""
        from pipeline.corpus.first_records import skipped_documents

        for file in self._raw_files():
            for reason, count in skipped_documents(self._root, file).items():
                noun = "file" if count == 1 else "files"
                yield f"corpus.files: {file.path}: {count:,} {noun} skipped: {reason}"

    def small(self) -> Iterator[Chunk] | None:
        """The chunks of the files, without gold that is added.

        None if the files have more than 64 MiB, must be converted, or are not written yet. Raises
        InputError.
        """
        from pipeline.corpus.chunk import chunk_documents
        from pipeline.corpus.first_records import is_small
        from pipeline.corpus.folders import find_files
        from pipeline.corpus.prose import is_converted
        from pipeline.stages.corpus import read_corpus

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
