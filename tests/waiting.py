"""Waiting for processes and threads, with one limit that a busy machine does not reach."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LIMIT = 300  # seconds; shorter than pytest's own limit


def becomes(holds: Callable[[], object]) -> bool:
    """Wait until ``holds()`` is true; False after `LIMIT` seconds."""
    deadline = time.monotonic() + LIMIT
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def wait_until(holds: Callable[[], object]) -> None:
    """Wait until ``holds()`` is true. Raises AssertionError after `LIMIT` seconds."""
    assert becomes(holds), f"waited {LIMIT} s in vain"


def exit_status(process: Any) -> int:
    """The status of a process that ends by itself. Raises AssertionError after `LIMIT` seconds."""
    wait_until(lambda: process.poll() is not None)
    return int(process.poll())


@contextmanager
def ending(process: subprocess.Popen[Any]) -> Iterator[subprocess.Popen[Any]]:
    """A process that does not outlive the block, also when the test fails."""
    with process:
        try:
            yield process
        finally:
            process.kill()
