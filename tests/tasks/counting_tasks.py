"""Tasks of the stage functions in `counting_stages`, and helpers of the tests that run them."""

import importlib
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from pipeline.cli import app
from pipeline.engine.opened import training
from pipeline.engine.process.fork_server import ForkServer
from pipeline.engine.run import run
from pipeline.engine.shards import DivisibleTask
from pipeline.engine.stage import LightTask, StageTask
from tests.forked_stages import server
from tests.waiting import ending

ROOT = Path(__file__).resolve().parents[2]


class Counting(LightTask):
    """A stage that opens nothing and that no command names."""

    help = "files for a test"
    named = False
    reads: ClassVar[tuple[str, ...]] = ("seed",)
    # Many stages of tests are in one module, so each names its function if it has another name.
    entry: ClassVar[str] = ""
    follows: ClassVar[dict[str, type[StageTask]]] = {}

    @classmethod
    def function(cls, part: str) -> str:
        own = cls.entry or f"counting_stages:{cls.stage.replace('-', '_')}"
        return cls.merge_entry if part == "merge" else own

    @cached_property
    def inputs(self):
        return {name: self.clone(kind) for name, kind in self.follows.items()}


class First(Counting):
    stage = "first"
    reads = ("retrieval.top_k",)


class Second(Counting):
    stage = "second"
    reads = ("retrieval.tau",)
    follows: ClassVar = {"first": First}


class Warns(Counting):
    stage = "warns"
    reads = ("retrieval.top_k",)


class Rounded(Counting):
    """Its output often stays the same when its setting changes."""

    stage = "rounded"
    reads = ("retrieval.top_k",)


class FollowsAll(Counting):
    """Declares no files of its input, so that all of them count."""

    stage = "follows-all"
    entry = "counting_stages:follows"
    reads = ("name", "retrieval.tau")
    follows: ClassVar = {"rounded": Rounded}


class FollowsTens(FollowsAll):
    """Reads ``tens.txt`` of `Rounded`, and declares that."""

    stage = "follows-tens"

    @property
    def input_files(self):
        return {"rounded": ("tens.txt",)}


class FollowsTwice(Counting):
    """Reads the output of `FollowsTens`."""

    stage = "follows-twice"
    entry = "counting_stages:first"
    follows: ClassVar = {"follows": FollowsTens}


class Trains(Second):
    """Reads its input as a training stage does."""

    stage = "trains"
    entry = "counting_stages:second"

    def opens(self):
        yield training(self.settings, "sft", self.settings.sft)


class Copies(Counting):
    """Reads a raw file."""

    stage = "copies"

    def files(self):
        return {"numbers.txt": Path(self.settings.data.root) / "numbers.txt"}


class CopiesModel(Copies):
    """Reads a file of a model's directory."""

    stage = "copies-model"
    entry = "counting_stages:copies"

    def files(self):
        return {"base model": Path(self.settings.data.root)}


class Complains(Counting):
    stage = "complains"


class ComplainsToo(Counting):
    stage = "complains-too"
    entry = "counting_stages:complains"


class FollowsBothComplaints(Counting):
    stage = "follows-both"
    entry = "counting_stages:first"
    follows: ClassVar = {"one": Complains, "other": ComplainsToo}


class Waits(Counting):
    """Counts 4 of 10 items and writes a checkpoint, then waits for the file RELEASE."""

    stage = "waits"


class Ends(Counting):
    """Ends in the way that ``name`` says (`counting_stages.ends`)."""

    stage = "ends"
    reads = ("sampling", "name")


class WritesNothing(Counting):
    stage = "writes-nothing"


class Numbers(Counting, DivisibleTask):
    """Twelve numbers, whole or in shards."""

    stage = "numbers"
    entry = "counting_stages:part"
    merge_entry = "counting_stages:joins"
    shards_block = "sampling"
    reads = ("retrieval.top_k",)
    follows: ClassVar = {"first": First}


def task(kind, workspace, *overrides):
    runs = f"runs_dir={workspace / 'runs'}"
    return kind(
        config=str(ROOT / "configs/embedded.yaml"), overrides=(runs, "shards=1", *overrides)
    )


def executions(workspace) -> list[str]:
    path = workspace / "executions.txt"
    return path.read_text().split("\n")[:-1] if path.exists() else []


def main() -> int:
    """Entry point of another process that runs a stage; returns the exit status of the command."""
    module, kind, options, workspace, *overrides = sys.argv[1:]
    del sys.argv[1:]
    os.chdir(ROOT)
    stage = task(getattr(importlib.import_module(module), kind), Path(workspace), *overrides)
    try:
        return app.main(lambda: run(stage, **json.loads(options)))
    except SystemExit as end:
        return int(end.code or 0)


def _chosen(kind, workspace, overrides, options) -> list[str]:
    return [kind.__module__, kind.__name__, json.dumps(options), str(workspace), *overrides]


@contextmanager
def background(kind, workspace, *overrides, **options):
    """A process, forked from the server of the tests, that runs a stage with ``options`` of `run`.

    It is killed at the end of the block.
    """
    with ForkServer(server().control).start(
        f"{__name__}:main", _chosen(kind, workspace, overrides, options),
        environment=os.environ, output=sys.__stdout__.fileno(),
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def new_process(kind, workspace, *overrides, popen, **options):
    """A new process that does the same, with the options ``popen`` of `Popen`."""
    chosen = _chosen(kind, workspace, overrides, options)
    command = [sys.executable, "-c", f"import sys; from {__name__} import main; sys.exit(main())"]
    return ending(subprocess.Popen([*command, *chosen], cwd=ROOT, **popen))
