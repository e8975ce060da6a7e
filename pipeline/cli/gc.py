"""Command ``steep gc``: outputs that no configuration names, and their removal."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.options import DEFAULT_CONFIGURATION, DataOption, JsonOption, SetOption
from pipeline.cli.runs import stage_task
from pipeline.core.errors import InputError

if TYPE_CHECKING:
    from tasks.gc import Collection

_RECENT_MINUTES = 10.0


def gc(
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            "-c",
            help="configuration whose outputs are kept; repeatable [default: embedded]",
            show_default=False,
        ),
    ] = None,
    set: SetOption = None,
    data: DataOption = None,
    runs: Annotated[
        Path | None,
        typer.Option(help="examine all runs below this directory, by the config.yaml of each"),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="remove what is listed")] = False,
    recent: Annotated[
        float,
        typer.Option(
            min=0,
            help="minutes in which other settings must not have written to a store, as they may "
            "still be running",
        ),
    ] = _RECENT_MINUTES,
    as_json: JsonOption = False,
) -> None:
    """List outputs that no configuration names, with their sizes; with --remove, remove them."""
    if runs is not None and not runs.is_dir():
        raise InputError.at(runs, None, "no such directory; --runs takes the directory of runs")
    paths = config or ([DEFAULT_CONFIGURATION] if runs is None or set or data else [])
    reports = [stage_task("report", path, set, data) for path in paths]
    from tasks.gc import collect

    found = collect(reports, runs, removing=remove, recent_minutes=recent)
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(row) for row in found.rows], indent=2))
    else:
        _print(found, remove)
    for line in found.left:
        typer.echo(f"left: {line}", err=as_json)


def _print(found: Collection, removing: bool) -> None:
    from rich.console import Console
    from rich.filesize import decimal
    from rich.table import Table
    from rich.text import Text  # text with brackets is no markup

    console = Console(width=None if sys.stdout.isatty() else 160)
    if found.rows:
        table = Table(
            "stage", "size", "age", "directory", "why", *(["removed"] if removing else [])
        )
        for row in found.rows:
            cells = [
                Text(row.stage),
                Text(decimal(row.bytes)),
                Text(_age(row.age_seconds)),
                Text(os.path.relpath(row.directory)),
                Text(row.reason),
            ]
            table.add_row(*cells, *([Text("yes" if row.removed else "no")] if removing else []))
        console.print(table)
    for path, size in found.caches.items():
        typer.echo(f"cache {os.path.relpath(path)}: {decimal(size)}, used by all runs and kept")
    rows = [row for row in found.rows if row.removed] if removing else found.rows
    total = decimal(sum(row.bytes for row in rows))
    if removing:
        typer.echo(f"{len(rows)} of {len(found.rows)} directories removed, {total}")
    elif not rows:
        typer.echo("every output is named by a configuration")
    else:
        typer.echo(f"{len(rows)} directories, {total}; --remove (REMOVE=1) removes them")


def _age(seconds: int) -> str:
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
