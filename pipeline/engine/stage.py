"""The base of all stage tasks: fingerprint, directory, and execution.

A task declares its stage's name and version, the settings and raw files that it reads, and the
tasks that it needs. Its directory follows from these (``pipeline.engine.store``). A run starts the
stage's function in a separate process (``pipeline.engine.job``).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pipeline import config as configuration
from pipeline.config import Config
from pipeline.config.machine_choices import Resolved, resolve_dtypes
from pipeline.core.errors import ConfigError
from pipeline.engine.fingerprint import content_of, select
from pipeline.engine.leases import NO_LEASE, Capacity, Lease
from pipeline.engine.luigi_adapter import Register, Task, luigi
from pipeline.engine.opened import Needs, Opened, Work
from pipeline.engine.progress import FailureRecord
from pipeline.engine.store import (
    MANIFEST,
    StageKey,
    Store,
    content_key,
    manifest_of,
    output_content,
)

if TYPE_CHECKING:
    from pipeline.engine.plan.clock import Clock
    from pipeline.engine.process.fork_server import ForkServer


@lru_cache(maxsize=64)
def load_config(path: str, overrides: tuple[str, ...], data: str | None) -> Resolved:
    """The configuration of a task's parameters; tasks with equal parameters share it."""
    return resolve_dtypes(configuration.load(path, overrides, data))


def forget_configurations() -> None:
    """Make the tasks that are created from now on read their configuration files again.

    Files and tasks are remembered by paths as given: a file may have changed since, and a relative
    path may name another file after a change of the working directory.
    """
    load_config.cache_clear()
    Register.clear_instance_cache()


RESOLVED = "config.yaml"  # the configuration of a run, in its directory
PUBLISHED = ("report.html", "metrics.json", "report.json")  # copies of the report stage's files
TRAJECTORIES = ("trajectories.parquet",)  # the only file of a round that other stages read
STAGES: dict[str, type[StageTask]] = {}
"""The declared stages by name, in the order of a run. An import of ``tasks`` declares them."""


@dataclass
class Attempt:
    """What a run gives to a stage, and how the stage ended.

    Attributes:
        forced: run the stage although it is complete.
        needs: its GPUs and threads.
        capacity: what this machine has for the stages of the run; None on a cluster.
        lease: its devices and threads while it runs.
        fork_server: forks its process, if the run has one.
        failure: of the last run.
        seconds: of the last run, once it has succeeded.
    """

    forced: bool = False
    needs: Needs = field(default_factory=Needs)
    capacity: Capacity | None = None
    lease: Lease = NO_LEASE
    fork_server: ForkServer | None = None
    failure: FailureRecord | None = None
    seconds: float | None = None


class StageTask(Task):
    """One stage of one run."""

    config = luigi.Parameter(description="configuration file", default="embedded")
    overrides = luigi.ListParameter(default=(), description="key.key=value settings")
    data = luigi.OptionalParameter(default=None, description="directory of the data files")

    stage: ClassVar[str]
    help: ClassVar[str]  # the output of the stage, in one line
    version: ClassVar[int] = 1
    named: ClassVar[bool] = True  # whether a command can name the stage
    reads: ClassVar[tuple[str, ...]]  # configuration blocks or keys, dotted (see `reading`)
    publishes: ClassVar[tuple[str, ...]] = ()  # files that are copied to the run's directory
    reusable: ClassVar[bool] = True  # whether output made under other settings can be this stage's
    served: ClassVar[tuple[str, ...]] = ()  # inputs that a retrieval service reads

    def __init_subclass__(cls) -> None:
        """Add the stage to `STAGES`; refuse a stage whose declaration lacks a part."""
        super().__init_subclass__()
        if "stage" not in cls.__dict__:
            return  # a base of stages
        missing = [name for name in ("help", "reads") if not hasattr(cls, name)]
        missing += [n for n in ("opens", "work") if getattr(cls, n) is getattr(StageTask, n)]
        if missing:
            raise TypeError(
                f"{cls.__name__} declares no {', '.join(missing)}; add them to the stage"
            )
        STAGES[cls.stage] = cls

    @classmethod
    def function(cls, part: str) -> str:
        """The function, as ``module:name``, of the whole stage, of a shard or of their join.

        It is ``run``, ``run_shard`` or ``merge`` of the module that declares the stage, or ``run``
        if the module lacks the others.
        """
        return f"{cls.__module__}:{part if hasattr(sys.modules[cls.__module__], part) else 'run'}"

    def opens(self) -> Iterable[Opened]:
        """The models, indexes and endpoints that the stage opens. Every stage declares them."""
        raise NotImplementedError

    def work(self, clock: Clock) -> Work:
        """The work of the stage, by the sizes of the data. Every stage declares it."""
        raise NotImplementedError

    def faults(self) -> Iterator[str]:
        """A sentence for each fault in the stage's settings and files that would stop the stage."""
        return iter(())

    def findings(self) -> Iterator[str]:
        """What the finished stage found, for its line."""
        yield from ()

    def notes(self) -> Iterator[str]:
        """A sentence for each part of the data that the stage will leave out or find odd."""
        return iter(())

    @cached_property
    def settings(self) -> Config:
        """The configuration of the stage, with the settings of its round if it has one."""
        return self.run_settings

    @cached_property
    def run_settings(self) -> Config:
        """The configuration of the whole run."""
        return resolved(self).settings

    @property
    def command(self) -> tuple[str, ...]:
        """The words of the command that makes the output, without options of the configuration."""
        round = () if self.round_number is None else ("--round", str(self.round_number))
        return ("run", self.stage, *round)

    @cached_property
    def attempt(self) -> Attempt:
        """What a run gives to the stage, and how it ended."""
        return Attempt()

    @cached_property
    def store(self) -> Store:
        return Store(self.settings.run_dir / "store")

    @property
    def round_number(self) -> int | None:
        """The round from 1, the number of a policy from 0, or None."""
        return None

    @cached_property
    def inputs(self) -> dict[str, StageTask]:
        """Tasks whose output this task reads, by the name that the stage function uses.

        An override must not read `super().inputs`: both values are kept under one name, and another
        thread would meanwhile see the first.
        """
        return {}

    @property
    def input_files(self) -> Mapping[str, tuple[str, ...]]:
        """Patterns (``fnmatch``) of the files that the stage reads, by input name; default: all."""
        return {}

    def files(self) -> dict[str, Path | str]:
        """Raw files and models that the stage reads, by name: a path, or another identity."""
        return {}

    def reading(self) -> tuple[str, ...]:
        """The part of ``reads`` that counts under this configuration."""
        return self.reads

    def slice(self) -> dict[str, Any]:
        """The settings that enter the fingerprint."""
        return select(self.settings, self.reading())

    @cached_property
    def key(self) -> StageKey:
        # Those below come first: in a run of 100 rounds a recursion would be too deep.
        for read in walk(self, lambda one: {} if "key" in vars(one) else one.inputs):
            _ = read is self or read.key
        return StageKey(
            stage=self.stage,
            version=self.version,
            settings=self.slice(),
            files=content_of(self.settings, self.files()),
            inputs={name: task.key.fingerprint for name, task in self.inputs.items()},
            round=self.round_number,
        )

    def raw_files(self) -> dict[str, str]:
        """The content hashes of the raw files and models in the fingerprint, by path."""
        content = self.key.files
        return {
            str(path): content[name]
            for name, path in self.files().items()
            if isinstance(path, Path)
        }

    def facts(self) -> dict[str, Any]:
        """What the stage's function gets besides settings and inputs; not fingerprinted.

        A path becomes one more of the input directories, the rest are JSON values.
        """
        return {}

    @property
    def directory(self) -> Path:
        """The directory of the stage's output, complete or not."""
        return Outputs().directory(self)

    def requires(self) -> dict[str, StageTask]:
        return Outputs().requires(self)

    def shards(self) -> dict[str, StageTask]:
        """The tasks of the stage's shards; none when the stage is not divided."""
        return {}

    def output(self) -> luigi.LocalTarget:
        return luigi.LocalTarget(str(self.directory / MANIFEST))

    def complete(self) -> bool:
        return Outputs().complete(self)

    @property
    def label(self) -> str:
        """The stage's name in messages and logs, such as ``sample-2`` for round 2."""
        return self.stage if self.round_number is None else f"{self.stage}-{self.round_number}"


@dataclass(frozen=True)
class Output:
    """A completed output; ``reused`` says that it was made under another fingerprint."""

    directory: Path
    reused: bool = False


class Outputs:
    """The outputs of tasks at one moment; each task is looked up once.

    An output with the task's own fingerprint counts as long as the content of its inputs has not
    changed. Otherwise the store may hold an output that was made under other settings from inputs
    with the same content (`pipeline.engine.store`); the task then reuses it. A command that looks
    up many tasks does so in one object, because the output of a task depends on all those below it.
    """

    def __init__(self) -> None:
        self._found: dict[str, Output | None] = {}
        self._made = cache(Store.newest)

    def of(self, task: StageTask) -> Output | None:
        """The output of a task, or None. Raises StoreError when the disk fails."""
        if task.task_id not in self._found:
            # No recursion, as in the key of a task.
            for one in walk(task, lambda one: {} if one.task_id in self._found else one.inputs):
                if one.task_id not in self._found:
                    self._found[one.task_id] = self._find(one)
        return self._found[task.task_id]

    def complete(self, task: StageTask) -> bool:
        """Whether a task need not run."""
        return not task.attempt.forced and self.of(task) is not None

    def directory(self, task: StageTask) -> Path:
        """The directory of a task's output, complete or not."""
        output = self.of(task)
        return task.store.directory(task.key) if output is None else output.directory

    def requires(self, task: StageTask) -> dict[str, StageTask]:
        """The tasks that a task needs: its shards only until it is complete.

        The output of a complete stage does not depend on its shards.
        """
        shards = task.shards()
        return {**needed_here(task), **({} if shards and self.complete(task) else shards)}

    def _find(self, task: StageTask) -> Output | None:
        own, contents = task.store.directory(task.key), self.contents(task)
        wanted = None if contents is None else content_key(task.key, contents)
        if task.store.complete(task.key):
            # A damaged manifest is reported where the output is read.
            made_from = (manifest_of(own) or {}).get("content_key")
            if made_from is None or wanted in (made_from, None):
                return Output(own)
        if wanted is None or not task.reusable:
            return None
        made = self._made(task.store, task.stage)
        same = (path for path, manifest in made if manifest.get("content_key") == wanted)
        return next((Output(path, reused=True) for path in same), None)

    def earlier(self, task: StageTask) -> list[dict[str, Any]]:
        """Manifests of the completed outputs of a task's stage and round, newest first.

        A manifest that cannot be read is left out, because the settings of its output are unknown.
        """
        manifests = (manifest for _, manifest in self._made(task.store, task.stage))
        return [each for each in manifests if each["key"].get("round") == task.round_number]

    def contents(self, task: StageTask) -> dict[str, str] | None:
        """The content of a task's inputs by name.

        None while an input is incomplete, is on another machine, or has no recorded content.
        """
        contents = {}
        for name, read in task.inputs.items():
            output = self.of(read)
            manifest = None if output is None else manifest_of(output.directory)
            if manifest is None:
                return None
            content = output_content(manifest, task.input_files.get(name, ("*",)))
            if content is None:
                return None
            contents[name] = content
        return contents


class PolicyTask(StageTask):
    """A stage of policy ``number`` of the run."""

    number = luigi.IntParameter(
        default=0, description="policy: 0 is the first, n the one that round n trained"
    )

    @cached_property
    def settings(self) -> Config:
        return self.run_settings.for_evaluation()

    @property
    def round_number(self) -> int | None:
        return int(self.number)


class RoundTask(StageTask):
    """A stage of one round of training; rounds count from 1."""

    round = luigi.IntParameter(default=1, description="round of training, from 1")

    @cached_property
    def settings(self) -> Config:
        return self.run_settings.of_round(int(self.round))

    @property
    def round_number(self) -> int | None:
        return int(self.round)


class LightTask(StageTask):
    """A stage that opens no model, and holds little memory."""

    def opens(self) -> Iterable[Opened]:
        return ()

    def work(self, clock: Clock) -> Work:
        return Work()


def resolved(task: StageTask) -> Resolved:
    """The configuration of the whole run, and the number formats that ``dtype: auto`` means."""
    return load_config(str(task.config), tuple(task.overrides), task.data)


def whole_name(task: StageTask) -> str:
    """The name of the stage; for a shard, of its divided stage."""
    return task.stage.removesuffix("-shard")


def needed_here(task: StageTask) -> dict[str, StageTask]:
    """The inputs whose output must be in this store before the task runs.

    With a retrieval service the ``served`` ones may be on its machine. The client compares their
    fingerprints with those of the task.
    """
    away = task.served if task.settings.retrieval.service else ()
    return {name: read for name, read in task.inputs.items() if name not in away}


def walk(
    task: StageTask,
    below: Callable[[StageTask], Mapping[str, StageTask]] | None = None,
) -> Iterator[StageTask]:
    """A task and the tasks below it, each once, in running order.

    ``below`` gives the tasks directly before a task: by default the tasks that it needs now.
    """
    below = below or Outputs().requires
    seen, begun = {task.task_id}, [(task, iter(below(task).values()))]
    while begun:
        rest = begun[-1][1]
        next_one = next((each for each in rest if each.task_id not in seen), None)
        if next_one is None:
            yield begun.pop()[0]
        else:
            seen.add(next_one.task_id)
            begun.append((next_one, iter(below(next_one).values())))


def walk_configured(task: StageTask) -> Iterator[StageTask]:
    """Like `walk`, as if nothing were complete: only the configuration is read.

    A divided stage is one task, without its shards.
    """
    return walk(task, lambda one: one.inputs)


def task_for(
    stage: str,
    config: str,
    overrides: tuple[str, ...] = (),
    data: str | None = None,
    round: int | None = None,
) -> StageTask:
    """The task of a stage; ``round`` defaults to 1 for the stages of a round.

    Raises ConfigError for an unknown stage, a round that the run does not have, or a round of a
    stage without rounds.
    """
    forget_configurations()
    named = {name: kind for name, kind in STAGES.items() if kind.named}
    if stage not in named:
        raise ConfigError(f"no stage {stage!r}; there are {', '.join(named)}")
    kind = named[stage]
    parameters: dict[str, Any] = {"config": config, "overrides": overrides, "data": data}
    if issubclass(kind, PolicyTask):
        if round is None or round < 0:
            raise ConfigError(f"stage {stage} needs --round with the number of a policy: 0 is SFT")
        parameters["number"] = round
    elif issubclass(kind, RoundTask):
        parameters["round"] = 1 if round is None else round
    elif round is not None:
        rounds = ", ".join(name for name, kind in named.items() if issubclass(kind, RoundTask))
        raise ConfigError(
            f"round is {round}, but stage {stage} has no rounds; remove --round (ROUND=), which is "
            f"for the stages {rounds}"
        )
    task: StageTask = kind(**parameters)
    if task.round_number is not None:
        first = 0 if isinstance(task, PolicyTask) else 1
        task.run_settings.check_round(task.round_number, first)
    return task


def left_by(run: Path) -> StageTask:
    """A task with the configuration file in a run's directory, which may be a link.

    Raises FileNotFoundError without a file, and ConfigError when it belongs to another run.
    """
    path = run / RESOLVED
    if not path.exists():
        raise FileNotFoundError(path)
    forget_configurations()
    task = StageTask(config=str(path))
    places = {place.name: place for place in (run.resolve(), run)}
    if task.settings.name not in places:
        raise ConfigError(f"{path}: name is {task.settings.name}, so it is of another run")
    if task.settings.run_dir.resolve() != run.resolve():  # moved, or made from another directory
        folder = json.dumps(str(places[task.settings.name].parent))
        task = StageTask(config=str(path), overrides=(f"runs_dir={folder}",))
    return task
