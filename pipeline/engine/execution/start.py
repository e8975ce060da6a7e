"""Checks before a run: whether stages can be started as the setting ``execution`` says."""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Iterator

from pipeline.config import Config
from pipeline.core.errors import missing

_PACKAGES = {"ray": "ray", "slurm": "submitit"}  # by extra
_CONNECT_SECONDS = 10.0


def execution_faults(settings: Config) -> Iterator[str]:
    """A sentence for a missing package, and for a cluster that does not answer."""
    kind = settings.execution.kind
    if (module := _PACKAGES.get(kind)) and importlib.util.find_spec(module) is None:
        yield str(missing(f"execution.kind is {kind}, which needs {module}", kind))
    address = os.environ.get("RAY_ADDRESS", "")
    if kind != "ray" or address in ("", "auto"):  # a cluster of this machine
        return
    host, _, port = address.rpartition(":")
    try:  # Ray itself tries for minutes
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        yield (
            f"no Ray cluster answers at {address} ({error}); start one (ray start --head), or "
            "correct RAY_ADDRESS, which is host:port of the head node"
        )
