"""``steep check``: report all faults of a run that can be found before it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.options import (
    Chosen,
    JsonOption,
    MachineOption,
    refuse_options,
    with_configuration,
)
from pipeline.cli.plan import plan_json, print_plan
from pipeline.cli.printing import print_json, print_lines
from pipeline.core.errors import InputError

if TYPE_CHECKING:
    from tasks.base import StageTask


@with_configuration
def check(
    context: typer.Context,
    chosen: Chosen,
    machine: MachineOption = None,
    training: Annotated[
        bool,
        typer.Option(
            "--training",
            help="check the finished pairs or trajectories of the rounds instead, before they are "
            "trained on",
        ),
    ] = False,
    round: Annotated[
        int | None, typer.Option("--round", min=1, help="with --training: one round")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check settings, files, models, packages, GPUs, their memory and disk before a run.

    Each fault is one line on standard error, and the exit status is 2. Without faults the memory
    and GPU plan is printed. Nothing is written. The network is used only to ask the hub whether it
    gives the missing models.
    """
    if training:
        refuse_options(context, ("machine",), "with --training; remove it")
        _check_training(chosen.task(), round, as_json)
        return
    refuse_options(context, ("round",), "without --training; add it")
    from tasks.checks.collect import check_run
    from tasks.checks.machine import machine_of

    faults = []
    try:
        root = chosen.root
    except InputError as error:  # one of several faults
        faults, root = [str(error)], str(chosen.data)
    checked = check_run(chosen.config, chosen.overrides, root, machine_of(machine))
    faults += [line for fault in checked.faults for line in fault.splitlines()]
    print_lines(faults, err=True)
    if as_json:
        print_json(
            {
                "faults": faults,
                "notes": list(checked.notes),
                "downloads": dict(checked.downloads),
                "plan": plan_json(checked.plan),
            }
        )
    elif checked.plan is not None and not faults:
        typer.echo("no faults")
        print_plan(checked.plan, checked.downloads)
        print_lines(checked.notes)
    if faults:
        raise typer.Exit(2)


def _check_training(task: StageTask, round: int | None, as_json: bool) -> None:
    """Print a table for each round; a fault is a line on standard error, with exit status 2."""
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
        verdict = f"{len(faults)} of {total} checks are beyond a limit"
        typer.echo(f"verdict: {verdict if faults else 'no faults'}")
    if faults:
        raise typer.Exit(2)
