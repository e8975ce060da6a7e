"""``steep check``: everything that can go wrong in a run and be found before it starts, at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.options import Chosen, JsonOption, refuse_options, with_configuration
from pipeline.cli.printing import add_row, console, print_json, print_lines, table
from pipeline.core.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from tasks.base import StageTask
    from tasks.checks.collect import Checked
    from tasks.planning.memory import StageMemory

_HOUR = 3600


@with_configuration
def check(
    context: typer.Context,
    chosen: Chosen,
    machine: Annotated[
        str | None,
        typer.Option(
            help="plan for another machine: 8x80 has 8 GPUs of 80 GB; 8x80,1000 also 1,000 GiB of RAM"
        ),
    ] = None,
    training: Annotated[
        bool,
        typer.Option(
            "--training",
            help="check the finished pairs or trajectories of the rounds instead, before they are trained on",
        ),
    ] = False,
    round: Annotated[
        int | None, typer.Option("--round", min=1, help="with --training: one round")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check settings, files, models, packages, devices, memory and disk before a run.

    Each fault is one line on standard error, and the exit status is 2. Without faults the memory and GPU
    plan is printed. Nothing is written. The network is used only to ask the hub whether it gives the models that are to be
    fetched.
    """
    if training:
        refuse_options(context, ("machine",), "with --training; remove it")
        _check_training(chosen.task(), round, as_json)
        return
    refuse_options(context, ("round",), "without --training; add it")
    from tasks.checks.collect import check_run
    from tasks.checks.machine import described_machine, this_machine

    there = this_machine() if machine is None else described_machine(machine)
    faults = []
    try:
        root = chosen.root
    except InputError as error:  # one of several faults
        faults, root = [str(error)], str(chosen.data)
    checked = check_run(chosen.config, chosen.overrides, root, there)
    faults += [line for fault in checked.faults for line in fault.splitlines()]
    print_lines(faults, err=True)
    if as_json:
        print_json({"faults": faults, "notes": list(checked.notes), **_as_json(checked)})
    elif not faults:
        _print(checked)
    if faults:
        raise typer.Exit(2)


def _as_json(checked: Checked) -> dict[str, Any]:
    plan = checked.plan
    if plan is None:
        return {"plan": None}
    return {
        "plan": {
            "gpu_bytes": None if plan.gpu is None else plan.gpu.memory,
            "ram_bytes": round(plan.ram),
            "disk_bytes": round(plan.disk),
            "stages": [_stage(stage, checked) for stage in plan.stages],
            "downloads": dict(checked.downloads),
        }
    }


def _stage(stage: StageMemory, checked: Checked) -> dict[str, Any]:
    seconds = _seconds(stage.stage, checked)
    return {
        "stage": stage.stage,
        "gpus": stage.gpus,
        "device_bytes": round(stage.device_bytes),
        "parts": {part.name: round(part.size) for part in stage.device},
        "ram_bytes": round(stage.ram),
        "disk_bytes": round(stage.disk),
        "gpu_hours": None if seconds is None else round(seconds / _HOUR, 2),
        "unknown_models": list(stage.unknown),
    }


def _seconds(stage: str, checked: Checked) -> float | None:
    from tasks.planning.gpu_time import SECONDS_OF

    return (checked.seconds or {}).get(SECONDS_OF.get(stage, stage))


def _print(checked: Checked) -> None:
    from tasks.planning.memory import gib

    plan = checked.plan
    assert plan is not None  # there are no faults
    typer.echo("memory and GPU plan, GiB at the peak of each stage")
    console(200).print(_table(checked))
    device = "no GPU" if plan.gpu is None else f"GPUs of {gib(plan.gpu.memory or 0)} GiB"
    if plan.gpu is not None and plan.gpu.memory is None:
        device = "GPUs of unknown memory"
    typer.echo(
        f"no faults; {device}; RAM at most {gib(plan.ram)} GiB; disk about {gib(plan.disk)} GiB"
    )
    print_lines(checked.notes)
    for name, size in checked.downloads:
        amount = "of unknown size" if size is None else f"about {gib(size)} GiB"
        typer.echo(f"will be fetched from the hub: {name} ({amount})")
    unknown = sorted({model for stage in plan.stages for model in stage.unknown})
    if unknown:
        typer.echo(f"left out of the plan, because their shapes are unknown: {', '.join(unknown)}")
    if checked.seconds is not None:
        typer.echo("GPU hours are computed, not measured (docs/scale.md, Published runs)")


def _table(checked: Checked) -> Table:
    """One row for each stage of the plan."""
    from tasks.planning.memory import gib

    plan = checked.plan
    assert plan is not None
    on_gpus = plan.gpu is not None
    amounts = (*(("GPUs", "on each", "GPU hours") if on_gpus else ()), "RAM", "disk")
    made = table(("stage",), amounts, ("parts on each GPU",) if on_gpus else ())
    for stage in plan.stages:
        cells = [stage.stage]
        if on_gpus:
            seconds = _seconds(stage.stage, checked)
            used = stage.device_bytes > 0
            cells += [
                str(stage.gpus) if used else "",
                gib(stage.device_bytes) if used else "",
                f"{seconds / _HOUR:,.1f}" if seconds is not None else "",
            ]
        cells += [gib(stage.ram), gib(stage.disk)]
        if on_gpus:
            parts = [f"{part.name} {gib(part.size)}" for part in stage.device]
            cells.append(", ".join([*parts, *stage.notes]))
        add_row(made, *cells)
    return made


def _check_training(task: StageTask, round: int | None, as_json: bool) -> None:
    """Print a table for each round; each fault is one line on standard error, with exit status 2."""
    from pipeline.training.preflight import table as lines_of
    from tasks.preflight import checked_data

    found = checked_data(task, round)
    faults = [
        f"{each.label}: {check.fault}"
        for each in found
        for check in each.checks
        if check.verdict == "FAULT"
    ]
    print_lines(faults, err=True)
    if as_json:
        stages = [
            {"stage": each.label, "directory": str(each.source), **each.figures} for each in found
        ]
        print_json({"faults": faults, "data": stages})
    else:
        for each in found:
            count = each.figures["records"]
            typer.echo(f"{each.label}: {count:,} {each.figures['data']} of {each.source}")
            print_lines(f"  {line}".rstrip() for line in lines_of(each.checks))
        total = sum(len(each.checks) for each in found)
        verdict = f"{len(faults)} of {total} checks are beyond a limit of preflight"
        typer.echo(f"verdict: {verdict if faults else 'no faults'}")
    if faults:
        raise typer.Exit(2)
