"""Answer questions with a policy in a separate process, as `steep ask` and `steep serve` do.

Input: questions in words, and a function that opens a policy. Output: a trajectory for each
question. The engine, retriever and grammar of a `PolicyProcess` stay open, and it rolls out all
questions that have come, together. Single turns, of agents that run their own loop, join them in
the engine. Several policies can be open at once, an interrupted start leaves nothing behind, and
the output of engines does not mix with answers.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, Queue
from typing import Any, Literal

from pipeline.core.errors import EngineError, InputError, SteepError
from pipeline.core.records import Question, Trajectory
from pipeline.llm.engine import GenerationRequest, GenerationResult
from pipeline.llm.engine_processes import end_with
from pipeline.llm.shared_engine import Refused, SharedEngine
from pipeline.rollout.partial import PartialTrajectory

# Rolls out questions as an iterator gives them, also after it had none for a while.
# With ``watch``, a function gets each trajectory whenever its next segment is requested.
Answers = Callable[..., Iterator[Trajectory]]
Opening = Callable[[], AbstractContextManager["OpenPolicy"]]  # pickled for the process
LONGEST_QUESTION = 20_000  # characters
_PATIENCE = 10.0  # seconds in which a process may end by itself
_POLL = 0.2  # seconds between looks at whether a process is still wanted
_starting = threading.Lock()  # only one thread changes the environment


@dataclass(frozen=True)
class OpenPolicy:
    """The answering function of a policy, and its engine, which samples single turns too."""

    answers: Answers
    engine: SharedEngine


@dataclass(frozen=True)
class Answered:
    """The trajectory of a question, and the seconds that it took."""

    trajectory: Trajectory
    seconds: float


@dataclass(frozen=True)
class Written:
    """What is written so far for a question."""

    id: str
    text: str


def question_record(text: str) -> Question:
    """A question in words as a record without gold answers; equal questions have equal ids.

    Raises InputError for a question that is empty, very long, or not Unicode text.
    """
    text = text.strip()
    if not text:
        raise InputError("the question is empty; ask something")
    if len(text) > LONGEST_QUESTION:
        raise InputError(
            f"the question has {len(text):,} characters; ask one of at most {LONGEST_QUESTION:,}"
        )
    try:
        encoded = text.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError("the question is not UTF-8 text; write it in UTF-8") from None
    name = f"ask-{hashlib.sha256(encoded).hexdigest()[:12]}"
    return Question(name, "ask", text, answers=[], hop="unknown")


class PolicyProcess:
    """A policy that answers questions in a separate process, until `close`.

    The process starts with the object, with ``environment`` added to the variables of this process,
    and calls ``opening`` there, whose context gives the policy. It ends with the process that made
    it, however that ends.
    """

    def __init__(
        self, name: str, opening: Opening, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        descriptor, log = tempfile.mkstemp(prefix="steep-ask-", suffix=".log")
        os.close(descriptor)
        self._log = Path(log)
        spawn = multiprocessing.get_context("spawn")  # engines do not survive a fork
        self._connection, others = spawn.Pipe()
        self._process = spawn.Process(
            target=_serve,
            args=(others, opening, log, os.getpid()),
            name=f"steep-ask-{name}",
        )
        with _variables(environment or {}):
            self._process.start()
        others.close()
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Future[Any]]] = {}  # by the id of the question or turn
        self._watching: dict[str, list[Callable[[str], object]]] = {}  # by the id of the question
        self.failure: Exception | None = None  # which ended the process
        self._receiver = threading.Thread(
            target=self._receive_answers, name=f"answers of {name}", daemon=True
        )

    def wait_until_ready(self, ended: threading.Event | None = None) -> None:
        """Wait for the engine and the retriever; raises what opening them raises.

        Raises EngineError when ``ended`` is set before.
        """
        while ended is not None and not self._connection.poll(_POLL):
            if ended.is_set():
                raise EngineError(f"policy {self.name} was not ready when its service ended")
        self._receive()
        self._receiver.start()

    def ask(
        self, question: Question, watch: Callable[[str], object] | None = None
    ) -> Future[Answered]:
        """Ask a question; the result is its answer, its own error, or what ended the process.

        Threads may call this at once, and the questions are rolled out together. ``watch`` gets the
        text so far after each step, in another thread.
        """
        if watch is not None:
            with self._lock:
                self._watching.setdefault(question.question_id, []).append(watch)
        return self._put(question.question_id, question)

    def sample(self, turn: GenerationRequest) -> Future[GenerationResult]:
        """Sample a turn beside the roll-outs; its id differs from the ids of all other turns.

        The result is as for `ask`, or InputError if the engine refuses the turn.
        """
        return self._put(turn.id, turn)

    def _put(self, name: str, item: Question | GenerationRequest) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # a client that leaves cancels nothing here
        with self._lock:
            if self.failure is not None:
                future.set_exception(self.failure)
                return future
            self._waiting.setdefault(name, []).append(future)
            with suppress(OSError):  # the receiver says why the process ended
                self._connection.send(item)
        return future

    def _receive_answers(self) -> None:
        """Give the answers to those who wait for them, until the process ends."""
        try:
            while True:
                result: Answered | GenerationResult | Refused | Written = self._receive()
                if isinstance(result, Written):
                    with self._lock:
                        watching = list(self._watching.get(result.id, ()))
                    for watch in watching:
                        with suppress(RuntimeError):  # its event loop has ended
                            watch(result.text)
                    continue
                asked = result.trajectory.question_id if isinstance(result, Answered) else result.id
                with self._lock:
                    # None wait when the answer to an equal question has served them.
                    waiting = self._waiting.pop(asked, [])
                    self._watching.pop(asked, None)
                for future in waiting:
                    if isinstance(result, Refused):
                        kind = EngineError if result.ours else InputError
                        future.set_exception(kind(result.problem))
                    else:
                        future.set_result(result)
        except Exception as error:  # noqa: BLE001 - raised where an answer is expected
            with self._lock:
                self.failure = error
                unanswered = [future for waiting in self._waiting.values() for future in waiting]
            for future in unanswered:
                future.set_exception(error)

    def close(self) -> None:
        """End the process and remove its log."""
        with suppress(OSError), self._lock:
            self._connection.send(None)
        self._process.join(_PATIENCE)
        self._process.kill()
        self._process.join(_PATIENCE)
        if self._receiver.is_alive():
            self._receiver.join()
        self._connection.close()
        self._log.unlink(missing_ok=True)

    def stop(self) -> None:
        """End the process at once, whether it is busy or not, and remove its log."""
        self._process.kill()
        self.close()

    def _receive(self) -> Any:
        try:
            value = self._connection.recv()
        except (EOFError, ConnectionError):
            self._process.join(_PATIENCE)
            raise EngineError(
                f"the process of policy {self.name} ended with status {self._process.exitcode}; "
                f"its last words: {_last_line(self._log)}"
            ) from None
        if isinstance(value, BaseException):
            raise value
        return value


class _Questions(Iterator[Question]):
    """The questions that have come over a connection; turns go to ``submit``.

    Between questions the iterator ends, and goes on when the next has come.
    """

    def __init__(
        self, connection: Connection, submit: Callable[[GenerationRequest], object]
    ) -> None:
        self._queue: Queue[Question | Literal["turn"] | None] = Queue()
        self._ahead: Question | Literal["turn"] | None = None
        self._started: dict[str, float] = {}
        threading.Thread(target=self._read, args=(connection, submit), daemon=True).start()

    def _read(self, connection: Connection, submit: Callable[[GenerationRequest], object]) -> None:
        with suppress(EOFError, ConnectionError):
            while (item := connection.recv()) is not None:
                if isinstance(item, GenerationRequest):
                    submit(item)
                self._queue.put("turn" if isinstance(item, GenerationRequest) else item)
        self._queue.put(None)

    def wait(self) -> bool:
        """Wait for a question or a turn; False when no more come."""
        self._ahead = self._queue.get()
        return self._ahead is not None

    def pending(self) -> bool:
        """Whether `wait` would return at once."""
        return not self._queue.empty()

    def __next__(self) -> Question:
        question, self._ahead = self._ahead, None
        # A question that is being rolled out was asked before, by another client.
        while not isinstance(question, Question) or question.question_id in self._started:
            try:
                question = self._queue.get_nowait()
            except Empty:
                raise StopIteration from None
            if question is None:
                self._queue.put(None)  # for `wait`
                raise StopIteration
        self._started[question.question_id] = time.perf_counter()
        return question

    def answered(self, trajectory: Trajectory) -> Answered:
        """A trajectory with its seconds since the roll-out of its question began."""
        started = self._started.pop(trajectory.question_id)
        return Answered(trajectory, time.perf_counter() - started)

    def refused(self, question: Question, error: Exception) -> Refused:
        """Why a question has no trajectory."""
        self._started.pop(question.question_id)
        ours = not isinstance(error, InputError)
        named = isinstance(error, SteepError)
        problem = str(error) if named else f"{type(error).__name__}: {error}"
        return Refused(question.question_id, problem, ours)


@contextmanager
def _variables(added: Mapping[str, str]) -> Iterator[None]:
    """Add environment variables for the processes that are started inside the block."""
    with _starting:
        before = {name: os.environ.get(name) for name in added}
        os.environ.update(added)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def _serve(connection: Connection, opening: Opening, log: str, parent: int) -> None:
    """Answer the questions that come over ``connection``, until None comes or it is closed."""
    end_with(parent)
    # The parent ends this process, after the questions that are being answered. Ctrl-C and signals
    # to the group of the parent must not reach it, nor the processes of its engine.
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        with opening() as policy:
            connection.send(None)  # ready
            policy.engine.deliver = connection.send
            questions = _Questions(connection, policy.engine.submit)

            def watch(partial: PartialTrajectory) -> None:
                if text := partial.written():
                    connection.send(Written(partial.question.question_id, text))

            def failed(question: Question, error: Exception) -> None:
                connection.send(questions.refused(question, error))

            while questions.wait():
                for trajectory in policy.answers(questions, watch=watch, failed=failed):
                    connection.send(questions.answered(trajectory))
                policy.engine.sample_turns(until=questions.pending)
    except (EOFError, ConnectionError):  # the parent has ended
        return
    except SteepError as error:
        failure: Exception = error
    except Exception as error:  # noqa: BLE001 - sent to the parent, which shows it
        traceback.print_exc()
        failure = EngineError(f"{type(error).__name__}: {error}")
    with suppress(OSError):
        connection.send(failure)


def _last_line(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").split("\n") if log.is_file() else []
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "none")
