"""Slots of a Ray cluster: actors that run one stage at a time beside an engine that stays open.

A slot holds the GPUs and CPU threads of a stage that samples from a policy. It runs such stages one after the other,
each in a process of its own as everywhere, and next to them the process of a warm engine
(`pipeline.llm.warm_engine`), which stays open from one stage to the next: from sampling to judging, to the
continuations of scoring, and to evaluation.

`Slots`, an actor as well, hands slots to the drivers of stages. Ray ends both with the process that owns them, which
ends with the run (`pipeline.run.cluster.ray_head`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.llm.warm_engine import SOCKET
from pipeline.run import process
from pipeline.run.remote import RemoteStage, run_remote

NAME = "slots"  # of the actor `Slots` in the namespace of the run
_WAITING_SECONDS = 10.0  # after which a driver that does not ask again is not waiting
_START_SECONDS = 15.0  # that a new slot may take before unused ones make room for it
_LOOK_SECONDS = 5.0  # for an answer of a slot


class Slot:
    """Runs stages beside the process of an engine."""

    def __init__(self) -> None:
        self._engine: subprocess.Popen[bytes] | None = None
        self._path = Path()

    def ready(self) -> None:
        """Return when the slot has its resources and runs no stage."""

    def run(self, stage: dict[str, Any], environment: dict[str, str], attempt: str) -> Any:
        """The outcome of a stage (`run_remote`)."""
        import ray

        os.environ.update(environment)
        asked = RemoteStage(**stage)
        with_engine = {**asked.environment, SOCKET: self._socket(asked)}
        context = ray.get_runtime_context()
        return run_remote(
            replace(asked, environment=with_engine),
            context.get_task_id()[:16],
            0,
            attempt,
            ray.util.get_node_ip_address(),
        )

    def close(self) -> None:
        """End the engine's process and wait for it, so that it removes its folder."""
        if self._engine is not None:
            self._engine.terminate()
            self._engine.wait()

    def _socket(self, stage: RemoteStage) -> str:
        """The socket of the engine's process, which is started for the first stage or when it has ended."""
        if self._engine is not None and self._engine.poll() is None:
            return str(self._path)
        # A folder for this user alone, which the process removes when it ends. Paths of sockets must be short.
        self._path = socket = Path(tempfile.mkdtemp(prefix="steep-engine-", dir="/tmp")) / "socket"
        name = f"engine-{os.uname().nodename}-{os.getpid()}.log"
        log = Path(stage.directory) / Path(stage.job["log"]).parent / name
        with log.open("ab") as stream:
            self._engine = subprocess.Popen(
                [sys.executable, "-m", process.MODULE, "pipeline.llm.warm_engine", str(socket)],
                cwd=stage.directory,
                env={**os.environ, **stage.environment, **process.child_environment()},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
        while not socket.exists() and self._engine.poll() is None:
            time.sleep(0.05)
        return str(socket)


@dataclass
class _Held:
    """A slot, the resources that it holds, and what it served last; ``driver`` uses it, if any."""

    actor: Any
    size: tuple[int, int]
    first_answer: Any
    started: float
    ready: bool = False
    driver: str | None = None
    served: str = ""


class Slots:
    """Hands slots to drivers: one that served the same policy, another one, or a new one."""

    def __init__(self) -> None:
        self._slots: dict[str, _Held] = {}
        self._waiting: dict[str, tuple[tuple[int, int], float]] = {}
        self._count = 0

    def acquire(self, driver: str, gpus: int, threads: int, serves: str) -> str | None:
        """The name of a slot for ``driver``; None when none is free, and then it asks again.

        ``serves`` is a text for the model that the stage will open.
        """
        size, now = (gpus, threads), time.monotonic()
        self._waiting[driver] = size, now
        self._waiting = {
            name: (asked, at)
            for name, (asked, at) in self._waiting.items()
            if now - at < _WAITING_SECONDS
        }
        self._look()
        idle = {name: slot for name, slot in self._idle().items() if slot.size == size}
        for name in sorted(idle, key=lambda name: idle[name].served != serves):
            if self._alive(name):
                idle[name].driver, idle[name].served = driver, serves
                del self._waiting[driver]
                return name
        starting = [slot for slot in self._slots.values() if slot.size == size and not slot.ready]
        if len(starting) < sum(asked == size for asked, _ in self._waiting.values()):
            self._start(size)
        elif now - min(slot.started for slot in starting) > _START_SECONDS:
            self.make_room()
        return None

    def release(self, name: str, kept: bool) -> None:
        """Take a slot back; not ``kept`` is one that was lost or ended."""
        if name in self._slots:
            self._slots[name].driver = None
            if not kept:
                self._end(name)

    def make_room(self) -> None:
        """End the slots that no stage uses, because another stage waits for their resources."""
        self._look()
        for name in self._idle():
            self._end(name)

    def _idle(self) -> Mapping[str, _Held]:
        return {
            name: slot for name, slot in self._slots.items() if slot.ready and slot.driver is None
        }

    def _start(self, size: tuple[int, int]) -> None:
        import ray

        self._count += 1
        name = f"slot-{self._count}"
        actor = (
            ray.remote(Slot)
            .options(num_gpus=size[0], num_cpus=size[1], name=name, max_restarts=0)
            .remote()
        )
        self._slots[name] = _Held(actor, size, actor.ready.remote(), time.monotonic())

    def _look(self) -> None:
        """Find out which of the new slots have their resources."""
        import ray

        for slot in self._slots.values():
            if not slot.ready:
                slot.ready = bool(ray.wait([slot.first_answer], timeout=0)[0])

    def _alive(self, name: str) -> bool:
        import ray

        try:
            ray.get(self._slots[name].actor.ready.remote(), timeout=_LOOK_SECONDS)
        except ray.exceptions.GetTimeoutError:  # busy, or its node does not answer
            return False
        except ray.exceptions.RayError:
            self._end(name)
            return False
        return True

    def _end(self, name: str) -> None:
        import ray

        actor = self._slots.pop(name).actor
        with suppress(ray.exceptions.RayError):  # it is lost, or has a stage that must end
            ray.get(actor.close.remote(), timeout=_LOOK_SECONDS)
        ray.kill(actor)
