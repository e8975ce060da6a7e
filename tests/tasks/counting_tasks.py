"""Tasks of the stage functions in `counting_stages`, and helpers of the tests that run them."""

import json
import subprocess
import sys
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from pipeline.engine.opened import training
from pipeline.engine.shards import DivisibleTask
from pipeline.engine.stage import LightTask
from tests.waiting import ending

ROOT = Path(__file__).resolve().parents[2]


class Counting(LightTask):
    """A stage that opens nothing and that no command names."""

    help = "files for a test"
    named = False
    entry: ClassVar[str]  # many stages of tests are in one module, so each names its function

    @classmethod
    def function(cls, part: str) -> str:
        return cls.merge_entry if part == "merge" else cls.entry


class First(Counting):
    stage = "first"
    entry = "counting_stages:first"
    reads = ("retrieval.top_k",)


class Second(Counting):
    stage = "second"
    entry = "counting_stages:second"
    reads = ("retrieval.tau",)

    @cached_property
    def inputs(self):
        return {"first": self.clone(First)}


class Warns(Counting):
    stage = "warns"
    entry = "counting_stages:warns"
    reads = ()


class Rounded(Counting):
    """Its output often stays the same when its setting changes."""

    stage = "rounded"
    entry = "counting_stages:rounded"
    reads = ("retrieval.top_k",)


class FollowsTens(Counting):
    """Reads ``tens.txt`` of `Rounded`, and declares that."""

    stage = "follows-tens"
    entry = "counting_stages:follows"
    reads = ("name", "retrieval.tau")

    @property
    def input_files(self):
        return {"rounded": ("tens.txt",)}

    @cached_property
    def inputs(self):
        return {"rounded": self.clone(Rounded)}


class FollowsAll(FollowsTens):
    """Declares nothing, so that all files of its input count."""

    stage = "follows-all"

    @property
    def input_files(self):
        return {}


class FollowsTwice(Counting):
    """Reads the output of `FollowsTens`."""

    stage = "follows-twice"
    entry = "counting_stages:first"
    reads = ("seed",)

    @cached_property
    def inputs(self):
        return {"follows": self.clone(FollowsTens)}


class Trains(Second):
    """Reads its input as a training stage does."""

    stage = "trains"

    def opens(self):
        yield training(self.settings, "sft", self.settings.sft)


class Copies(Counting):
    """Reads a raw file."""

    stage = "copies"
    entry = "counting_stages:copies"
    reads = ("seed",)

    def files(self):
        return {"numbers.txt": Path(self.settings.data.root) / "numbers.txt"}


class CopiesModel(Copies):
    """Reads a file of a model's directory."""

    stage = "copies-model"

    def files(self):
        return {"base model": Path(self.settings.data.root)}


class Complains(Counting):
    stage = "complains"
    entry = "counting_stages:complains"
    reads = ("seed",)


class FollowsComplaint(Counting):
    stage = "follows"
    entry = "counting_stages:first"
    reads = ("seed",)

    @cached_property
    def inputs(self):
        return {"complains": self.clone(Complains)}


class Sleeps(Counting):
    stage = "sleeps"
    entry = "counting_stages:sleeps"
    reads = ("seed",)


class Waits(Counting):
    """Writes a checkpoint, then waits for the file RELEASE."""

    stage = "waits"
    entry = "counting_stages:waits"
    reads = ("seed",)


class Reports(Counting):
    """Counts 4 of 10 items, then waits for the file RELEASE."""

    stage = "reports"
    entry = "counting_stages:reports"
    reads = ("seed",)


class ComplainsToo(Complains):
    stage = "complains-too"


class FollowsBothComplaints(Counting):
    stage = "follows-both"
    entry = "counting_stages:first"
    reads = ("seed",)

    @cached_property
    def inputs(self):
        return {"one": self.clone(Complains), "other": self.clone(ComplainsToo)}


class Ends(Counting):
    """Ends in the way that ``name`` says (`counting_stages.ends`)."""

    stage = "ends"
    entry = "counting_stages:ends"
    reads = ("sampling", "name")


class InBatches(Counting):
    """Works in four batches; before the third it waits for the file RELEASE."""

    stage = "in-batches"
    entry = "counting_stages:in_batches"
    reads = ("seed",)


class WritesNothing(Counting):
    stage = "writes-nothing"
    entry = "counting_stages:writes_nothing"
    reads = ("seed",)


class Numbers(Counting, DivisibleTask):
    """Twelve numbers, whole or in shards."""

    stage = "numbers"
    merge_entry = "counting_stages:joins"
    shards_block = "sampling"
    entry = "counting_stages:part"
    reads = ("retrieval.top_k",)

    @cached_property
    def inputs(self):
        return {"first": self.clone(First)}


def task(kind, workspace, *overrides):
    runs = f"runs_dir={workspace / 'runs'}"
    return kind(
        config=str(ROOT / "configs/embedded.yaml"), overrides=(runs, "shards=1", *overrides)
    )


def executions(workspace) -> list[str]:
    path = workspace / "executions.txt"
    return path.read_text().split("\n")[:-1] if path.exists() else []


_RUN = """
import importlib, json, sys
from pathlib import Path
from pipeline.cli.app import main
from pipeline.engine.run import run
from tests.tasks import counting_tasks
module, kind, options, workspace, *overrides = sys.argv[1:]
kind = getattr(importlib.import_module(module), kind)
stage = counting_tasks.task(kind, Path(workspace), *overrides)
main(lambda: run(stage, **json.loads(options)))
"""


@contextmanager
def background(kind, workspace, *overrides, preexec_fn=None, **options):
    """Another process that runs a stage with the options of `pipeline.engine.run.run`.

    It is killed at the end of the block.
    """
    chosen = [kind.__module__, kind.__name__, json.dumps(options), str(workspace), *overrides]
    command = [sys.executable, "-c", _RUN, *chosen]
    with ending(subprocess.Popen(command, cwd=ROOT, preexec_fn=preexec_fn)) as process:
        yield process
