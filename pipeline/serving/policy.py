"""A policy that answers the questions of many clients at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from pipeline.core.errors import InputError, SteepError
from pipeline.core.records import Trajectory
from pipeline.knowledge.retrieval.origins import passages
from pipeline.knowledge.retrieval.remote.guard import log_failure
from pipeline.llm.engine import GenerationRequest, GenerationResult
from pipeline.rollout.answering import PolicyProcess, question_record

T = TypeVar("T")
MOST_WAITING = 256  # questions and turns of all clients that have no answer yet


class Busy(SteepError):
    """The policy cannot take a question now; ask again after ``seconds``."""

    def __init__(self, problem: str, status: int, seconds: int) -> None:
        super().__init__(problem)
        self.status = status  # of HTTP: 429 or 503
        self.seconds = seconds


class ServedPolicy:
    """The policy ``name``; ``failed`` is called when its process has ended.

    ``corpus`` is the output of the stage whose passages it finds. Questions come from one event
    loop. ``process`` is None until the engine is ready.
    """

    def __init__(self, name: str, corpus: Path, failed: Callable[[Exception], None]) -> None:
        self.name = name
        self.process: PolicyProcess | None = None
        self._corpus = corpus
        self._failed = failed
        self._waiting = 0

    async def answer(
        self, question: str, watch: Callable[[str], object] | None = None
    ) -> Trajectory:
        """The roll-out of a question; ``watch`` gets the text so far after each step.

        Raises InputError for an unusable question, `Busy` while the engine starts or too many
        questions wait, and what ended the policy's process.
        """
        record = question_record(question)
        loop = asyncio.get_running_loop()
        seen = watch and (lambda text: loop.call_soon_threadsafe(watch, text))
        return (await self._result(lambda process: process.ask(record, seen))).trajectory

    async def sample(self, turn: GenerationRequest) -> GenerationResult:
        """A single turn, beside the roll-outs.

        Raises InputError for a turn that the engine refuses, else what `answer` raises.
        """
        return await self._result(lambda process: process.sample(turn))

    async def _result(self, asked: Callable[[PolicyProcess], Future[T]]) -> T:
        if self.process is None:
            raise Busy(f"the engine of policy {self.name} starts; ask again in a minute", 503, 30)
        if self._waiting >= MOST_WAITING:
            raise Busy(f"{self._waiting} questions wait for the engine; ask again later", 429, 5)
        self._waiting += 1
        try:
            return await asyncio.wrap_future(asked(self.process))
        except Exception as error:
            if self.process.failure is not None:  # else it concerns this request alone
                self._failed(error)
            elif not isinstance(error, InputError):
                log_failure(f"policy {self.name}", error)
            raise
        finally:
            self._waiting -= 1

    async def sources(self, trajectory: Trajectory) -> list[dict[str, str]]:
        """The passages that the steps retrieved, or whose facts they retrieved, each once."""
        items = [item for step in trajectory.steps for item in step.context]
        # In a thread: it compares all ids of the corpus, half a second for those of Wikipedia.
        return [
            {"id": one.id, "title": one.title, "source": one.source, "text": one.text}
            for one in await asyncio.to_thread(passages, items, self._corpus)
        ]
