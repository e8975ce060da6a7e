"""A small run of the whole method in a folder of its own, and the comparison of two such runs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from pipeline.core import shipped
from pipeline.engine.progress import read_progress
from tests.cli.malformed_inputs import steep
from tests.waiting import becomes

_FOLDER = Path(__file__).parent
SMALL = (_FOLDER / "small.yaml").read_text(encoding="utf-8")
PROGRAPH = (_FOLDER / "small_prograph.yaml").read_text(encoding="utf-8")
# Files whose content is time or memory, and keys of JSON files that hold seconds.
TIMED_FILES = frozenset({"timing.json", "report.html"})
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
    {configs} stands for the folder of the shipped ones. ``goal`` is the stage to run.
    """

    root: Path
    overrides: tuple[str, ...] = ()
    configuration: str = SMALL
    goal: tuple[str, ...] = ("report",)

    @property
    def store(self) -> Path:
        return self.root / "runs" / "small" / "store"

    @property
    def options(self) -> list[str]:
        return ["--config", "small.yaml", *(f"--set={setting}" for setting in self.overrides)]

    def prepare(self) -> RunFolder:
        """Create the folder and its configuration."""
        self.root.mkdir(parents=True, exist_ok=True)
        text = self.configuration.replace("{configs}", shipped.CONFIGURATIONS.as_posix())
        (self.root / "small.yaml").write_text(text, encoding="utf-8")
        return self

    def without(self, stages: Collection[str], root: Path) -> RunFolder:
        """A copy of the run in ``root`` without the outputs of these stages."""
        shutil.copytree(self.root, root)
        copy = replace(self, root=root)
        for stage in stages:
            shutil.rmtree(copy.store / stage, ignore_errors=True)
        return copy

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start ``steep`` in a process group of its own, with its messages in ``stdout``."""
        return subprocess.Popen(
            [sys.executable, "-m", "pipeline.cli", *arguments, *self.options],
            cwd=self.root, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def finish(self) -> str:
        """Run to the end; returns what was printed. Raises AssertionError with it if the run fails."""
        process = self.start("run", *self.goal)
        output, _ = process.communicate()
        assert process.returncode == 0, output
        return output

    def finish_here(self) -> None:
        """Run to the end in this process. Raises AssertionError with the complaint if the run fails."""
        with contextlib.chdir(self.root):
            status, _, complaint = steep(["run", *self.goal, *self.options])
        assert status == 0, complaint

    def seconds(self) -> dict[str, float]:
        """Seconds of the complete stages, in the order in which they ended."""
        paths = self.store.glob("*/*/manifest.json")
        manifests = [json.loads(path.read_text()) for path in sorted(paths, key=_written)]
        return {_label(manifest["key"]): manifest["wall_seconds"] for manifest in manifests}

    def orphans(self) -> list[int]:
        """Ids of living processes that were started for this folder."""
        return [
            process.pid
            for process in psutil.process_iter(["cwd"])  # None if it has ended
            if Path(process.info["cwd"] or "/").is_relative_to(self.root.resolve())
        ]


def load_outputs(store: Path) -> dict[str, dict[str, int]]:
    """Rows by table of every stage, as `datasets` loads them; the default table comes first."""
    from datasets import get_dataset_config_names, get_dataset_default_config_name, load_dataset

    loaded: dict[str, dict[str, int]] = {}
    for manifest in sorted(store.glob("*/*/manifest.json")):
        folder, tables = str(manifest.parent), {}
        default = get_dataset_default_config_name(folder)
        for name in sorted(get_dataset_config_names(folder), key=lambda name: name != default):
            splits = load_dataset(folder, name, cache_dir=str(store.parents[2] / "datasets"))
            tables[name] = sum(split.num_rows for split in splits.values())
        loaded[manifest.parents[1].name] = tables
    return loaded


def _written(path: Path) -> float:
    return path.stat().st_mtime


def _label(key: dict[str, Any]) -> str:
    return key["stage"] if key["round"] is None else f"{key['stage']}-{key['round']}"


def kill_during(run: RunFolder, stage: str, share: float) -> str | None:
    """Kill the group with SIGKILL when ``share`` of a stage is done, or when a later stage starts.

    A share below 0 kills it as soon as the stage starts. Returns the stage that was running then,
    or None when the run ended first. Raises AssertionError when a process outlives the kill.
    """
    running, reached = "", False
    with run.start("run", *run.goal) as process:
        for line in lines_of(process):
            running = stage_started(line) or running
            reached = reached or running == stage
            if reached and (running != stage or share_done(run, stage) >= share):
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                assert becomes(lambda: not run.orphans()), run.orphans()
                return running
    return None


def share_done(run: RunFolder, stage: str) -> float:
    """The share of a stage's work that its progress file reports, from 0 to 1."""
    folder = run.store / re.sub(r"-\d+$", "", stage)
    records = [read_progress(path) for path in folder.glob("[!.]*.progress.json")]
    return max((record.percent or 0 for record in records if record), default=0) / 100


def lines_of(process: subprocess.Popen[str]) -> Iterator[str]:
    """The lines that a process prints, and an empty one now and then, until it ends."""
    messages = process.stdout
    assert messages is not None
    os.set_blocking(messages.fileno(), False)
    while True:
        ended = process.poll() is not None
        yield from iter(messages.readline, "")
        if ended:
            return
        yield ""
        time.sleep(0.02)


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
        if not path.is_file() or name.count("/") < 2 or ".partial/" in name:
            continue
        if path.name == "manifest.json":
            counts = json.loads(path.read_text())["counts"]
            counts.pop("bytes", None)  # of the report, which shows seconds
            yield name, json.dumps(counts, sort_keys=True)
        elif path.name in TIMED_FILES:
            yield name, "present"
        elif path.suffix == ".json":
            yield name, json.dumps(_without_seconds(json.loads(path.read_text())), sort_keys=True)
        else:
            yield name, hashlib.sha256(path.read_bytes()).hexdigest()


def _without_seconds(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_seconds(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: _without_seconds(one) for key, one in value.items() if not _TIMED_KEYS.search(key)}
