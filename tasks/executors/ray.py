"""Stages as tasks of a Ray cluster. Ray stands above the engines and is never an executor of vLLM."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pipeline.config import Ray
from pipeline.core.errors import DependencyError
from pipeline.run import process
from tasks.executors.base import ClusterExecutor

ADDRESS = "RAY_ADDRESS"
_MODE, _TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"
_HEAD = "pipeline.run.cluster.ray_head"
_CONNECT_SECONDS = 10.0


class RayExecutor(ClusterExecutor):
    """Runs each stage as a task of a Ray cluster, whose nodes share the run's directory."""

    driver = "pipeline.run.cluster.ray_driver"
    word = "ray task"

    def __init__(self, settings: Ray) -> None:
        self._settings = settings

    def settings(self) -> dict[str, Any]:
        address = self._settings.address or os.environ.get(ADDRESS)
        return {"address": address, "retries": self._settings.retries}


@contextmanager
def cluster(settings: Ray) -> Iterator[None]:
    """Check that the cluster answers, or start one on this machine for the time of the block.

    Raises DependencyError when the cluster cannot be reached or started.
    """
    address = settings.address or os.environ.get(ADDRESS)
    if address is not None:
        _check_address(address)
        yield
        return
    # A token of this run alone keeps other users of this machine from the cluster. Without one Ray would
    # write a token into the home directory.
    own = {} if _MODE in os.environ else {_MODE: "token", _TOKEN: secrets.token_hex(32)}
    os.environ.update(own)
    head = subprocess.Popen(
        [sys.executable, "-m", process.MODULE, _HEAD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **process.child_environment()},
        text=True,
    )
    with head:
        assert head.stdin is not None
        assert head.stdout is not None
        try:
            address = head.stdout.readline().strip()
            if not address:
                raise DependencyError(
                    "Ray could not be started on this machine (its output is above); or set "
                    "execution.ray.address to a cluster that runs"
                )
            os.environ[ADDRESS] = address
            yield
        finally:
            for name in (ADDRESS, *own):
                os.environ.pop(name, None)
            head.stdin.close()  # the head ends


def _check_address(address: str) -> None:
    """Raise DependencyError when nothing listens at ``address``; Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if not host:  # auto
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except OSError as error:
        raise DependencyError(
            f"no Ray cluster answers at {address} ({error.strerror or error}); start one (ray start --head), or "
            "correct execution.ray.address (RAY_ADDRESS)"
        ) from None
