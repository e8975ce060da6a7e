"""The interface by which long work reports its progress.

Stages pass a `Progress` to the functions that do the work. This base class reports nothing, so that
functions can always call it; `pipeline.engine.progress.ProgressFile` writes the reports to
a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
_EVERY = 1000  # items between two reports of `counted`


class Progress:
    """Takes reports and ignores them."""

    def start(self, total: int | None, unit: str, done: int = 0) -> None:
        """Begin work on ``total`` items, of which ``done`` were done before.

        ``unit`` names them in the plural; ``total`` is None when it is unknown. Work with several
        parts starts again for each.
        """

    def advance(self, n: int = 1) -> None:
        """Count ``n`` more items as done."""

    def skip(self, n: int) -> None:
        """Count ``n`` items that earlier work left done; they do not enter the rate."""

    def show(self, **values: float) -> None:
        """Numbers to show beside the bar, such as ``loss``; only finite values are shown."""


def counted(items: Iterable[T], progress: Progress) -> Iterator[T]:
    """The items, counted in groups while they are consumed."""
    waiting = 0
    for item in items:
        yield item
        waiting += 1
        if waiting == _EVERY:
            progress.advance(waiting)
            waiting = 0
    progress.advance(waiting)
