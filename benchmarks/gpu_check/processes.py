"""Parts about processes on one GPU: refuse a second engine, and leave nothing after a kill."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, cast

from benchmarks.gpu_check.figures import GIB, Figures, Place
from benchmarks.gpu_check.models import language_model_directory
from pipeline.config import EngineConfig
from pipeline.core.errors import SteepError
from pipeline.llm.engine import Engine, GenerationRequest
from pipeline.llm.open_engine import open_engine

Kind = Literal["vllm", "transformers"]
MARK = "STEEP_GPU_CHECK"  # an environment variable that all processes of a holder inherit
_LAYERS = 4
_READY = "ready"
_PATIENCE = 60.0  # seconds for the driver to free the memory of a killed process
_LEFT = 64 * 2**20  # bytes that may differ: other processes of the GPU
_SHARE = 0.6  # of the GPU's memory, so that two engines cannot fit


def two_engines(place: Place, figures: Figures) -> None:
    """One engine holds 60 % of the memory; a second one must be refused with a clear message."""
    directory = language_model_directory(place, _LAYERS)
    with_mark, holder = _holder("vllm", directory)
    try:
        problem = ""
        try:
            _open("vllm", directory).close()
        except SteepError as error:
            problem = str(error)
        figures.verdict(
            "second engine", problem or "it started", bool(problem) and "\n" not in problem,
            expected="refused in one sentence",
        )  # fmt: skip
    finally:
        _kill(holder)
        _kill_marked(with_mark)


def kill(place: Place, figures: Figures) -> None:
    """Memory and processes left after an engine's process was killed while it generated."""
    directory = language_model_directory(place, _LAYERS)
    kinds: tuple[Kind, ...] = ("transformers", "vllm")
    for kind in kinds:
        if find_spec(kind) is None:
            figures.add(kind, "skipped, missing")
            continue
        before = _used()
        mark, holder = _holder(kind, directory)
        held = _used() - before
        _kill(holder)
        left, seconds = _settled(before, mark)
        figures.add(f"{kind}: held", held / GIB, "GiB")
        figures.add(f"{kind}: freed after", seconds, "s")
        figures.verdict(
            f"{kind}: memory left", max(0, left) / GIB, left <= _LEFT, expected="0", unit="GiB"
        )
        names = ", ".join(sorted(_marked(mark).values()))
        figures.verdict(f"{kind}: processes left", names or "none", not names, expected="none")
        _kill_marked(mark)


def _open(kind: Kind, directory: Path) -> Engine:
    config = EngineConfig(
        kind=kind, max_model_len=1024, gpu_memory_utilization=_SHARE, enforce_eager=True
    )
    return open_engine(config, directory, adapter=None, seed=0)


def _holder(kind: Kind, directory: Path) -> tuple[str, subprocess.Popen[str]]:
    """A process whose engine generates without end, and the mark of all its processes."""
    mark = secrets.token_hex(8)
    holder = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gpu_check.processes", kind, str(directory)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, MARK: mark},
    )
    assert holder.stdout is not None
    for line in holder.stdout:
        if line.strip() == _READY:
            return mark, holder
    _kill(holder)
    raise RuntimeError(f"the process with a {kind} engine ended with status {holder.returncode}")


def _hold(kind: Kind, directory: Path) -> None:
    engine = _open(kind, directory)
    number = 0
    while True:
        requests = [
            GenerationRequest(
                f"r{number}-{at}", [5] * 32, 64, (), temperature=1.0, top_p=1.0, seed=at
            )
            for at in range(8)
        ]
        engine.generate(requests)
        number += 1
        if number == 1:
            print(_READY, flush=True)


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def _settled(before: int, mark: str) -> tuple[int, float]:
    """Bytes above ``before`` when all is freed, or after `_PATIENCE`; and the seconds."""
    start = time.monotonic()
    while True:
        left, waited = _used() - before, time.monotonic() - start
        if (left <= _LEFT and not _marked(mark)) or waited > _PATIENCE:
            return left, waited
        time.sleep(0.2)


def _used() -> int:
    """Bytes of the GPU's memory that are in use, by any process."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def _marked(mark: str) -> dict[int, str]:
    """Number and name of the processes whose environment has the mark."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                    found[int(folder.name)] = (folder / "comm").read_text().strip()
    return found


def _kill_marked(mark: str) -> None:
    for number in _marked(mark):
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


if __name__ == "__main__":
    _hold(cast(Kind, sys.argv[1]), Path(sys.argv[2]))
