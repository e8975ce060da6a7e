"""Chunks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipeline.corpus.first_records import document_faults
from tasks.opened import Opened, Work
from tasks.planning.clock import Clock
from tasks.planning.sizes import CHUNK_BYTES, CORPUS_BYTES_PER_CHUNK
from tasks.world import DataTask


class Corpus(DataTask):
    """Documents cut into chunks."""

    stage = "corpus"
    help = "passages of the documents"
    version = 3
    entry = "pipeline.stages.corpus:run"
    reads = ("corpus", "data.root")

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(file.path for file in self.settings.corpus.files)

    def opens(self) -> tuple[Opened, ...]:
        return ()

    def work(self, clock: Clock) -> Work:
        chunks = clock.sizes.chunks
        return Work(ram=CORPUS_BYTES_PER_CHUNK * chunks, disk=CHUNK_BYTES * chunks)

    def faults(self) -> Iterator[str]:
        files = {file.path: file for file in self.settings.corpus.files}
        for name, path in self.files().items():
            yield from document_faults(Path(path), files[name])
