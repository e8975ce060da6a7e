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
# error number -> cause, remedy
_CAUSES: dict[int, tuple[str, str]] = {
    errno.ENOSPC: ("no space is left on the disk", f"free some (df -h), then {_AGAIN}"),
    errno.EDQUOT: ("the disk quota is used up", f"free some space (quota -s), then {_AGAIN}"),
    errno.EFBIG: ("the file is larger than allowed", "raise the limit (ulimit -f)"),
    errno.EROFS: (
        "the file system is read-only",
        "mount it for writing, or set runs_dir and cache_dir to another folder",
    ),
    errno.EACCES: (
        "permission denied",
        "change the permissions, or set runs_dir and cache_dir to a folder of yours",
    ),
    errno.EPERM: ("operation not permitted", "change the owner or the permissions"),
    errno.EMFILE: ("this process has too many open files", "raise the limit (ulimit -n)"),
    errno.ENFILE: ("the system has too many open files", "end other programs"),
    errno.ENOMEM: ("memory ran out", "end other programs, or run fewer stages at once (--workers)"),
    errno.EAGAIN: (
        "no process could be started",
        "end other programs, or raise the limit of processes (ulimit -u)",
    ),
    errno.EIO: ("the disk reports an input/output error", "check the disk"),
    errno.ENOTDIR: ("a part of the path is a file", "remove it, or choose another folder"),
    errno.EEXIST: ("a file is in the place of a folder", "remove it, or choose another folder"),
    errno.EISDIR: ("a folder is in the place of a file", "remove it, or choose another folder"),
    errno.ELOOP: ("symbolic links form a loop", "correct them"),
    errno.ENAMETOOLONG: ("the path is too long", "choose shorter names"),
}
# Errors of the machine, which no stage causes. The others in _CAUSES may also be bugs of a stage.
_OF_MACHINE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM}
    | {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO}
)
_SIGNALS: dict[int, tuple[str, str]] = {
    signal.SIGKILL: ("was killed by SIGKILL, probably by the kernel because memory ran out", ""),
    signal.SIGTERM: ("was ended by SIGTERM, from a user, a batch system or a shutdown", _AGAIN),
    signal.SIGINT: ("was interrupted (SIGINT)", _AGAIN),
    signal.SIGHUP: ("was ended by SIGHUP, because its terminal was closed", _AGAIN),
    signal.SIGBUS: (
        "crashed with SIGBUS: a file that it had mapped into memory was cut short, or the disk "
        "is full",
        "check the disk (df -h), and the outputs with `steep verify`",
    ),
    signal.SIGXCPU: ("reached the limit of processor time (SIGXCPU)", "raise it (ulimit -t)"),
}


def of_machine(error: OSError) -> bool:
    """Whether the machine caused the error (disk, permissions, limits), and not the program."""
    return error.errno in _OF_MACHINE


def explain_os_error(error: OSError, path: Path | str) -> str:
    """One sentence: file, cause and remedy. ``path`` is used if the error names no file."""
    where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(path)
    cause = _CAUSES.get(error.errno or 0)
    if cause is None:
        return f"{where}: {error.strerror or error}"
    return f"{where}: {cause[0]}; {cause[1]}"


def explain_exit(status: int, last_line: str, memory_hint: str) -> str:
    """One sentence about a process that ended without a message.

    ``status`` is as `subprocess` gives it: negative for a signal. ``last_line`` is the last line
    that the process printed, and ``memory_hint`` says which settings take less memory.
    """
    if status < 0:
        name = _signal_name(-status)
        text, remedy = _SIGNALS.get(
            -status, (f"crashed with {name} in compiled code", "its log has the stack")
        )
        remedy = memory_hint if -status == signal.SIGKILL else remedy
        return f"its process {text}; {remedy}"
    printed = f"its last line of output is {last_line!r}" if last_line else "it printed nothing"
    return f"its process ended with status {status} and without a message; {printed}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
