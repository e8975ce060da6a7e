"""The base of all stage tasks: fingerprint, directory, and execution.

A task declares its stage's name and version, the settings and raw files that it reads, and the
tasks that it needs. Its directory follows from these (``pipeline.run.store``). ``run`` starts the
stage's function in a separate process (``pipeline.run.worker``).
"""

from __future__ import annotations

import os
import shlex
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import luigi
from luigi.task_register import Register

from pipeline import config as configuration
from pipeline.config import Config
from pipeline.config.machine_choices import Resolved, resolve_dtypes
from pipeline.core import shipped
from pipeline.core.errors import SteepError, StoreError
from pipeline.core.process_variables import MALLOC
from pipeline.run.failures import explain_os_error
from pipeline.run.fork_server import ForkServer
from pipeline.run.progress import FailureRecord
from pipeline.run.store import Depth, StageKey, Store, problems, read_manifest
from pipeline.run.supervisor import StageFailed, run_stage
from pipeline.run.worker import StageJob
from tasks.execution.leases import NO_LEASE, Lease, Request, held
from tasks.fingerprint import content_hashes, select, select_execution
from tasks.opened import Needs, Opened, Work
from tasks.outputs import Output, Outputs

if TYPE_CHECKING:
    from tasks.planning.clock import Clock

# Ends of the names of settings whose reduction lowers the memory of a stage.
_MEMORY = ("batch", "batch_size", "in_flight", "max_num_seqs")


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


TRAJECTORIES = ("trajectories.parquet",)  # the only file of a round that other stages read
STAGES: dict[str, type[StageTask]] = {}  # every declared stage by its name, in the order of a run


class StageTask(luigi.Task):
    """One stage of one run."""

    config = luigi.Parameter(description="configuration file", default="embedded")
    overrides = luigi.ListParameter(default=(), description="key.key=value settings")
    data = luigi.OptionalParameter(default=None, description="directory of the data files")

    stage: ClassVar[str]
    help: ClassVar[str]  # the output of the stage, in one line
    version: ClassVar[int] = 1
    named: ClassVar[bool] = True  # whether a command can name the stage
    entry: ClassVar[str]  # module:function, imported only in the stage's own process
    reads: ClassVar[tuple[str, ...]]  # configuration blocks or keys, dotted
    reads_at_times: ClassVar[tuple[str, ...]] = ()  # only some configurations need these
    reusable: ClassVar[bool] = True  # whether output made under other settings can be this stage's
    hashes_inputs: ClassVar[bool] = False  # whether the hashes of all inputs are checked first
    lock_seconds: ClassVar[float] = 15.0  # how long to wait for another process with this stage

    forced = False  # run the stage although it is complete
    asked = Needs()  # its needs, set by `tasks.build`
    request: Request | None = None  # devices and threads of this machine, set by `tasks.build`
    lease: Lease = NO_LEASE  # its devices and threads while it runs
    fork_server: ForkServer | None = None  # set by `tasks.build`
    failure: FailureRecord | None = None  # of the last run
    seconds: float | None = None  # of the last run, once it has succeeded

    def __init_subclass__(cls) -> None:
        """Add the stage to `STAGES`; refuse a stage whose declaration lacks a part."""
        super().__init_subclass__()
        if "stage" not in cls.__dict__:
            return  # a base of stages
        missing = [name for name in ("help", "entry", "reads") if not hasattr(cls, name)]
        missing += [n for n in ("opens", "work") if getattr(cls, n) is getattr(StageTask, n)]
        if missing:
            raise TypeError(
                f"{cls.__name__} declares no {', '.join(missing)}; add them to the stage"
            )
        STAGES[cls.stage] = cls

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

    @property
    def whole(self) -> str:
        """The name of the stage; a shard gives the name of its divided stage."""
        return self.stage

    @cached_property
    def settings(self) -> Config:
        """The configuration of the stage, with the settings of its round if it has one."""
        return self.run_settings

    @cached_property
    def run_settings(self) -> Config:
        """The configuration of the whole run."""
        return self.resolved.settings

    @property
    def resolved(self) -> Resolved:
        """The configuration of the whole run, and the number formats that ``dtype: auto`` means."""
        return load_config(str(self.config), tuple(self.overrides), self.data)

    @cached_property
    def store(self) -> Store:
        return Store(self.settings.run_dir / "store")

    @property
    def round_number(self) -> int | None:
        """The round from 1, the number of a policy from 0, or None."""
        return None

    def upstream(self) -> dict[str, StageTask]:
        """Tasks whose output this task reads, by the name that the stage function uses."""
        return {}

    @cached_property
    def inputs(self) -> dict[str, StageTask]:
        """The tasks of `upstream`, made once."""
        return self.upstream()

    @property
    def input_files(self) -> Mapping[str, tuple[str, ...]]:
        """Patterns (``fnmatch``) of the files that the stage reads, by input name; default: all."""
        return {}

    def files(self) -> dict[str, Path | str]:
        """Raw files and models that the stage reads, by name: a path, or another identity."""
        return {}

    def reading(self) -> tuple[str, ...]:
        """The blocks or keys that the stage reads under this configuration."""
        return self.reads

    def slice(self) -> dict[str, Any]:
        """The settings that enter the fingerprint."""
        return select(self.settings, self.reading())

    def execution(self) -> dict[str, Any]:
        """The settings that say how the stage is executed, which enter no fingerprint."""
        return select_execution(self.settings, self.reading())

    @cached_property
    def key(self) -> StageKey:
        return StageKey(
            stage=self.stage,
            version=self.version,
            settings=self.slice(),
            files=self.content_of(self.files()),
            inputs={name: task.key.fingerprint for name, task in self.inputs.items()},
            round=self.round_number,
        )

    def content_of(self, files: Mapping[str, Path | str]) -> dict[str, str]:
        """The content hashes of files and model directories; other identities are unchanged.

        Raises InputError when a file does not exist.
        """
        hashes = content_hashes(self.settings.hashes_file)
        content = {
            name: hashes.of(path) if isinstance(path, Path) else path
            for name, path in files.items()
        }
        hashes.save()
        return content

    def raw_files(self) -> dict[str, str]:
        """The content hashes of the raw files and models in the fingerprint, by path."""
        content = self.key.files
        return {
            str(path): content[name]
            for name, path in self.files().items()
            if isinstance(path, Path)
        }

    def facts(self) -> dict[str, Any]:
        """Information for the stage's function besides its settings, as JSON; not fingerprinted."""
        return {}

    def found(self) -> Output | None:
        """The stage's completed output, under this or another fingerprint, or None."""
        return Outputs().of(self)

    @property
    def directory(self) -> Path:
        """The directory of the stage's output, complete or not."""
        output = self.found()
        return self.store.directory(self.key) if output is None else output.directory

    def needed(self) -> dict[str, StageTask]:
        """The upstream tasks whose output must be in this store before this task runs."""
        return self.upstream()

    def requires(self) -> dict[str, StageTask]:
        return self.needed()

    def shards(self) -> dict[str, StageTask]:
        """The tasks of the stage's shards; none when the stage is not divided."""
        return {}

    def output(self) -> luigi.LocalTarget:
        return luigi.LocalTarget(str(self.directory / "manifest.json"))

    def complete(self) -> bool:
        return not self.forced and self.found() is not None

    @property
    def label(self) -> str:
        """The stage's name in messages and logs, such as ``sample-2`` for round 2."""
        return self.stage if self.variant is None else f"{self.stage}-{self.variant}"

    @property
    def variant(self) -> str | None:
        """The part of the label that tells this task from others of its stage: its round."""
        return None if self.round_number is None else str(self.round_number)

    def run(self) -> None:
        """Run the stage, unless an output from inputs with the same content exists."""
        began, output = time.monotonic(), self.found()
        if output is None or self.forced:
            with held(self.request, lambda text: say(aligned(self.label, text))) as self.lease:
                self.start()
        elif output.reused:
            say(
                aligned(
                    self.label,
                    f"reused: its inputs have the content that {output.directory} was made from",
                )
            )
        self.seconds = time.monotonic() - began

    def start(self) -> None:
        """Run the stage's function."""
        self.execute(self.entry, self.input_directories())

    def input_directories(self) -> dict[str, str]:
        """The directories that the stage's function reads, by input name."""
        return {name: str(task.directory) for name, task in self.requires().items()}

    def execute(
        self, entry: str, inputs: Mapping[str, str], shard: int = 0, shards: int = 1
    ) -> None:
        """Run ``entry`` in a separate process, which prints into the run's log directory.

        Raises StageFailed naming the log and the cause, StoreError when an input is damaged.
        """
        self.check_inputs(Depth.HASHES if self.hashes_inputs else Depth.SIZES)
        stage = StageJob(
            config=self.settings.model_dump(mode="json"),
            key=dict(self.key.__dict__),
            raw_files=self.raw_files(),
            contents=Outputs().contents(self),
            entry=entry,
            root=str(self.store.root),
            seed=self.settings.seed,
            log=str(self.settings.run_dir / "logs" / f"{self.label}.log"),
            inputs=dict(inputs),
            shard=shard,
            shards=shards,
            force=self.forced,
            lock_seconds=self.lock_seconds,
            execution=self.execution(),
            launched=time.time(),
            facts=self.facts(),
        )
        started = time.monotonic()
        counts = self._run_job(stage)
        rows = ", ".join(f"{value:,} {name}" for name, value in counts.items())
        notes = read_manifest(self.store.directory(self.key)).get("notes", {})
        found = "; ".join([rows, *self.findings(), *notes.get("warnings", ())])
        say(aligned(self.label, f"done in {time.monotonic() - started:.0f} s: {found}"))

    def _run_job(self, stage: StageJob) -> dict[str, int]:
        """Run the job of the stage to its end, here or on a cluster; returns its row counts."""

        def started(log: Path) -> None:
            say(aligned(self.label, f"runs (log: {log})"))

        def noted(note: str) -> None:
            say(aligned(self.label, note))

        environment, hint = self.environment(), self._memory_hint()
        if self.settings.execution.kind == "local":
            inherited = {**os.environ, **environment}
            server = self.fork_server if self.fork_server and self.fork_server.ready else None
            return run_stage(stage, inherited, hint, started, server=server)
        from tasks.execution.cluster import run_on_cluster

        return run_on_cluster(
            stage, self.settings.execution, environment, hint, started, noted,
            label=self.label, needs=self.asked,
        )  # fmt: skip

    def check_inputs(self, depth: Depth) -> None:
        """Raise StoreError when the output of a complete upstream stage is damaged.

        The message names the files, what differs, and the command that makes them again.
        """
        for task in self.requires().values():
            task.check_output(depth)

    def check_output(self, depth: Depth) -> None:
        """Raise StoreError when this stage is complete and its output is damaged."""
        if self.complete() and (found := problems(self.directory, depth)):
            raise StoreError(
                f"the output of {self.label} is damaged ({self.directory}: {'; '.join(found)}); "
                f"make it again: {self.remake_command}"
            )

    def run_command(self, *more: str) -> str:
        """The command that makes the output of the stage, with further options."""
        round = [] if self.round_number is None else ["--round", str(self.round_number)]
        return shlex.join(
            ["steep", "run", self.made_by or self.whole, *round, *more, *self.options]
        )

    @property
    def remake_command(self) -> str:
        """The command that makes this stage's output again."""
        if self.can_be_forced:
            return self.run_command("--force")
        return f"{shlex.join(['rm', '-r', str(self.directory)])} && {self.run_command()}"

    @property
    def can_be_forced(self) -> bool:
        """Whether ``--force`` makes the output again; otherwise it must be removed first."""
        return self.made_by is None

    @property
    def made_by(self) -> str | None:
        """The stage whose command makes the output if no command names this one, else None."""
        return None

    @property
    def options(self) -> list[str]:
        """The options of the command line that give this task's configuration."""
        options = ["--config", str(self.config)]
        for override in self.overrides:
            options += ["--set", override]
        return options if self.data is None else [*options, "--data", self.data]

    def _memory_hint(self) -> str:
        names = [name for name in self.execution() if name.endswith(_MEMORY)]
        lower = f"lower {', '.join(names)}, or " if names else ""
        return f"{lower}run fewer stages at once (--workers)"

    def publish(self) -> None:
        """Show the complete output outside the store; most stages show nothing."""

    def on_failure(self, exception: BaseException) -> str:
        """Keep the failure, and record it beside the output unless another process runs the stage.

        Returns its message.
        """
        self.failure = _failure_of(exception)
        if not (isinstance(exception, StageFailed) and exception.busy):
            self.failure.write(self.store.failure_file(self.key))
        return self.failure.message

    def environment(self) -> dict[str, str]:
        """Environment variables of the stage's process: for Python, and from its lease."""
        extra = {"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false", **MALLOC}
        if shipped.INSTALLED:
            # A user's own pipeline.py or tasks/ in the current directory must not hide the package.
            extra["PYTHONSAFEPATH"] = "1"
        return {**extra, **self.lease.environment()}


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


def walk(
    task: StageTask,
    below: Callable[[StageTask], Mapping[str, StageTask]] = lambda task: task.requires(),
) -> Iterator[StageTask]:
    """A task and the tasks below it, each once, in running order.

    ``below`` gives the tasks directly before a task: by default the tasks that it needs now.
    """
    seen: set[str] = set()

    def visit(one: StageTask) -> Iterator[StageTask]:
        if one.task_id not in seen:
            seen.add(one.task_id)
            for needed in below(one).values():
                yield from visit(needed)
            yield one

    return visit(task)


def walk_configured(task: StageTask) -> Iterator[StageTask]:
    """Like `walk`, as if nothing were complete: only the configuration is read.

    A divided stage is one task, without its shards.
    """
    return walk(task, lambda one: one.inputs)


def _failure_of(exception: BaseException) -> FailureRecord:
    """The failure record of a task's exception. The traceback of a bug is printed."""
    if isinstance(exception, StageFailed):
        log = None if exception.log is None else str(exception.log)
        return FailureRecord(exception.cause, exception.exit_status, log)
    if isinstance(exception, SteepError):
        return FailureRecord(str(exception), exception.exit_status)
    if isinstance(exception, OSError):
        return FailureRecord(explain_os_error(exception, "the run's directory"), 2)
    traceback.print_exception(exception)
    return FailureRecord(f"{type(exception).__name__}: {exception}", 1)


def aligned(label: str, text: str) -> str:
    """A stage's label and a text, with the texts of all stages below each other."""
    return f"{label:<20} {text}"


def say(line: str) -> None:
    """Print a line of progress with the time of day."""
    print(f"{time.strftime('%H:%M:%S')}  {line}\n", end="", flush=True)  # in one write: of threads
