"""Preload heavy packages once per run, and fork the processes of stages from there.

On Linux without a GPU a fork server (`pipeline.run.fork_server`) imports the packages that the
stages of the run need, while the first stages run.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace

from pipeline.core.gpus import machine_gpus
from pipeline.run.fork_server import ForkServer
from tasks.base import StageTask
from tasks.needs import imports_of


@contextlib.contextmanager
def preloaded(todo: Iterable[StageTask]) -> Iterator[None]:
    """Run a fork server for the stages of ``todo`` with heavy imports, if this machine can."""
    tasks = [task for task in todo if imports_of(task)]
    settings = tasks[-1].run_settings if tasks else None
    if settings is None or settings.execution.kind != "local" or settings.gpus or not _can_fork():
        yield
        return
    modules = dict.fromkeys(name for task in tasks for name in imports_of(task))
    # One thread, because threads do not survive a fork; forked processes set their own number.
    environment = {**os.environ, **tasks[-1].environment(), "OMP_NUM_THREADS": "1"}
    with ForkServer.running(list(modules), environment) as server:
        for task in tasks:
            task.fork_server = replace(server, modules=imports_of(task))
        try:
            yield
        finally:
            for task in tasks:
                task.fork_server = None


def _can_fork() -> bool:
    return sys.platform == "linux" and not machine_gpus()
