"""One server forks the stages that tests run. A run with heavy imports has such a server too.

A new process spends 0.3 CPU s on importing the configuration, ten times what the stages of most
tests do. Tests of what a new process alone does use the fixture `new_processes`.
"""

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine import run
from pipeline.engine.job import environment
from pipeline.engine.needs import imported_by, imports_of
from pipeline.engine.process import worker
from pipeline.engine.process.fork_server import ForkedProcess, ForkServer
from pipeline.engine.stage import StageTask

ROOT = Path(__file__).resolve().parents[1]
_MODULES = (worker.__name__, __name__, "tasks")
_open = contextlib.ExitStack()
of_a_run = run.preloaded  # which `preloaded` replaces


class _FromHere(ForkServer):
    """Its processes start in the folder of the test, with the test's search path."""

    def start(self, target: str, arguments: Sequence[str], **options: Any) -> ForkedProcess:
        return super().start(f"{__name__}:main", [str(Path.cwd()), *arguments], **options)


def main() -> int:
    """Entry point of a forked process: its folder, then what `worker.main` takes."""
    os.chdir(sys.argv.pop(1))
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return worker.main()


@cache
def server() -> ForkServer:
    """The server of the tests; what it forks runs in the server's folder."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    own = {**os.environ, **environment(), "PYTHONPATH": path}
    return _open.enter_context(ForkServer.running(_MODULES, own))


@contextlib.contextmanager
def preloaded(todo: Iterable[StageTask]) -> Iterator[None]:
    """Fork the stages of ``todo`` from the server of the tests, unless a run would have one."""
    tasks = list(todo)
    if sys.platform != "linux" or any(map(imports_of, tasks)):
        with of_a_run(tasks):
            yield
        return
    for task in tasks:
        own = tuple(imported_by(sys.modules[type(task).__module__]))
        task.attempt.fork_server = _FromHere(server().control, modules=own)
    try:
        yield
    finally:
        for task in tasks:
            task.attempt.fork_server = None


@pytest.fixture(scope="session", autouse=True)
def forked_stages() -> Iterator[None]:
    with _open, pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "preloaded", preloaded)
        yield


@pytest.fixture
def new_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stages of the test run in new processes."""
    monkeypatch.setattr(run, "preloaded", of_a_run)
