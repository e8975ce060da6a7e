"""Failures of tasks as text, for Luigi's scheduler, which keeps one text for each failed task.

With several workers a task runs in a process of its own, and only this text reaches the process that
reports failures.
"""

from __future__ import annotations

import json
import traceback
from dataclasses import asdict, dataclass

from pipeline.core.errors import SteepError
from pipeline.run.failures import explain_os_error


@dataclass(frozen=True)
class Failure:
    """The message of a failed task for the user, and the exit status of the command line."""

    message: str
    status: int


def as_text(exception: BaseException) -> str:
    """A failure as JSON. The traceback of a bug is printed."""
    if isinstance(exception, SteepError):
        failure = Failure(str(exception), exception.exit_status)
    elif isinstance(exception, OSError):
        failure = Failure(explain_os_error(exception, "the run's directory"), 2)
    else:
        traceback.print_exception(exception)
        failure = Failure(f"{type(exception).__name__}: {exception}", 1)
    return json.dumps(asdict(failure))


def from_text(text: str) -> Failure:
    """The failure of `as_text`, or one with Luigi's own text about a process that ended."""
    try:
        return Failure(**json.loads(text))
    except (ValueError, TypeError):
        return Failure(text, 1)
