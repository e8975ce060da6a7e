"""``steep check --training``: the checks of training data that is there, before it is trained on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from pipeline.core.text import visible

if TYPE_CHECKING:
    from tasks.base import StageTask


def check_training(task: StageTask, round: int | None, as_json: bool) -> None:
    """Print a table for each round; each fault is one line on standard error, with exit status 2."""
    from pipeline.training.preflight import table
    from tasks.preflight import checked_data

    data = checked_data(task, round)
    faults = [
        f"{each.label}: {check.fault}"
        for each in data
        for check in each.checks
        if check.verdict == "FAULT"
    ]
    for fault in faults:
        typer.echo(visible(fault), err=True)
    if as_json:
        stages = [
            {"stage": each.label, "directory": str(each.source), **each.figures} for each in data
        ]
        typer.echo(json.dumps({"faults": faults, "data": stages}, indent=2))
    else:
        for each in data:
            count = each.figures["records"]
            typer.echo(f"{each.label}: {count:,} {each.figures['data']} of {each.source}")
            for line in table(each.checks):
                typer.echo(f"  {visible(line)}".rstrip())
        total = sum(len(each.checks) for each in data)
        verdict = f"{len(faults)} of {total} checks are beyond a limit"
        typer.echo(f"verdict: {verdict if faults else 'no faults'}")
    if faults:
        raise typer.Exit(2)
