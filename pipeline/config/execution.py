"""Settings that say where stages run: on this machine, on a Ray cluster, or as Slurm jobs."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from pipeline.config.base import Block, Execution, Few, Items, NotEmpty, Positive

_DIRECTIVE = re.compile(r"--[a-z][a-z-]*(=[^\n\r]+)?")


class Ray(Block):
    """Stages as tasks of a Ray cluster (extra ``ray`` of pyproject.toml)."""

    address: Annotated[NotEmpty | None, Execution()] = Field(
        None,
        description="`host:port` of the cluster's head, or auto; null: the address in "
        "RAY_ADDRESS, else the cluster on this machine",
    )


class Slurm(Block):
    """Stages as Slurm jobs, submitted by submitit (extra ``slurm`` of pyproject.toml)."""

    cluster: Annotated[Literal["slurm", "local"], Execution()] = Field(
        "slurm", description="local: processes of this machine instead of jobs, to try a set-up"
    )
    time: Annotated[Positive, Execution()] = Field(
        1440, description="time limit of a job in minutes; a stage that reaches it is queued again"
    )
    directives: Annotated[Items[NotEmpty], Execution()] = Field(
        (),
        description="directives of sbatch, such as `--partition=gpu`, `--account=lab` and "
        "`--mem-per-cpu=6G`; without one the cluster's default",
    )

    @field_validator("directives")
    @classmethod
    def _directives(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for directive in value:
            if not _DIRECTIVE.fullmatch(directive):
                raise ValueError(f"{directive!r:.60}: expected an option such as --qos=high")
        return value


class Executor(Block):
    """Where stages run. `execution: ray` is short for `execution: {kind: ray}`."""

    kind: Annotated[Literal["local", "ray", "slurm"], Execution()] = Field(
        "local", description="processes of this machine, a Ray cluster, or Slurm jobs"
    )
    threads: Annotated[Few, Execution()] = Field(
        8,
        description="ray, slurm: CPU threads of a stage for each of its GPUs, or without a GPU; on "
        "Ray at most its share of a node",
    )
    ray: Annotated[Ray, Execution()] = Field(Ray(), description="for kind ray")
    slurm: Annotated[Slurm, Execution()] = Field(Slurm(), description="for kind slurm")

    @model_validator(mode="before")
    @classmethod
    def _kind_alone(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value
