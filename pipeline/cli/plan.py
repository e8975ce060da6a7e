"""``steep plan``: which stages would run, and their GPU memory, disk, hours and requests.

The table and the JSON of a plan are also for ``steep check``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import typer

from pipeline.cli.options import (
    Chosen,
    JsonOption,
    MachineOption,
    RoundOption,
    StageArgument,
    with_configuration,
)
from pipeline.cli.printing import console, print_json, print_lines, table
from pipeline.core.errors import SteepError

if TYPE_CHECKING:
    from rich.table import Table

    from pipeline.engine.opened import Requests
    from pipeline.engine.plan.plan import Plan, StagePlan
    from pipeline.engine.stage import StageTask

_HOUR = 3600


@with_configuration
def plan(
    chosen: Chosen,
    stage: StageArgument = "report",
    round: RoundOption = None,
    machine: MachineOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the stages that would run, with their GPU memory, disk, hours and cost.

    The data may be missing; then the plan covers the whole run. What does not fit the machine, and
    a paid endpoint without a ceiling, is a line on standard error, and the exit status is 2.
    """
    from pipeline.config.machine_choices import resolve_dtypes
    from pipeline.engine.check.devices import machine_of
    from pipeline.engine.plan.plan import make_plan
    from pipeline.engine.plan.sizes import sizes_of

    gpus = machine_of(machine).gpus
    there = None if machine is None else bool(gpus)
    dtypes = resolve_dtypes(chosen.load(), gpus=there).dtypes  # as on the machine of the plan
    task = chosen.task(stage, round, [f"{name}={dtype}" for name, dtype in dtypes.items()])
    running, unknown = _running(task)
    made = make_plan(running, sizes_of(task.run_settings), gpus)
    faults = list(made.faults())
    if as_json:
        labels = [needed.label for needed in running]
        planned = {"running": labels, "unknown": unknown, "faults": faults}
        print_json({**planned, "plan": plan_json(made)})
    else:
        _print(running, unknown, made)
    print_lines(faults, err=True)
    if faults:
        raise typer.Exit(2)


def _print(running: Sequence[StageTask], unknown: str | None, made: Plan) -> None:
    if unknown is not None:
        typer.echo(
            "this is the plan of the whole run, because the state of its stages is unknown: "
            f"{unknown}"
        )
    if not running:
        typer.echo("every stage is done; nothing would run")
        return
    stages = "stage" if len(running) == 1 else "stages"
    typer.echo(f"{len(running)} {stages} would run: {_named(running)}")
    print_plan(made)


def _running(task: StageTask) -> tuple[list[StageTask], str | None]:
    """The stages that would run, without their shards; and the reason when that is unknown."""
    from pipeline.engine.stage import Outputs, walk, walk_configured

    stages, outputs = list(walk_configured(task)), Outputs()
    try:
        needed = {one.task_id for one in walk(task, outputs.requires)}
        return [one for one in stages if one.task_id in needed and not outputs.of(one)], None
    except SteepError as error:
        return stages, str(error)


def _named(tasks: Iterable[StageTask]) -> str:
    """The names of stages, with the number of rounds or policies where a stage has several."""
    counts = Counter(re.sub(r"-\d+$", "", task.label) for task in tasks)
    return ", ".join(f"{name} ({times})" if times > 1 else name for name, times in counts.items())


def plan_json(plan: Plan | None) -> dict[str, Any] | None:
    """The plan with bytes, and hours of GPUs or of a CPU core; None without one."""
    from pipeline.engine.plan.money import totals

    if plan is None:
        return None
    asked, hours = totals(plan.asked), "cpu_hours" if plan.gpu is None else "gpu_hours"
    return {
        "gpu_bytes": None if plan.gpu is None else plan.gpu.memory,
        "disk_bytes": round(plan.disk),
        hours: round(plan.seconds / _HOUR, 2),
        "unknown_models": plan.unknown,
        "stages": [
            {
                "stage": stage.stage,
                "gpus": stage.gpus,
                "device_bytes": round(stage.memory.size),
                "parts": {name: round(size) for name, size in stage.memory.device.items()},
                "disk_bytes": round(stage.work.disk),
                hours: round(stage.work.seconds / _HOUR, 2),
                "endpoints": [_asked_json(one) for one in asked if one.stage == stage.stage],
            }
            for stage in plan.stages
        ],
    }


def _asked_json(asked: Requests) -> dict[str, Any]:
    return {
        "endpoint": asked.remote.key,
        "model": asked.remote.settings.model,
        "calls": round(asked.calls),
        "prompt_tokens": round(asked.read),
        "completion_tokens": round(asked.written),
        "cost": None if asked.cost is None else round(asked.cost, 2),
    }


def print_plan(plan: Plan, downloads: Sequence[tuple[str, float | None]] = ()) -> None:
    """Print the table of a plan, and below it the facts that the table leaves out."""
    from pipeline.engine.plan.plan import summary

    if not plan.stages:
        return
    memory = "GPU memory in GiB at the peak of each stage, " * (plan.gpu is not None)
    typer.echo(f"{memory}disk in GiB and hours of all rounds of each stage")
    console(200).print(_table(plan))
    if plan.asked:
        typer.echo("requests to endpoints and tokens, over all rounds")
        console(200).print(_requests(plan))
    print_lines(summary(plan, downloads))
    if unknown := plan.unknown:
        typer.echo(f"left out of the plan, because their shapes are unknown: {', '.join(unknown)}")


def _requests(plan: Plan) -> Table:
    """One row for each endpoint of a stage."""
    from pipeline.engine.plan.money import totals

    rows = (
        (
            one.stage, one.remote.key, one.remote.settings.model,
            *(f"{amount:,.0f}" for amount in (one.calls, one.read, one.written)),
            "price unknown" if one.cost is None else f"{one.cost:,.2f}",
        )
        for one in totals(plan.asked)
    )  # fmt: skip
    header = ("stage", "endpoint", "model", "requests", "tokens read", "written", "cost")
    return table(header, rows, right=4)


def _table(plan: Plan) -> Table:
    """One row for each stage."""
    from pipeline.engine.plan.memory import gib

    def cells(stage: StagePlan) -> tuple[object, ...]:
        hours = stage.work.seconds / _HOUR
        used = (stage.gpus, gib(stage.memory.size)) if stage.gpus else ("", "")
        return (*used[: len(on_gpus)], f"{hours:,.1f}" if hours else "", gib(stage.work.disk))

    on_gpus = ("GPUs", "on each") if plan.gpu is not None else ()
    header = ("stage", *on_gpus, "GPU hours" if on_gpus else "core hours", "disk")
    rows = ((stage.stage, *cells(stage)) for stage in plan.stages)
    return table(header, rows, right=len(header) - 1)
