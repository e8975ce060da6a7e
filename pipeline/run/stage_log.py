"""The log of a stage: the file that takes what the stage's process prints.

Input: the path of the log. Output: the file that was opened, with standard output and standard error
redirected to it. The log of the attempt before is kept as ``<name>.log.1``. The file is locked while
the process runs, and a stage of the same name with other settings writes to another file.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import time
from pathlib import Path

from pipeline.core.errors import StoreError
from pipeline.run.failures import explain_os_error


def redirect_output(path: Path, second: Path) -> Path:
    """Send this process's output to ``path``, or to ``second`` while another process writes to it.

    ``second`` must belong to this stage alone: it is taken in any case. Returns the file that was
    taken. It is locked until the process and all its children end. Raises StoreError when the file
    cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, taken = _open(path), path
        if not _locked(descriptor):
            os.close(descriptor)
            descriptor, taken = _open(second), second
            _locked(descriptor)
        _keep_earlier(taken, descriptor)
        _redirect(descriptor)
        print(time.strftime("%Y-%m-%dT%H:%M:%S%z"), f"process {os.getpid()}", flush=True)
    except OSError as error:
        raise StoreError(f"the log cannot be written: {explain_os_error(error, path)}") from None
    return taken


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def _locked(descriptor: int) -> bool:
    """Lock an open file; False when another process has locked it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: two processes may then share a log
        return True
    return True


def _keep_earlier(path: Path, descriptor: int) -> None:
    # Copied and not renamed: the lock belongs to the file, and `tail -f` keeps following it.
    if os.fstat(descriptor).st_size > 0:
        shutil.copyfile(path, path.with_name(f"{path.name}.1"))
        os.ftruncate(descriptor, 0)


def _redirect(descriptor: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(descriptor, stream.fileno())
    os.close(descriptor)
