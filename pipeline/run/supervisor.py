"""Start the process of a stage, and say why it failed, however it ended.

Input: the stage's task. Output: none, or StageFailed with one sentence. The process reports through a
pipe, because a file could not be written on a full disk. A process that cannot report (killed,
crashed, failed while starting) is described by its exit status and its last line of output.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from pipeline.core.errors import SteepError
from pipeline.core.text import one_line
from pipeline.run import process
from pipeline.run.failures import explain_exit, explain_os_error
from pipeline.run.fork_server import FIRST_EXTRA, ForkedProcess, ForkServer, ForkServerEnded
from pipeline.run.worker import StageJob

_TAIL = 8192  # bytes of a log that are read for its last line
_LONGEST_LINE = 300  # characters of that line in a message


class StageFailed(SteepError, RuntimeError):
    """A stage failed.

    ``cause`` is a message for the user, to which the exception's own adds the log. ``exit_status`` is
    that of the stage's process, and ``busy`` says that another process runs the stage.
    """

    def __init__(
        self, cause: str, exit_status: int = 2, log: Path | None = None, busy: bool = False
    ) -> None:
        super().__init__(cause if log is None else f"{cause} (log: {log})")
        self.cause = cause
        self.exit_status = exit_status
        self.log = log
        self.busy = busy


@dataclass(frozen=True)
class Preloaded:
    """A fork server, and the modules that it imports before it forks the stage's process."""

    server: ForkServer
    modules: Sequence[str]


def run_stage(
    task: StageJob,
    environment: Mapping[str, str],
    memory_hint: str,
    started: Callable[[Path], None],
    preloaded: Preloaded | None = None,
) -> dict[str, int]:
    """Run a stage in a separate process; returns its row counts.

    ``started`` is called with its log when it has the lock. With ``preloaded`` the process is forked,
    else it is a new one. Raises StageFailed with the cause, the
    remedy and the log. A process that crashes after its stage is complete has not failed.
    """
    with _early_output() as early, _pipe() as (reports, writing):
        stage: subprocess.Popen[bytes] | ForkedProcess
        if preloaded is None:
            stage = _start(early, writing, environment)
        else:
            stage = _fork(preloaded, early, writing, environment)
        with stage:
            try:
                _send(stage, task)
                report = _parsed(reports.readline())
                log = Path(report["log"]) if "log" in report else None
                if log is not None:
                    started(log)
                status = stage.wait()
            except BaseException:
                stage.kill()
                raise
        os.set_blocking(reports.fileno(), False)  # a child of the stage may still hold the pipe
        report = _parsed((reports.read() or b"").rpartition(b"\n")[0]) or report
        if "counts" not in report:
            raise _failure(status, report, log, early, memory_hint)
    counts: dict[str, int] = report["counts"]
    return counts


def _start(
    early: IO[bytes], writing: int, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [sys.executable, "-m", process.MODULE, "pipeline.run.worker", str(writing)],
            stdin=subprocess.PIPE,
            stdout=early,
            stderr=subprocess.STDOUT,
            pass_fds=(writing,),
            env={**environment, **process.child_environment()},
        )
    except OSError as error:
        raise _cannot_start(error, sys.executable) from None
    finally:
        os.close(writing)


def _fork(
    preloaded: Preloaded, early: IO[bytes], writing: int, environment: Mapping[str, str]
) -> ForkedProcess:
    try:
        return preloaded.server.start(
            "pipeline.run.worker:main",
            [str(FIRST_EXTRA)],
            modules=preloaded.modules,
            environment=environment,
            output=early.fileno(),
            extra=[writing],
        )
    except ForkServerEnded as error:
        raise StageFailed(f"its process cannot be started: {error}", error.exit_status) from None
    except OSError as error:
        raise _cannot_start(error, "a forked process") from None
    finally:
        os.close(writing)


def _early_output() -> IO[bytes]:
    """A file for what the process prints before its log is open: errors while Python starts."""
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise _cannot_start(error, os.environ.get("TMPDIR", "/tmp")) from None


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[IO[bytes], int]]:
    try:
        reading, writing = os.pipe()
    except OSError as error:
        raise _cannot_start(error, "pipe") from None
    with os.fdopen(reading, "rb") as stream:
        yield stream, writing


def _cannot_start(error: OSError, path: str) -> StageFailed:
    return StageFailed(f"its process cannot be started: {explain_os_error(error, path)}")


def _failure(
    status: int, report: Mapping[str, Any], log: Path | None, early: IO[bytes], memory_hint: str
) -> StageFailed:
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


def _parsed(line: bytes) -> dict[str, Any]:
    """A report; empty when the process ended without one."""
    return dict(json.loads(line)) if line.strip() else {}


def _last_line(stream: IO[bytes]) -> str:
    """The last line that is not blank."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - _TAIL))
    lines = stream.read().decode("utf-8", "replace").split("\n")
    return one_line(next((line for line in reversed(lines) if line.strip()), ""), _LONGEST_LINE)
