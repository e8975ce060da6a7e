"""Command ``steep verify``: whether the completed outputs of a run are as they were written."""

from __future__ import annotations

import dataclasses
import json

import typer

from pipeline.cli.options import (
    DEFAULT_CONFIGURATION,
    ConfigOption,
    DataOption,
    JsonOption,
    SetOption,
)
from pipeline.cli.runs import stage_task


def verify(
    config: ConfigOption = DEFAULT_CONFIGURATION,
    set: SetOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check the files of every completed stage by their hashes; exit status 1 if one is damaged."""
    task = stage_task("report", config, set, data)
    from tasks.status import verify as verify_outputs

    rows = verify_outputs(task)
    damaged = [row for row in rows if row.damage]
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(row) for row in rows], indent=2))
    else:
        for row in rows:
            for line in row.damage:
                typer.echo(f"{row.label} is damaged: {row.directory}: {line}")
            if row.remake:
                typer.echo(f"{row.label}: make it again: {row.remake}")
        typer.echo(f"{len(rows)} outputs checked, {len(damaged)} damaged")
    if damaged:
        raise typer.Exit(1)
