"""One run of a stage, as its task hands it to a machine or to a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.run.fork_server import ForkServer
from pipeline.run.worker import StageJob


@dataclass(frozen=True)
class Resources:
    """The needs of a stage over all its machines: GPUs, and one CPU thread for each process."""

    gpus: int = 0
    threads: int = 1


@dataclass(frozen=True)
class StageRun:
    """One run of a stage.

    ``label`` is the stage's name in messages, ``environment`` the variables that the stage's
    process gets besides the variables of this process, ``machines`` the number of machines that
    train together, and ``memory_hint`` a way to take less memory. ``started`` is called with the
    log when the stage has its lock, and ``noted`` with notes of a cluster. ``server`` is the fork
    server for its process.
    """

    job: StageJob
    label: str
    environment: Mapping[str, str]
    needs: Resources
    machines: int
    memory_hint: str
    started: Callable[[Path], None]
    noted: Callable[[str], None]
    server: ForkServer | None = None
