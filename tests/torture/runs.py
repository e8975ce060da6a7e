"""A small run of the whole method in a folder of its own, and the comparison of two such runs."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core import shipped
from tests.waiting import becomes

_FOLDER = Path(__file__).parent
SMALL = (_FOLDER / "small.yaml").read_text(encoding="utf-8")
PROGRAPH = (_FOLDER / "small_prograph.yaml").read_text(encoding="utf-8")
EMBEDDED = "base: {configs}/embedded.yaml\nname: small\n"  # the shipped configuration as it is
# Files whose content is time or memory, and keys of JSON files that hold seconds.
TIMED_FILES = frozenset({"manifest.json", "timing.json", "report.html"})
_TIMED_KEYS = re.compile(r"second|runtime|per_second|timing")
_STARTED = re.compile(r"^\S+\s+(\S+)\s+runs \(log: ")


def environment() -> dict[str, str]:
    """The environment in which ``steep`` of this checkout runs from any folder."""
    here = {"PYTHONPATH": str(shipped.ROOT), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **here}


@dataclass(frozen=True)
class RunFolder:
    """A working directory with a configuration; its data, runs and caches stay inside.

    ``overrides`` are settings as ``--set`` takes them. ``configuration`` is the text of the file, in which
    {configs} stands for the folder of the shipped ones.
    """

    root: Path
    overrides: tuple[str, ...] = ()
    configuration: str = SMALL

    @property
    def store(self) -> Path:
        return self.root / "runs" / "small" / "store"

    def prepare(self) -> RunFolder:
        """Create the folder and its configuration."""
        self.root.mkdir(parents=True, exist_ok=True)
        text = self.configuration.replace("{configs}", shipped.CONFIGURATIONS.as_posix())
        (self.root / "small.yaml").write_text(text, encoding="utf-8")
        return self

    def start(
        self, *arguments: str, before: Callable[[], None] | None = None
    ) -> subprocess.Popen[str]:
        """Start ``steep`` in a process group of its own, with its messages in ``stdout``.

        ``before`` is called in the new process, for example to limit its resources.
        """
        options = ["--config", "small.yaml"]
        for override in self.overrides:
            options += ["--set", override]
        return subprocess.Popen(
            [sys.executable, "-m", "pipeline.cli", *arguments, *options],
            cwd=self.root,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=before,
        )

    def finish(self, *, before: Callable[[], None] | None = None) -> tuple[int, str]:
        """Run ``steep run`` to its end; returns the exit status and everything that it printed."""
        process = self.start("run", before=before)
        output, _ = process.communicate()
        return process.returncode, output

    def stages(self) -> list[dict[str, Any]]:
        """The rows of ``steep status --json``, in running order."""
        process = self.start("status", "--json")
        output, _ = process.communicate()
        rows: list[dict[str, Any]] = json.loads(output)
        return rows

    def done(self) -> set[str]:
        """Labels of the stages whose output is complete."""
        return {row["label"] for row in self.stages() if row["state"] == "done"}

    def finished(self) -> list[dict[str, Any]]:
        """Run to the end, unless that was done; returns the rows of ``steep status --json`` of complete stages.

        They are in the order in which the stages ended. An early stage can be missing when those that use it
        are complete. Raises RuntimeError with the output of a run that fails.
        """
        status, output = self.prepare().finish()
        if status != 0:
            raise RuntimeError(f"the uninterrupted run failed:\n{output}")
        complete = (row for row in self.stages() if self._manifest(row).is_file())
        return sorted(complete, key=lambda row: self._manifest(row).stat().st_mtime)

    def _manifest(self, row: dict[str, Any]) -> Path:
        return self.root / row["directory"] / "manifest.json"

    def orphans(self) -> list[int]:
        """Ids of living processes that were started for this folder."""
        return [pid for pid, _ in _processes() if _works_in(pid, self.root)]


@dataclass(frozen=True)
class Killed:
    """One kill: the stage that was running, how long it had run, and what was left behind."""

    stage: str
    seconds: float
    orphans: int


def kill_during(run: RunFolder, stage: str, delay: float) -> Killed | None:
    """Run until ``stage`` starts, wait ``delay`` seconds and kill the group with SIGKILL.

    Returns None when the run ended first. The stage in the result is the one that was running then.
    """
    running, due = "", None
    with run.start("run") as process:
        messages = process.stdout
        assert messages is not None
        os.set_blocking(messages.fileno(), False)
        while process.poll() is None:
            for line in iter(messages.readline, ""):
                started = stage_started(line)
                if started is not None:
                    running = started
                    if running == stage and due is None:
                        due = time.monotonic() + delay
            if due is not None and time.monotonic() >= due:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                becomes(lambda: not run.orphans())
                return Killed(running, delay, len(run.orphans()))
            time.sleep(0.02)
    return None


def stage_started(line: str) -> str | None:
    """The label of the stage that a line of ``steep run`` says to run, or None."""
    match = _STARTED.match(line)
    return match[1] if match else None


def differing_files(one: RunFolder, other: RunFolder) -> list[str]:
    """Files below the stores, by relative name, that are missing in one or differ in content.

    Seconds are left out: files of `TIMED_FILES`, and keys of JSON files that name seconds.
    """
    ours, theirs = dict(_contents(one.store)), dict(_contents(other.store))
    return sorted(
        name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)
    )


def _contents(store: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(store.rglob("*")):
        name = path.relative_to(store).as_posix()
        stage_directory = len(path.relative_to(store).parts) > 2
        if not path.is_file() or not stage_directory or ".partial/" in name:
            continue
        if path.name == "manifest.json":
            counts = json.loads(path.read_text())["counts"]
            counts.pop("bytes", None)  # of the report, which shows seconds
            yield name, json.dumps(counts, sort_keys=True)
        elif path.name in TIMED_FILES:
            yield name, "present"
        elif path.suffix == ".json":
            value = _without_seconds(json.loads(path.read_text()))
            yield name, json.dumps(value, sort_keys=True)
        else:
            yield name, hashlib.sha256(path.read_bytes()).hexdigest()


def _without_seconds(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_seconds(item)
            for key, item in value.items()
            if not _TIMED_KEYS.search(key)
        }
    if isinstance(value, list):
        return [_without_seconds(item) for item in value]
    return value


def _processes() -> Iterator[tuple[int, str]]:
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            yield int(path.name), path.name


def _works_in(pid: int, folder: Path) -> bool:
    try:
        directory = Path(f"/proc/{pid}/cwd").readlink()
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # the process has ended
        return False
    return state != "Z" and directory.is_relative_to(folder.resolve())
