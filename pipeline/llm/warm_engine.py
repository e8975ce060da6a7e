"""A generation engine in a process of its own, which several stages use one after the other.

``python -m pipeline.llm.warm_engine SOCKET`` serves one engine at a socket of this machine. A process with
the socket's path in the environment variable ``STEEP_ENGINE`` uses it in place of an engine of its own
(`warm_engine`). The server opens an engine for its first user and keeps it for the next ones, as long as they
ask for the same model. With ``adapters: loaded`` all policies of one base model share it. Users take their
turns, so that each one has the steps and the batches that it would have with an engine of its own; between two
the prefix cache is emptied.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from pipeline.config.base import EngineConfig
from pipeline.core.errors import EngineError, SteepError
from pipeline.grammars.tokenizer import model_tokenizer
from pipeline.llm.engine import Engine, GenerationRequest, GenerationResult, open_engine

SOCKET = "STEEP_ENGINE"  # environment variable with the path of a server's socket
_OPENED, _FAILED = "opened", "failed"


@dataclass(frozen=True)
class Asked:
    """What a user asks for: the arguments of `open_engine`."""

    config: EngineConfig
    model: Path | str
    adapter: Path | None
    seed: int
    workspace: Path | None


class WarmEngine(Engine):
    """The engine of another process, for its one user at a time; `close` leaves it open for the next.

    Raises what `open_engine` raises, and EngineError when the other process has ended.
    """

    def __init__(self, socket: str, asked: Asked) -> None:
        try:
            self._connection: Any = Client(socket, family="AF_UNIX")
        except OSError as error:
            raise EngineError(_ended(socket)) from error
        self._socket = socket
        try:
            self.max_model_len, model = self._call(_OPENED, asked)
        except BaseException:
            self.close()
            raise
        self.tokenizer = model_tokenizer(model)

    def add(self, request: GenerationRequest) -> None:
        self._call("add", request)

    def unfinished(self) -> int:
        count: int = self._call("unfinished")
        return count

    def close(self) -> None:
        self._connection.close()

    def _advance(self) -> list[GenerationResult]:
        results: list[GenerationResult] = self._call("step")
        return results

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            self._connection.send((name, *arguments))
            outcome, value = self._connection.recv()
        except (EOFError, OSError) as error:
            raise EngineError(_ended(self._socket)) from error
        if outcome == _FAILED:
            raise value
        return value


def warm_engine(
    config: EngineConfig, model: Path | str, *, adapter: Path | None, seed: int, workspace: Path
) -> WarmEngine:
    """The engine at the socket that ``STEEP_ENGINE`` names, with the arguments of `open_engine`."""
    asked = Asked(config, model, adapter, seed, workspace)
    return WarmEngine(os.environ[SOCKET], asked)


def _ended(socket: str) -> str:
    return (
        f"the engine at {socket} has ended (its messages are in the file engine-*.log beside the stage's log); "
        "run again, or set execution.ray.warm_engines to false"
    )


class _Server:
    """The engine that is open, and what it was opened for."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._asked: Asked | None = None

    def serve(self, connection: Connection) -> None:
        """Answer one user until it closes its connection. Raises the error with which generating failed."""
        try:
            while True:
                name, *arguments = connection.recv()
                failure: Exception | None = None
                try:
                    answer = name, self._call(name, *arguments)
                except SteepError as error:
                    failure, answer = error, (_FAILED, error)
                except Exception as error:  # noqa: BLE001 - the user tells it, the log holds the traceback
                    traceback.print_exc()
                    failure, answer = (
                        error,
                        (_FAILED, EngineError(f"{type(error).__name__}: {error}")),
                    )
                connection.send(answer)
                if failure is not None and name == "step":  # the engine is unusable from here on
                    raise failure
        except (EOFError, OSError):  # the user has closed the engine, or was killed
            if self._engine is not None and self._engine.unfinished():
                self._close()

    def _call(self, name: str, *arguments: Any) -> Any:
        if name == _OPENED:
            return self._open(*arguments)
        assert self._engine is not None
        calls: dict[str, Callable[..., Any]] = {
            "add": self._engine.add,
            "unfinished": self._engine.unfinished,
            "step": self._engine.step,
        }
        return calls[name](*arguments)

    def _open(self, asked: Asked) -> tuple[int, str]:
        """Open the engine, or reuse the open one; returns its longest context and its tokenizer's directory."""
        if self._engine is not None and self._reused(asked):
            print(f"reused for {asked.adapter or asked.model}", flush=True)
        else:
            self._close()
            print(f"opens {asked.adapter or asked.model}", flush=True)
            self._engine = open_engine(
                asked.config,
                asked.model,
                adapter=asked.adapter,
                seed=asked.seed,
                workspace=asked.workspace,
            )
        self._asked = asked
        assert self._engine is not None
        return self._engine.max_model_len, self._engine.tokenizer.name_or_path

    def _reused(self, asked: Asked) -> bool:
        from pipeline.llm.vllm_engine import VllmEngine

        if self._asked is None or not isinstance(self._engine, VllmEngine):
            return False
        if replace(asked, adapter=None) != replace(self._asked, adapter=None):
            return False
        return self._engine.reset(asked.adapter)

    def _close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._engine = self._asked = None


def main() -> int:
    """Serve an engine at the socket that the argument names, until SIGTERM; then remove the socket's folder."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    server = _Server()
    try:
        with Listener(sys.argv[1], family="AF_UNIX") as listener:
            while True:
                with listener.accept() as connection:
                    server.serve(connection)
    finally:
        shutil.rmtree(Path(sys.argv[1]).parent, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
