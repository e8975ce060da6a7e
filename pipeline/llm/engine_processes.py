"""End the processes that vLLM starts when the process that started them ends.

With vLLM's multi-process engine, the default on GPUs, the model is not in the process of the stage: vLLM
starts ``VLLM::EngineCore``, and that starts a worker for each GPU of a tensor-parallel group. After a
kill of the stage they would go on, keep the memory of the GPU, and so make the rerun fail.

Input: the functions that vLLM starts as processes. Inside `ending_with_parent` these processes watch
their parent from their start, before they import vLLM, and end with SIGKILL. They also write why they could
not start to a file (`pipeline.llm.start_error`). The kernel could send a signal instead
(``PR_SET_PDEATHSIG``), but also would when only the thread ends that had opened the engine.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pipeline.llm.start_error import CauseFile

Names = tuple[str, str, str]  # module, class, static method

ENGINE_CORE: Names = ("vllm.v1.engine.core", "EngineCoreProc", "run_engine_core")
_WORKER: Names = ("vllm.v1.executor.multiproc_executor", "WorkerProc", "worker_main")
_INTERVAL = 0.25  # seconds between two looks at the parent


@contextmanager
def ending_with_parent(names: Names, cause: str) -> Iterator[None]:
    """Let the processes that vLLM starts from a static method end with this process.

    Applies to processes that are started inside the context. ``cause`` is the file for the message of the
    first exception that they log. Raises AttributeError when the installed vLLM has no such method.
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
    logging.getLogger(names[0]).addFilter(CauseFile(cause))
    if names == ENGINE_CORE:
        with ending_with_parent(_WORKER, cause):
            call(*arguments, **keywords)
    else:
        call(*arguments, **keywords)


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
