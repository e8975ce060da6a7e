"""Failures of tasks as text, for Luigi's scheduler, which keeps one text for each failed task.

With several workers a task runs in a process of its own, and only this text reaches the process that
reports failures.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from pipeline.core.errors import SteepError
from pipeline.run.failures import explain_os_error
from pipeline.run.supervisor import StageFailed


@dataclass(frozen=True)
class Failure:
    """The message of a failed task for the user, its log, and the exit status of the command line."""

    message: str
    status: int
    log: str | None = None

    def as_text(self) -> str:
        """The failure as JSON."""
        return json.dumps(asdict(self))


def failure_of(exception: BaseException) -> Failure:
    """The failure that an exception of a task means. The traceback of a bug is printed."""
    if isinstance(exception, StageFailed):
        log = None if exception.log is None else str(exception.log)
        return Failure(exception.cause, exception.exit_status, log)
    if isinstance(exception, SteepError):
        return Failure(str(exception), exception.exit_status)
    if isinstance(exception, OSError):
        return Failure(explain_os_error(exception, "the run's directory"), 2)
    traceback.print_exception(exception)
    return Failure(f"{type(exception).__name__}: {exception}", 1)


def told_once(failures: Sequence[tuple[str, Failure]]) -> str:
    """One line for every cause: the stages with it, the message and the logs.

    ``failures`` are labels of stages with their failures.
    """
    by_cause: dict[str, list[tuple[str, Failure]]] = {}
    for label, failure in failures:
        by_cause.setdefault(failure.message, []).append((label, failure))
    lines = []
    for message, same in by_cause.items():
        logs = list(dict.fromkeys(failure.log for _, failure in same if failure.log))
        where = f" ({'log' if len(logs) == 1 else 'logs'}: {', '.join(logs)})" if logs else ""
        lines.append(f"{', '.join(label for label, _ in same)}: {message}{where}")
    return "\n".join(lines)


def from_text(text: str) -> Failure:
    """The failure of `Failure.as_text`, or one with Luigi's own text about a process that ended."""
    try:
        return Failure(**json.loads(text))
    except (ValueError, TypeError):
        return Failure(text, 1)
