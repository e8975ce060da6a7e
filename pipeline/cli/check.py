"""``steep check``: everything that can go wrong in a run and be found before it starts, at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.options import (
    DEFAULT_CONFIGURATION,
    ConfigOption,
    DataOption,
    JsonOption,
    MachineOption,
    SetOption,
    refuse_options,
)
from pipeline.cli.plan_table import plan_json, print_plan
from pipeline.cli.runs import stage_task
from pipeline.cli.training_check import check_training
from pipeline.core.text import visible


def check(
    context: typer.Context,
    config: ConfigOption = DEFAULT_CONFIGURATION,
    set: SetOption = None,
    data: DataOption = None,
    machine: MachineOption = None,
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
    """Check a run before it starts: settings, files, models, packages, devices, memory and disk.

    Each fault is one line on standard error, and the exit status is 2. Without faults the memory and GPU
    plan is printed. Nothing is written. The network is used only to ask the hub whether it gives the models that are to be
    fetched.
    """
    if training:
        refuse_options(context, ("machine",), "with --training; remove it")
        check_training(stage_task("report", config, set, data), round, as_json)
        return
    refuse_options(context, ("round",), "without --training; add it")
    from tasks.checks.collect import check_run
    from tasks.checks.machine import machine_of

    faults = [_no_directory(data)] if data is not None and not data.is_dir() else []
    root = None if data is None else str(data.absolute())
    checked = check_run(config, tuple(set or ()), root, machine_of(machine))
    faults += [line for fault in checked.faults for line in fault.splitlines()]
    for fault in faults:
        typer.echo(visible(fault), err=True)
    if as_json:
        found = {
            "faults": faults,
            "notes": list(checked.notes),
            "downloads": dict(checked.downloads),
            "plan": plan_json(checked.plan),
        }
        typer.echo(json.dumps(found, indent=2))
    elif checked.plan is not None and not faults:
        typer.echo("no faults")
        print_plan(checked.plan, checked.downloads)
        for note in checked.notes:
            typer.echo(visible(note))
    if faults:
        raise typer.Exit(2)


def _no_directory(data: Path) -> str:
    return f"{data}: no such directory; --data (DATA=) takes the directory of the data files"
