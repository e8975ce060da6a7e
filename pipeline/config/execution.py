"""Settings that say where stages run: on this machine, on a Ray cluster, or as Slurm jobs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pipeline.config.base import Block, Execution, Few, Items, NotEmpty


class Slurm(Block):
    """Stages as Slurm jobs, submitted by submitit (extra ``slurm`` of pyproject.toml)."""

    cluster: Annotated[Literal["slurm", "local"], Execution()] = Field(
        "slurm", description="local: processes of this machine instead of jobs, to try a set-up"
    )
    directives: Annotated[Items[NotEmpty], Execution()] = Field(
        (),
        description="options of sbatch, such as `--partition=gpu`, `--mem-per-cpu=6G` and "
        "`--time=720` in minutes (1440 by default), after which a stage is queued again",
    )


class Executor(Block):
    """Where stages run."""

    kind: Annotated[Literal["local", "ray", "slurm"], Execution()] = Field(
        "local", description="processes of this machine, a Ray cluster, or Slurm jobs"
    )
    threads: Annotated[Few, Execution()] = Field(
        8,
        description="ray, slurm: CPU threads of a stage for each of its GPUs, or without a GPU",
    )
    slurm: Annotated[Slurm, Execution()] = Field(Slurm(), description="for kind slurm")
