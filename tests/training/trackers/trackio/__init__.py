"""A stand-in for trackio: it appends every call to the file ``TRACKIO_STAND_IN``, as a JSON line.

Only what `transformers.integrations` calls. With ``TRACKIO_FAILS_AT=N`` the N-th logged row raises, and
with 0 the start does, as an unreachable server would make it.
"""

import contextvars
import json
import os
from types import SimpleNamespace

__version__ = "0"
_no_run = contextvars.ContextVar("run", default=None)
context_vars = SimpleNamespace(current_run=_no_run, current_space_id=_no_run)
_fails_at = int(os.environ.get("TRACKIO_FAILS_AT", "-1"))
_rows = 0


class _Config(dict):
    def update(self, values, allow_val_change=False):
        super().update(values)


config = _Config()


def _record(call, **values):
    with open(os.environ["TRACKIO_STAND_IN"], "a") as stream:
        stream.write(json.dumps({"call": call, **values}) + "\n")


def init(project, name, resume, **_):
    if _fails_at == 0:
        raise ConnectionError("the server cannot be reached\nsecond line")
    _record("init", project=project, name=name, resume=resume)


def log(values):
    global _rows
    _rows += 1
    if _rows == _fails_at:
        raise ConnectionError("the server has gone")
    _record("log", **values)


def finish():
    _record("finish")
