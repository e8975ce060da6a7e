"""Notice the end of vLLM's engine process, and say how it ended.

With the multi-process engine, vLLM 0.32 waits forever after its engine process was killed, for example by
the kernel because memory ran out: its own monitor closes the sockets, and nothing wakes the thread that
waits for tokens or for the answer to a call. `EngineWatch` wakes it with an error.

Input: the client of the engine process, ``LLMEngine.engine_core``. An engine inside this process has no
process to watch.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from concurrent.futures import InvalidStateError
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any

_INTERVAL = 0.5  # seconds between two rounds of waking up
_REAPED = 5.0  # seconds until the exit status of an ended process is known, at most
_LOOK = 0.05  # seconds between two looks at it


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

        vLLM may report a failure just before its process ends, so this waits some seconds for the end.
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
    """How a process with this exit status ended, and the remedy; negative for a signal, as in `multiprocessing`."""
    if status is None or status >= 0:
        ended = f"ended with exit status {'unknown' if status is None else status}"
    else:
        known = -status in set(signal.Signals)
        name = signal.Signals(-status).name if known else f"signal {-status}"
        ended = f"was ended by {name} (exit status {128 - status})"
    if status == -signal.SIGKILL:
        return (
            f"{ended}, probably by the kernel because memory ran out; free some, run fewer stages at once "
            "(--workers), or lower the engine's cpu_kv_cache_gib on a CPU, and run again"
        )
    return f"{ended}; its last messages are in the log of the process that opened it"
