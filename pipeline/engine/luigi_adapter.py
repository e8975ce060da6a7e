"""The adapter of Luigi: the one place that changes how Luigi is imported and runs tasks.

Luigi chooses which task runs, and counts the GPUs and CPU threads of a run (its resources). Six
things differ here from Luigi's own. It is imported without two optional packages whose functions no
task uses, because they take three quarters of the time of the import, which every command on a run
needs. A task runs in a thread in place of a forked process, because it only waits for the process
of its stage, and a fork of a process with threads, as pyarrow and torch start them, can crash or
hang. Whoever schedules tasks says what runs them, so that their class, which declares stages, needs
no module that runs any; for Luigi's own command their package says it (`Task.runner`). The
parameters of a class are looked up once. The runner of a task looks up its inputs, and Luigi does
not do so before, one by one. Luigi's own log lines are off, because stages report for themselves.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import sys
import threading
from collections.abc import Callable, Mapping
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, ClassVar

_UNUSED = {name: None for name in ("jsonschema", "requests") if name not in sys.modules}
sys.modules.update(_UNUSED)  # type: ignore[arg-type]  # None: as if not installed
import luigi as luigi  # noqa: E402
from luigi.scheduler import Scheduler  # noqa: E402
from luigi.task_register import Register as Register  # noqa: E402
from luigi.worker import Worker  # noqa: E402

for _name in _UNUSED:
    del sys.modules[_name]


_Run = Callable[[Any], None]
_Failed = Callable[[Any, BaseException], str]


class Task(luigi.Task):
    """A task whose parameters are looked up once per class, not again for every clone.

    ``runner`` runs a task for Luigi's own command, whose empty method would call a stage done that
    has not run.
    """

    runner: ClassVar[_Run]

    @classmethod
    @cache
    def get_params(cls) -> Any:
        return super().get_params()

    def run(self) -> None:
        type(self).runner(self)


class _TaskThread(threading.Thread):
    """Runs a task in place of the process that Luigi would fork."""

    def __init__(self, process: Any) -> None:
        super().__init__(daemon=True)  # a run that is interrupted twice does not wait for it
        self._process = process

    def run(self) -> None:
        self._process.use_multiprocessing = False  # else it sets the seed of `random`
        with contextlib.suppress(KeyboardInterrupt):
            self._process.run()

    def terminate(self) -> None:
        """Interrupt the task as Ctrl-C does in the main thread, and wait for its end."""
        interrupt = ctypes.pythonapi.PyThreadState_SetAsyncExc
        interrupt(ctypes.c_ulong(self.ident or 0), ctypes.py_object(KeyboardInterrupt))
        self.join()


class _Worker(Worker):
    """Luigi's worker, with threads in place of forked processes."""

    def __init__(self, run: _Run, failed: _Failed, **settings: Any) -> None:
        super().__init__(check_unfulfilled_deps=False, **settings)
        self._run, self._failed = run, failed

    def _create_task_process(self, task: Any) -> Any:
        task.run, task.on_failure = partial(self._run, task), partial(self._failed, task)
        process = super()._create_task_process(task)
        thread = _TaskThread(process)
        process.start, process.is_alive = thread.start, thread.is_alive
        process.terminate = thread.terminate
        return process


def schedule(
    task: luigi.Task, run: _Run, failed: _Failed, resources: Mapping[str, int], workers: int
) -> None:
    """``run`` a task after the tasks that it needs, at most ``workers`` at a time.

    ``failed`` is told of an exception of ``run``, and returns its message. Raises OSError when a
    process cannot be started; failures of tasks are theirs to report.
    """
    settings = luigi.configuration.get_config()
    settings.set("core", "no_configure_logging", "true")
    for name in ("luigi", "luigi-interface", "luigi.scheduler"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    scheduler = Scheduler(
        prune_on_get_work=True, record_task_history=False, resources=dict(resources)
    )
    worker = partial(_Worker, run, failed)
    local = SimpleNamespace(create_local_scheduler=lambda: scheduler, create_worker=worker)
    luigi.build([task], worker_scheduler_factory=local, local_scheduler=True, workers=workers)
