"""Preload heavy packages once per run, and fork the processes of stages from there.

On Linux without a GPU a fork server (`pipeline.run.fork_server`) imports the packages that the stages of
the run need, while the first stages run.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator

from pipeline.core.gpus import machine_gpus
from pipeline.run.fork_server import ForkServer
from pipeline.run.supervisor import Preloaded
from tasks.base import StageTask, preloading
from tasks.needs import imports_of


@contextlib.contextmanager
def preloaded(todo: Iterable[StageTask]) -> Iterator[None]:
    """Run a fork server for the stages of ``todo``, if the machine and the settings allow one."""
    tasks = list(todo)
    modules = list(dict.fromkeys(name for task in tasks for name in imports_of(task)))
    settings = tasks[-1].run_settings
    local = settings.execution.kind == "local" and not settings.gpus
    if not (modules and settings.preload and local and _can_fork()):
        yield
        return
    # One thread, because threads do not survive a fork; forked processes set their own number.
    environment = {**os.environ, **tasks[-1].environment(), "OMP_NUM_THREADS": "1"}
    with ForkServer.running(modules, environment) as server:
        preloading.start = lambda task: (
            Preloaded(server, names) if (names := imports_of(task)) else None
        )
        try:
            yield
        finally:
            preloading.start = None


def _can_fork() -> bool:
    return sys.platform == "linux" and not machine_gpus()
