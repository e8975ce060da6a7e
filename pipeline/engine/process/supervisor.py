"""Start the process of a stage, and say why it failed, however it ended.

Input: the stage's task. Output: its row counts, or StageFailed with one sentence. The process is
`pipeline.engine.process.worker`, or the driver of an executor, which runs the stage elsewhere and
reports in the same way. The process reports through a pipe, because a file could not be written on
a full disk. The supervisor describes a process that cannot report (killed, crashed, failed while
starting) by its exit status and its last line of output.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from pipeline.core.errors import SteepError
from pipeline.core.text import one_line
from pipeline.engine.failures import explain_exit, explain_os_error
from pipeline.engine.process.fork_server import ForkedProcess, ForkServer
from pipeline.engine.process.process import start_module
from pipeline.engine.store import StageKey

WORKER = "pipeline.engine.process.worker"
_POLL = 0.2  # seconds between two looks at a process whose child holds its pipe
_CANCEL_SECONDS = 30.0  # that the driver of an executor has to cancel its job
_TAIL = 8192  # bytes of a log that are read for its last line
_LONGEST_LINE = 300  # characters of that line in a message


@dataclass(frozen=True)
class StageJob:
    """The job of a stage's process, which it reads from standard input as JSON.

    Attributes:
        context: the `StageContext` as JSON values, without the directories that it writes.
        entry: the stage's function, ``module:function``.
        root: directory of the store.
        log: file for the stage's output.
        raw_files: content hashes of the raw files and models that the stage reads, by path.
        contents: the content of each input (`pipeline.engine.store`); None if an input is on
            another machine.
        force: run the stage although it is complete.
        lock_seconds: how long to wait for the lock of another process, which may be dying.
        execution: settings of how the stage is executed, by dotted name, for the manifest.
        launched: when the process was started, in seconds since 1970, or 0.
    """

    context: dict[str, Any]
    entry: str
    root: str
    log: str
    raw_files: dict[str, str] = field(default_factory=dict)
    contents: dict[str, str] | None = None
    force: bool = False
    lock_seconds: float = 15.0
    execution: dict[str, Any] = field(default_factory=dict)
    launched: float = 0.0

    @property
    def key(self) -> StageKey:
        """The key of the output."""
        return StageKey(**self.context["key"])


class StageFailed(SteepError, RuntimeError):
    """A stage failed.

    ``cause`` is a message for the user; the message of the exception adds the log. ``exit_status``
    is the status of the stage's process, and ``busy`` says that another process runs the stage.
    """

    def __init__(
        self, cause: str, exit_status: int = 2, log: Path | None = None, busy: bool = False
    ) -> None:
        super().__init__(cause if log is None else f"{cause} (log: {log})")
        self.cause = cause
        self.exit_status = exit_status
        self.log = log
        self.busy = busy


def run_stage(
    task: StageJob,
    environment: Mapping[str, str],
    memory_hint: str,
    started: Callable[[Path], None],
    *,
    command: Sequence[str] = (WORKER,),
    noted: Callable[[str], None] = lambda note: None,
    server: ForkServer | None = None,
) -> dict[str, int]:
    """Run a stage in a separate process; returns its row counts.

    ``started`` is called with the stage's log when the stage has the lock, ``noted`` with each note
    of an executor. ``command`` is the module to run and its arguments after the descriptor of the
    reports. With ``server`` the process is forked from it, else it is a new one. Raises StageFailed
    with the cause, the remedy and the log. A stage that is complete has not failed when its process
    crashes afterwards.
    """
    log: Path | None = None
    last: dict[str, Any] = {}
    reading, writing = os.pipe()
    # Output before the log is open goes to a temporary file: errors while Python starts.
    with os.fdopen(reading, "rb", buffering=0) as reports, tempfile.TemporaryFile() as early:
        try:
            stage = _start(early, writing, environment, command, server)
        finally:
            os.close(writing)
        with stage:
            try:
                _send(stage, task)
                for report in _until_the_end(stage, reports):
                    if "note" in report:
                        noted(report["note"])
                    elif report.keys() == {"log"}:
                        log = Path(report["log"])
                        started(log)
                    else:
                        last = report
                status = stage.wait()
            except BaseException:
                _end(stage, cancels=command[0] != WORKER)
                raise
        if "counts" not in last:
            raise _failure(status, last, log, early, memory_hint)
    counts: dict[str, int] = last["counts"]
    return counts


def _end(stage: subprocess.Popen[bytes] | ForkedProcess, *, cancels: bool) -> None:
    """Kill a process that has not ended, after a chance to cancel its job if ``cancels``."""
    try:
        if cancels and isinstance(stage, subprocess.Popen):
            stage.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                stage.wait(_CANCEL_SECONDS)
    finally:
        stage.kill()


def _until_the_end(
    stage: subprocess.Popen[bytes] | ForkedProcess, reports: IO[bytes]
) -> Iterator[dict[str, Any]]:
    """The reports of a process, each as soon as it is there.

    They end with the process, although a child of it may still hold the pipe.
    """
    os.set_blocking(reports.fileno(), False)
    begun = b""
    while True:
        ended = stage.poll() is not None
        select.select([reports], [], [], 0 if ended else _POLL)
        received = reports.read()
        *lines, begun = (begun + (received or b"")).split(b"\n")
        yield from (json.loads(line) for line in lines if line.strip())
        if ended or received == b"":  # b"" is the end of the pipe, None an empty one
            return


def _start(
    early: IO[bytes],
    writing: int,
    environment: Mapping[str, str],
    command: Sequence[str],
    server: ForkServer | None,
) -> subprocess.Popen[bytes] | ForkedProcess:
    module, *arguments = command
    if server is None:
        streams = {"stdin": subprocess.PIPE, "stdout": early, "stderr": subprocess.STDOUT}
        given = (writing, *arguments)
        return start_module(module, given, environment, pass_fds=(writing,), **streams)
    try:
        target, output = f"{WORKER}:main", early.fileno()
        return server.start(target, [], environment=environment, output=output, extra=[writing])
    except OSError as error:
        reason = explain_os_error(error, "the fork server")
        raise StageFailed(f"its process cannot be started: {reason}") from None


def _failure(
    status: int, report: Mapping[str, Any], log: Path | None, early: IO[bytes], memory_hint: str
) -> StageFailed:
    if report.get("log"):  # of an executor, which reports the log with the message
        log = Path(report["log"])
    if "message" in report:
        return StageFailed(report["message"], report["status"], log, report.get("busy", False))
    if log is None:
        last_line = _last_line(early)
    else:
        with log.open("rb") as stream:
            last_line = _last_line(stream)
    return StageFailed(explain_exit(status, last_line, memory_hint), 1, log)


def _send(stage: subprocess.Popen[bytes] | ForkedProcess, task: StageJob) -> None:
    assert stage.stdin is not None
    with contextlib.suppress(BrokenPipeError), stage.stdin as stream:  # it ended while starting
        stream.write(json.dumps(asdict(task)).encode())


def _last_line(stream: IO[bytes]) -> str:
    """The last line that is not blank."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - _TAIL))
    lines = stream.read().decode("utf-8", "replace").split("\n")
    return one_line(next((line for line in reversed(lines) if line.strip()), ""), _LONGEST_LINE)
