"""The living processes that carry a variable of a test in their environment, found in ``/proc``."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.waiting import becomes


def marked(mark: str) -> dict[int, str]:
    """The living processes with ``mark`` in their environment, and their names, by process id."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state = (path / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and mark.encode() in (path / "environ").read_bytes():
                found[int(path.name)] = (path / "cmdline").read_bytes().decode().strip("\0")
        except OSError:  # it has ended
            continue
    return found


def left_after(mark: str) -> dict[int, str]:
    """The processes that have not ended by themselves in time; they are ended."""
    becomes(lambda: not marked(mark))
    left = marked(mark)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return left
