"""Run a function in a process of its own, with bounds of time and memory.

Parsers of documents can take hours or all memory for a file that is damaged or hostile. Such a file
then costs `SECONDS` of processor time, and not the stage. Input: a function, which may raise a
`SteepError`. Output: its value. The process is forked, so that it starts in milliseconds.
"""

from __future__ import annotations

import multiprocessing
import resource
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
SECONDS = 60  # of processor time, so that a busy machine changes nothing
BYTES = 2 << 30  # beyond what this process has


class Exceeded(Exception):
    """The function took too much time or memory, or its process crashed."""


def bounded(function: Callable[[], T], seconds: int = SECONDS) -> T:
    """The value of a function. Raises Exceeded, and what the function raises."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, function, seconds))
    process.start()
    sender.close()
    try:
        succeeded, value = receiver.recv()
    except EOFError:
        process.join()
        if process.exitcode == -signal.SIGXCPU:
            raise Exceeded(f"takes over {seconds} s to read") from None
        raise Exceeded(f"ends the process that reads it (status {process.exitcode})") from None
    finally:
        receiver.close()
        process.kill()
        process.join()
    if not succeeded:
        raise value
    result: T = value
    return result


def _send(sender: Connection, function: Callable[[], object], seconds: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other process is interrupted and ends this
    try:
        limits = {resource.RLIMIT_CPU: seconds, resource.RLIMIT_CORE: 0}
        if (used := Path("/proc/self/statm")).exists():  # Linux
            pages = int(used.read_text().split()[0])
            limits[resource.RLIMIT_AS] = pages * resource.getpagesize() + BYTES
        for kind, limit in limits.items():
            hard = resource.getrlimit(kind)[1]
            soft = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.setrlimit(kind, (soft, hard))
        message: tuple[bool, object] = True, function()
    except MemoryError:
        message = False, Exceeded(f"takes over {BYTES >> 30} GiB of memory to read")
    except Exception as error:  # noqa: BLE001 - it is raised in the other process
        message = False, error
    sender.send(message)
