"""Stages as tasks of a Ray cluster. Ray stands above the engines and is never an executor of vLLM."""

from __future__ import annotations

import hashlib
import json
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
from tasks.executors.base import ClusterExecutor, StageRun, Threads

ADDRESS = "RAY_ADDRESS"
_SLOTS = "STEEP_SLOTS"  # the namespace of the run's slots, for the processes that Luigi forks
_MODE, _TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"
_HEAD = "pipeline.run.cluster.ray_head"
_CONNECT_SECONDS = 10.0


class RayExecutor(ClusterExecutor):
    """Runs each stage as a task of a Ray cluster, whose nodes share the run's directory."""

    driver = "pipeline.run.cluster.ray_driver"
    word = "ray task"

    def __init__(self, settings: Ray, threads: Threads) -> None:
        self._settings = settings
        self.threads = threads

    def settings(self, stage: StageRun) -> dict[str, Any]:
        settings = self._settings
        address = settings.address or os.environ.get(ADDRESS)
        warm = settings.warm_engines and stage.needs.policy
        return {
            "address": address,
            "retries": settings.retries,
            "slots": os.environ.get(_SLOTS),
            "serves": _served(stage) if warm else None,
        }


def _served(stage: StageRun) -> str:
    """A text for the model that a stage will open, which is the same for stages that can share an engine."""
    config = stage.job.config
    policy = None if config["engine"]["adapters"] == "loaded" else stage.job.inputs.get("policy")
    text = json.dumps([config["engine"], config["model"], stage.job.seed, policy])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextmanager
def cluster(settings: Ray) -> Iterator[None]:
    """Check that the cluster answers, or start one on this machine, and keep its slots for the time of the block.

    Raises DependencyError when the cluster cannot be reached or started.
    """
    address = settings.address or os.environ.get(ADDRESS)
    own = {}
    if address is not None:
        _check_address(address)
    elif _MODE not in os.environ:
        # A token of this run alone keeps other users of this machine from the cluster. Without one Ray would
        # write a token into the home directory.
        own = {_MODE: "token", _TOKEN: secrets.token_hex(32)}
    os.environ.update(own)
    head = subprocess.Popen(
        [sys.executable, "-m", process.MODULE, _HEAD, address or "local"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **process.child_environment()},
        text=True,
    )
    before = os.environ.get(ADDRESS)
    with head:
        assert head.stdin is not None
        assert head.stdout is not None
        try:
            answer = head.stdout.readline()
            if not answer:
                raise DependencyError(_no_cluster(address))
            found = json.loads(answer)
            os.environ |= {ADDRESS: found["address"], _SLOTS: found["namespace"]}
            yield
        finally:
            for name in (ADDRESS, _SLOTS, *own):
                os.environ.pop(name, None)
            if before is not None:
                os.environ[ADDRESS] = before
            head.stdin.close()  # the head ends


def _no_cluster(address: str | None) -> str:
    if address is None:
        return (
            "Ray could not be started on this machine (its output is above); or set execution.ray.address to a "
            "cluster that runs"
        )
    return (
        f"the Ray cluster at {address} cannot be used (its output is above); nodes and this machine need the same "
        "versions of Python and Ray"
    )


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
