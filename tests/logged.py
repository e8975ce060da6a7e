"""The fixture `caplog` without pytest's plugin, which takes 3 CPU s of the suite.

The plugin goes through 1,200 loggers six times a test. `pytest -p logging` shows what a test logged.
"""

import logging
from collections.abc import Iterator

import pytest


class Logged(logging.Handler):
    """The records that a test logs."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def text(self) -> str:
        return "\n".join(map(self.format, self.records))


@pytest.fixture
def caplog() -> Iterator[Logged]:
    logged = Logged()
    logging.root.addHandler(logged)
    yield logged
    logging.root.removeHandler(logged)
