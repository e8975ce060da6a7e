"""The executor of a configuration, and what it needs before a run."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.config import Config, Trainer
from pipeline.core.errors import ConfigError, DependencyError
from tasks.executors import ray, slurm
from tasks.executors.base import Executor, Threads
from tasks.executors.local import LocalExecutor

_PACKAGES = {"ray": ("ray", "ray"), "slurm": ("submitit", "slurm")}  # module, extra


def executor_of(settings: Config) -> Executor:
    """The executor that the block ``execution`` names."""
    execution = settings.execution
    threads = Threads(execution.threads_per_gpu, execution.threads_without_gpu)
    if execution.kind == "ray":
        return ray.RayExecutor(execution.ray, threads)
    if execution.kind == "slurm":
        return slurm.SlurmExecutor(execution.slurm, threads)
    return LocalExecutor()


def check_executor(settings: Config) -> None:
    """Raise before anything runs when the executor cannot work.

    DependencyError names the package that is missing, and ConfigError machines of training that do not fit the
    executor.
    """
    kind = settings.execution.kind
    if kind in _PACKAGES:
        module, extra = _PACKAGES[kind]
        if importlib.util.find_spec(module) is None:
            raise DependencyError(
                f"execution is {kind}, and the package {module} is missing; pip install 'steep[{extra}]'"
            )
    for name in ("sft", "dpo", "grpo"):
        trainer: Trainer | None = getattr(settings, name)
        if trainer is None:
            continue
        if trainer.machines > 1 and kind == "local":
            raise ConfigError(
                f"{name}.machines is {trainer.machines}, and execution is local, which has one machine; set "
                f"{name}.machines to 1, or execution to ray or slurm"
            )
        if trainer.processes % trainer.machines:
            raise ConfigError(
                f"{name}.processes is {trainer.processes} and {name}.machines is {trainer.machines}; expected the "
                f"same number of processes on each machine; set {name}.processes to a multiple of it"
            )


@contextmanager
def serving(settings: Config) -> Iterator[None]:
    """Keep what the executor needs for the time of a run: Ray's cluster of this machine."""
    if settings.execution.kind == "ray":
        with ray.cluster(settings.execution.ray):
            yield
    else:
        yield
