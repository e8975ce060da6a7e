"""End the processes that vLLM starts together with their parent, and explain their failures.

With vLLM's multi-process engine, the default on GPUs, the model is not in the process of the stage:
vLLM starts ``VLLM::EngineCore``, and that starts a worker for each GPU of a tensor-parallel group.
After a kill of the stage these processes would go on and keep the memory of the GPU, so the rerun
would fail.

Input: the functions that vLLM starts as processes. Inside `ending_with_parent` these processes
watch their parent from their start, before they import vLLM, and end with SIGKILL. The kernel could
send a signal instead (``PR_SET_PDEATHSIG``), but it would also send it when only the thread that
opened the engine ends.

When a start fails, the process of the stage learns only "Engine core initialization failed. See
root cause above"; the exception is in the log of these processes. They therefore write the message
of their first logged exception to a file (`CauseFile`), and `start_error` explains it.

vLLM 0.32 waits forever after its engine process was killed, for example by the kernel because
memory ran out. Its own monitor closes the sockets, and nothing wakes the thread that waits for
tokens or for the answer to a call. `EngineWatch` wakes it with an error.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import math
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import InvalidStateError
from contextlib import contextmanager
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from pipeline.core.errors import model_problem

Names = tuple[str, str, str]  # module, class, static method

ENGINE_CORE: Names = ("vllm.v1.engine.core", "EngineCoreProc", "run_engine_core")
_WORKER: Names = ("vllm.v1.executor.multiproc_executor", "WorkerProc", "worker_main")
_INTERVAL = 0.25  # seconds between two looks
_REAPED = 5.0  # seconds until the exit status of an ended process is known, at most
_LOOK = 0.05  # seconds between two looks at it
# vllm.v1.worker.utils.request_memory, vLLM 0.32
_OCCUPIED = re.compile(
    r"Free memory on device (?P<device>\S+) \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup "
    r"is less than desired GPU memory utilization \((?P<share>[\d.]+), (?P<wanted>[\d.]+) GiB\)"
)


@contextmanager
def ending_with_parent(names: Names, cause: str) -> Iterator[None]:
    """Let the processes that vLLM starts from a static method end with this process.

    Applies to processes that are started inside the context. ``cause`` is the file for the message
    of the first exception that they log. Raises AttributeError when the installed vLLM has no such
    method.
    """
    owner, original = _find(names)
    setattr(owner, names[2], staticmethod(_Target(names, original, cause)))
    try:
        yield
    finally:
        setattr(owner, names[2], staticmethod(original))


class _Target:
    """The target of a process that stands for a static method of vLLM.

    A spawned process unpickles its target before the arguments, and only these import vLLM.
    """

    def __init__(self, names: Names, original: Callable[..., None], cause: str) -> None:
        self._names = names
        self._original = original
        self._cause = cause
        self._parent = os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        return _spawned, (self._names, self._cause, self._parent)

    def __call__(self, *arguments: Any, **keywords: Any) -> None:
        """Run in a forked process, which did not unpickle its target."""
        end_with(self._parent)
        _run(self._names, self._original, self._cause, *arguments, **keywords)


def _spawned(names: Names, cause: str, parent: int) -> Callable[..., None]:
    """Called in a spawned process: begin to watch, and return the target."""
    end_with(parent)
    return functools.partial(_run, names, None, cause)


def _run(
    names: Names, method: Callable[..., None] | None, cause: str, *arguments: Any, **keywords: Any
) -> None:
    call = method or _find(names)[1]
    compute_without_amx()
    logging.getLogger(names[0]).addFilter(CauseFile(cause))
    if names == ENGINE_CORE:
        with ending_with_parent(_WORKER, cause):
            call(*arguments, **keywords)
    else:
        call(*arguments, **keywords)


def compute_without_amx() -> None:
    """Make vLLM compute with AVX-512 in this process where it would with AMX.

    On a CPU with AMX, vLLM 0.32 multiplies weights of at most 1 MiB by one kernel for up to four
    rows and by another for more. The log-probabilities of a segment then depend on how many others
    run beside it, and a killed run does not end with the bytes of an uninterrupted one.
    """
    import torch

    cpu: Any = torch.cpu
    cpu._is_amx_tile_supported = lambda: False


def _find(names: Names) -> tuple[Any, Callable[..., None]]:
    """The class and its static method."""
    module, owner, name = names
    found = getattr(importlib.import_module(module), owner)
    return found, getattr(found, name)


def end_with(parent: int) -> None:
    """End this process with SIGKILL, without any clean-up, when its parent ``parent`` has ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_INTERVAL)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


class EngineWatch:
    """Watches the processes of one engine from a thread, until `close`."""

    def __init__(self, client: Any) -> None:
        manager = getattr(getattr(client, "resources", None), "engine_manager", None)
        self._client = client
        self._processes: list[BaseProcess] = list(getattr(manager, "processes", ()))
        self._closed = threading.Event()
        self._ended = threading.Event()
        if self._processes:
            threading.Thread(target=self._watch, name="engine-watch", daemon=True).start()

    def close(self) -> None:
        """Stop watching; call it before the engine is shut down."""
        self._closed.set()

    @property
    def ended(self) -> bool:
        """Whether a process of the engine has ended before `close`."""
        return self._ended.is_set()

    def reason(self) -> str | None:
        """How an ended process ended, as the end of a sentence; None while all of them run.

        vLLM may report a failure just before its process ends, so this waits some seconds for the
        end.
        """
        deadline = time.monotonic() + (_REAPED if self._processes else 0.0)
        while time.monotonic() < deadline:
            for process in self._processes:
                # None too for a moment while another thread collects the status.
                if process.exitcode is not None:
                    return explain_end(process.exitcode)
            time.sleep(_LOOK)
        return explain_end(None) if self.ended else None

    def _watch(self) -> None:
        sentinels = [process.sentinel for process in self._processes]
        while not connection.wait(sentinels, timeout=_INTERVAL):
            if self._closed.is_set():
                return
        if self._closed.is_set():
            return
        self._ended.set()
        error = RuntimeError("a process of the engine has ended")
        while not self._closed.is_set():  # a call may begin to wait only now
            if self._client.outputs_queue.empty():
                self._client.outputs_queue.put_nowait(error)
            for future in list(self._client.utility_results.values()):
                with contextlib.suppress(InvalidStateError):  # it has just got its answer
                    future.set_exception(error)
            self._closed.wait(_INTERVAL)


def explain_end(status: int | None) -> str:
    """How a process with this exit status ended, and the remedy.

    A negative status is a signal, as in `multiprocessing`.
    """
    if status is None or status >= 0:
        ended = f"ended with exit status {'unknown' if status is None else status}"
    else:
        known = -status in set(signal.Signals)
        name = signal.Signals(-status).name if known else f"signal {-status}"
        ended = f"was ended by {name} (exit status {128 - status})"
    if status == -signal.SIGKILL:
        return (
            f"{ended}, probably by the kernel because memory ran out; free some, run fewer stages "
            "at once (--workers), or lower the engine's cpu_kv_cache_gib on a CPU, and run again"
        )
    return f"{ended}; its last messages are in the log of the process that opened it"


class CauseFile(logging.Filter):
    """Writes the message of the first exception that a logger gets to ``path``; drops no record.

    It is a filter, because vLLM removes other handlers when it configures its logging in a process.
    Several processes may share the file: the first one to write it wins.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = Path(path)

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            with contextlib.suppress(OSError), self._path.open("x", encoding="utf-8") as file:
                file.write(str(error))
        return True


def start_error(model: object, error: BaseException, cause: Path) -> str:
    """The sentence for a failed start; ``cause`` is the file of `CauseFile`.

    ``error`` is the exception in this process.
    """
    try:
        message = cause.read_text(encoding="utf-8")
    except OSError:  # the engine is in this process, or its process was killed
        message = ""
    message = message.strip() or str(error).strip() or type(error).__name__
    if "trust_remote_code" in message:
        return f"vLLM could not start with {model}: {model_problem(message)}"
    occupied = _OCCUPIED.search(message)
    return f"vLLM could not start with {model}: " + (
        _occupied(occupied)
        if occupied
        else f"{message.splitlines()[0]}; check engine.dtype, engine.max_model_len and "
        "the memory settings, or set VLLM_LOGGING_LEVEL=INFO"
    )


def _occupied(found: re.Match[str]) -> str:
    share = math.floor(100 * float(found["free"]) / float(found["total"])) / 100
    remedy = (
        "end the programs that hold the rest (nvidia-smi lists them), or lower "
        f"gpu_memory_utilization to at most {share:g}"
    )
    return (
        f"{found['free']} of {found['total']} GiB are free on {found['device']}, and the engine's "
        f"gpu_memory_utilization, {found['share']}, asks for {found['wanted']}; {remedy}, and run "
        "again"
    )
