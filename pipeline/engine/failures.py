"""Sentences about failures of the system: errors of files and processes, and ends by a signal.

Input: an OSError, or the exit status of a stage's process. Output: one sentence with the cause and
the remedy.
"""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

_AGAIN = "run the command again, and the stage continues from its last checkpoint"
_SPACE = f"free some space (df -h, quota -s), then {_AGAIN}"
_PERMISSIONS = "change the permissions, or set runs_dir and cache_dir to another folder"
_FEWER = "end other programs, or run fewer stages at once (--workers)"
# Errors of the machine, which no stage causes.
_OF_MACHINE = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: "raise the limit (ulimit -f)",
    errno.EROFS: _PERMISSIONS,
    errno.EACCES: _PERMISSIONS,
    errno.EPERM: _PERMISSIONS,
    errno.EMFILE: "raise the limit (ulimit -n)",
    errno.ENFILE: _FEWER,
    errno.ENOMEM: _FEWER,
    errno.EIO: "check the disk",
}
_REMEDIES = {**_OF_MACHINE, errno.EAGAIN: _FEWER}
_SIGNALS: dict[int, tuple[str, str]] = {
    signal.SIGTERM: ("was ended by SIGTERM, from a user, a batch system or a shutdown", _AGAIN),
    signal.SIGINT: ("was interrupted (SIGINT)", _AGAIN),
    signal.SIGHUP: ("was ended by SIGHUP, because its terminal was closed", _AGAIN),
    signal.SIGBUS: (
        "crashed with SIGBUS: a file that it had mapped into memory was cut short, or the disk "
        "is full",
        "check the disk (df -h), and the outputs with `steep verify`",
    ),
}


def of_machine(error: OSError) -> bool:
    """Whether the machine caused the error (disk, permissions, limits), and not the program."""
    return error.errno in _OF_MACHINE


def explain_os_error(error: OSError, path: Path | str) -> str:
    """One sentence: file, cause and remedy. ``path`` is used if the error names no file."""
    where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(path)
    remedy = _REMEDIES.get(error.errno or 0)
    return f"{where}: {error.strerror or error}" + (f"; {remedy}" if remedy else "")


def explain_exit(status: int, last_line: str, memory_hint: str) -> str:
    """One sentence about a process that ended without a message.

    ``status`` is as `subprocess` gives it: negative for a signal. ``last_line`` is the last line
    that the process printed, and ``memory_hint`` says which settings take less memory.
    """
    if status >= 0:
        printed = f"its last line of output is {last_line!r}" if last_line else "it printed nothing"
        return f"its process ended with status {status} and without a message; {printed}"
    if -status == signal.SIGKILL:
        cause = "was killed by SIGKILL, probably by the kernel because memory ran out"
        return f"its process {cause}; {memory_hint}"
    known = -status in set(signal.Signals)
    name = signal.Signals(-status).name if known else f"signal {-status}"
    crashed = f"crashed with {name} in compiled code", "its log has the stack"
    cause, remedy = _SIGNALS.get(-status, crashed)
    return f"its process {cause}; {remedy}"
