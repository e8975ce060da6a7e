"""A separate process that generates worlds and packs of samples for one training process.

Input: the work directory with the tokenizer, the seed of the training, and the position to start
at. Output: packs in the order of the curriculum, each with its position.
"""

from __future__ import annotations

import os
import queue
from typing import Any

from benchmarks.tiny_reader.curriculum import PHASES, chunk_packs
from benchmarks.tiny_reader.packing import Pack

_QUEUE_PACKS = 48
_POLL_S = 20


def _generate(out: Any, work: str, seed: int, rank: int, start: tuple[int, int, int]) -> None:
    """Put (chunk, index in the chunk, pack) into the queue `out`, forever."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(work, trust_remote_code=False)
    number, chunk, first_index = start
    phase = PHASES[number]
    while True:
        for index, pack in enumerate(chunk_packs(phase, seed, rank, chunk, tokenizer)):
            if index >= first_index:
                out.put((chunk, index, pack))
        chunk, first_index = chunk + 1, 0


class PackFeed:
    """The packs of one rank, from a process that is replaced at the start of every phase."""

    def __init__(self, work: str, seed: int, rank: int) -> None:
        import multiprocessing

        self._context = multiprocessing.get_context("spawn")
        self._arguments = (work, seed, rank)
        self._process: Any = None
        self._queue: Any = None

    def start(self, phase_number: int, chunk: int, index: int) -> None:
        """Start with the pack at this position of a phase."""
        self.stop()
        self._queue = self._context.Queue(_QUEUE_PACKS)
        self._process = self._context.Process(
            target=_generate,
            args=(self._queue, *self._arguments, (phase_number, chunk, index)),
            daemon=True,
        )
        self._process.start()

    def next(self) -> tuple[int, int, Pack]:
        """The next pack as (chunk, index in the chunk, pack).

        Raises:
            RuntimeError: the generating process has exited.
        """
        while True:
            try:
                item: tuple[int, int, Pack] = self._queue.get(timeout=_POLL_S)
            except queue.Empty:
                if not self._process.is_alive():
                    raise RuntimeError("the process that generates samples has exited") from None
                continue
            return item

    def stop(self) -> None:
        """End the generating process."""
        if self._process is not None:
            self._process.terminate()
            self._process.join()
            self._process = None
