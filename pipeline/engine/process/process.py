"""End a process when its parent ends.

Each stage runs in a separate process, and training on several devices in children of that process.
None of them may outlive a killed scheduler: an orphan would keep the stage's lock and overwrite the
checkpoints of the rerun.

``python -m pipeline.engine.process.process MODULE ARGUMENT ...`` arranges this, then runs a module
as ``__main__``. It imports nothing heavy before, so that a parent that ends early is noticed. The
environment variable ``STEEP_PARENT`` holds the process id of the expected parent. A process that
starts others sets it with `child_environment`; a process started in this way sets it for its own
children. ``STEEP_HELD`` names the lock files of the GPUs that were leased for the process. It holds
a shared lock on each until it ends, so that no other run is given a GPU that a dying process still
uses.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Any

MODULE = "pipeline.engine.process.process"  # this module, which is __main__ when it runs another
_PARENT = "STEEP_PARENT"
HELD = "STEEP_HELD"  # lock files, separated as in PATH
_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> None:
    """Make Linux send SIGTERM to this process when its parent ends.

    ``parent`` is the process id of the parent. When the parent ended before this call, the process
    has another parent by now and ends at once. With None the parent at the time of the call is
    used, and an earlier end of the parent is not noticed. The setting survives ``exec``, so the
    function can also be the ``preexec_fn`` of any program. It has no effect on other systems.
    """
    if sys.platform == "linux":
        expected = os.getppid() if parent is None else parent
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != expected:  # the parent ended before the call above
            os.kill(os.getpid(), signal.SIGTERM)


def child_environment() -> Mapping[str, str]:
    """The environment variables with which this process starts children through this module."""
    return {_PARENT: str(os.getpid())}


def start_module(
    module: str, arguments: Iterable[object], environment: Mapping[str, str], **options: Any
) -> subprocess.Popen[bytes]:
    """Start a module in a process that ends with this one; ``options`` are those of `Popen`."""
    return subprocess.Popen(
        [sys.executable, "-m", MODULE, module, *map(str, arguments)],
        env={**environment, **child_environment()},
        **options,
    )


def hold_devices() -> None:
    """Hold shared locks on the files of ``STEEP_HELD`` until this process ends.

    The process that took the lease holds them too, so they are free only if it has ended.
    """
    for path in filter(None, os.environ.get(HELD, "").split(os.pathsep)):
        with contextlib.suppress(OSError):
            fcntl.flock(os.open(path, os.O_RDONLY | os.O_CLOEXEC), fcntl.LOCK_SH | fcntl.LOCK_NB)


def main() -> None:
    """Run the module named by the first argument, with the other arguments as its own."""
    parent = os.environ.get(_PARENT)
    die_with_parent(None if parent is None else int(parent))
    os.environ.update(child_environment())
    hold_devices()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
