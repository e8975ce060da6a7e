"""Parts about processes on one GPU: refuse a second engine, and leave nothing after a kill."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.figures import Figures, Place
from benchmarks.gpu_check.models import language_model_directory
from pipeline.config import EngineConfig
from pipeline.core.errors import SteepError
from pipeline.core.gpus import GIB
from pipeline.llm.engine import Engine, GenerationRequest
from pipeline.llm.open_engine import open_engine

_LAYERS = 4
_READY = "ready"
_PATIENCE = 60.0  # seconds for the driver to free the memory of a killed process
_LEFT = 64 * 2**20  # bytes that may differ: other processes of the GPU
_SHARE = 0.6  # of the GPU's memory, so that two engines cannot fit


def two_engines(place: Place, figures: Figures) -> None:
    """One engine holds 60 % of the memory; a second one must be refused with a clear message."""
    directory, problem = language_model_directory(place, _LAYERS), ""
    with _holder("vllm", directory):
        try:
            _open("vllm", directory).close()
        except SteepError as error:
            problem = str(error)
    refused = bool(problem) and "\n" not in problem
    figures.add(
        "second engine", problem or "it started", expected="refused in one sentence", holds=refused
    )


def kill(place: Place, figures: Figures) -> None:
    """Memory and processes left after an engine's process was killed while it generated."""
    import psutil

    directory = language_model_directory(place, _LAYERS)
    for kind in ("transformers", "vllm"):
        if find_spec(kind) is None:
            figures.add(kind, "skipped, missing")
            continue
        before = _used()
        with _holder(kind, directory) as family:
            held = _used() - before
            family[0].kill()
            start = time.monotonic()
            _, alive = psutil.wait_procs(family, timeout=_PATIENCE)
            while _used() - before > _LEFT and time.monotonic() - start < _PATIENCE:
                time.sleep(0.2)
            seconds, left = time.monotonic() - start, _used() - before
            names = ", ".join(process.name() for process in alive)
        figures.add(f"{kind}: held", held / GIB, "GiB")
        figures.add(f"{kind}: freed after", seconds, "s")
        figures.add(
            f"{kind}: memory left", max(0, left) / GIB, "GiB", expected="0", holds=left <= _LEFT
        )
        figures.add(f"{kind}: processes left", names or "none", expected="none", holds=not names)


@contextmanager
def _holder(kind: str, directory: Path) -> Iterator[list[Any]]:
    """A process whose engine generates without end, and then its descendants; all are ended."""
    import psutil

    command = [sys.executable, "-m", "benchmarks.gpu_check.processes", kind, str(directory)]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    family = [psutil.Process(holder.pid)]
    try:
        if not any(line.strip() == _READY for line in holder.stdout):
            raise RuntimeError(f"the process with a {kind} engine ended")
        family += family[0].children(recursive=True)
        yield family
    finally:
        for process in family:
            if process.is_running():
                process.kill()
        holder.wait()


def _open(kind: Any, directory: Path) -> Engine:
    config = EngineConfig(
        kind=kind, max_model_len=1024, gpu_memory_utilization=_SHARE, enforce_eager=True
    )
    return open_engine(config, directory, adapter=None, seed=0)


def _hold(kind: str, directory: Path) -> None:
    engine = _open(kind, directory)
    requests = [
        GenerationRequest(f"r{at}", [5] * 32, 64, (), temperature=1.0, top_p=1.0, seed=at)
        for at in range(8)
    ]
    engine.generate(requests)
    print(_READY, flush=True)
    while True:
        engine.generate(requests)


def _used() -> int:
    """Bytes of the GPU's memory that are in use, by any process."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return int(total - free)


if __name__ == "__main__":
    _hold(sys.argv[1], Path(sys.argv[2]))
