"""Questions to the policies of a run, from the page *Ask*.

Input: questions in words, from the web browser. Output: their answers as trajectories. The engine
starts with the first question, in separate processes (`pipeline.rollout.answering`), and a thread
waits for it, so that pages stay fast. One engine is open at a time. It ends when other policies are
asked, after `IDLE` seconds without a question, or on demand, so that its GPUs are free for runs.
`steep serve` has no such thread: its policy is open as long as the service.
"""

from __future__ import annotations

import multiprocessing
import secrets
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from queue import Empty, Queue
from typing import TYPE_CHECKING, Protocol

from pipeline.core.errors import InputError, SteepError

if TYPE_CHECKING:
    from pipeline.core.records import Question
    from pipeline.rollout.answering import Answered, PolicyProcess

IDLE = 600.0  # seconds
_WAITING = 4  # questions that may wait; the engine answers one at a time
_KEPT = 50  # questions with their answers
Tell = Callable[[str], None]


class Policies(Protocol):
    """The policies of a run that can be asked."""

    def names(self) -> tuple[list[str], str]:
        """Their names, and the reason if none of them is trained; raises SteepError."""
        ...

    def made(self, names: Sequence[str]) -> object:
        """What differs when one of them was made again; raises SteepError."""
        ...

    def opened(
        self, names: Sequence[str], tell: Tell
    ) -> AbstractContextManager[Sequence[PolicyProcess]]:
        """Their processes, as `pipeline.serving.asking.opened`."""
        ...


@dataclass
class Asked:
    """A question with the names of its policies; ``progress`` are lines, the newest last."""

    key: str
    run: str
    question: Question
    names: tuple[str, ...]
    progress: list[str] = field(default_factory=list)
    answers: list[tuple[str, Answered]] = field(default_factory=list)
    problem: str = ""
    ended: bool = False
    since: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Seconds since the question was asked."""
        return time.monotonic() - self.since


class Desk:
    """Takes questions and answers them one after the other, in a thread."""

    def __init__(self, idle: float = IDLE) -> None:
        self._idle = idle
        self._asked: OrderedDict[str, Asked] = OrderedDict()
        self._queue: Queue[tuple[Asked, Policies] | None] = Queue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._open: tuple[str, tuple[str, ...], object] | None = None
        self._ended = threading.Event()

    def ask(self, run: str, question: Question, names: Sequence[str], policies: Policies) -> Asked:
        """Take a question. Raises InputError when too many questions wait."""
        with self._lock:
            waiting = sum(not asked.ended for asked in self._asked.values())
            if waiting >= _WAITING:
                raise InputError(
                    f"{waiting} questions wait for the engine; ask again when one is answered"
                )
            asked = Asked(secrets.token_urlsafe(9), run, question, tuple(names))
            self._asked[asked.key] = asked
            while len(self._asked) > _KEPT:
                self._asked.popitem(last=False)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="asking", daemon=True)
                self._thread.start()
        self._queue.put((asked, policies))
        return asked

    def find(self, run: str, key: str) -> Asked | None:
        """The question of a run with this key, or None."""
        asked = self._asked.get(key)
        return asked if asked is not None and asked.run == run else None

    def of_run(self, run: str) -> list[Asked]:
        """The questions of a run, newest first."""
        with self._lock:
            return [asked for asked in reversed(self._asked.values()) if asked.run == run]

    @property
    def open(self) -> tuple[str, tuple[str, ...]] | None:
        """The run and the policies whose engine is ready, or None."""
        return self._open and self._open[:2]

    def end(self) -> None:
        """End the engine after the questions that wait."""
        self._queue.put(None)

    def close(self, patience: float = 5.0) -> None:
        """End the engine and the thread.

        After ``patience`` seconds its processes are killed.
        """
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is None:
            return
        self._ended.set()
        self._queue.put(None)
        thread.join(patience)
        for process in multiprocessing.active_children():
            process.kill()
        thread.join(patience)

    def _work(self) -> None:
        with ExitStack() as engine:
            processes: Sequence[PolicyProcess] = ()
            while not self._ended.is_set():
                try:
                    taken = self._queue.get(timeout=self._idle if self._open else None)
                except Empty:
                    taken = None
                if taken is None:
                    self._end_engine(engine)
                    continue
                asked, policies = taken
                try:
                    wanted = (asked.run, asked.names, policies.made(asked.names))
                    if self._open != wanted:
                        self._end_engine(engine)
                        opened = policies.opened(asked.names, asked.progress.append)
                        processes = engine.enter_context(opened)
                        self._open = wanted
                    asked.progress.append("answering")
                    pending = [(process.name, process.ask(asked.question)) for process in processes]
                    asked.answers = [(name, answer.result()) for name, answer in pending]
                except BaseException as error:  # noqa: BLE001 - the page shows it, and the thread goes on
                    asked.problem = str(error) or type(error).__name__
                    if not isinstance(error, SteepError):
                        traceback.print_exc(file=sys.stderr)
                    if self._open is None or any(one.failure for one in processes):
                        self._end_engine(engine)
                finally:
                    asked.ended = True

    def _end_engine(self, engine: ExitStack) -> None:
        """Close the engine. A failure is printed, and the thread goes on without the engine."""
        self._open = None
        try:
            engine.close()
        except BaseException:  # noqa: BLE001 - later questions need this thread
            traceback.print_exc(file=sys.stderr)
