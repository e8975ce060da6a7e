"""``steep fork``, ``verify`` and ``gc``: reuse outputs, check them, and remove unneeded ones."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.options import Chosen, JsonOption, refuse_options, with_configuration
from pipeline.cli.printing import console, print_json, table
from pipeline.core.errors import InputError

if TYPE_CHECKING:
    from pipeline.engine.gc import Collection


def fork(
    run: Annotated[str, typer.Argument(metavar="RUN", help="name or directory of a run")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="name of the new run")],
) -> None:
    """Begin a run with the finished stages of another: linked, so they take no space.

    Run it with --set name=NAME and the settings that differ: only stages after them run.
    """
    from pipeline.config.run import run_name
    from pipeline.engine.store import fork as fork_store
    from pipeline.look.report.finished_run import find_run

    source = find_run(run)
    try:
        target = Path(os.path.relpath(source / ".." / run_name(name)))  # also beside "."
    except ValueError as error:
        raise InputError(f"NAME: {error}") from None
    if target.exists():
        raise InputError(f"{target} exists; choose another name, or remove it")
    count = fork_store(source, target)
    typer.echo(f"{target} has {count} finished stages of {source}; run it with --set name={name}")


@with_configuration
def verify(chosen: Chosen, as_json: JsonOption = False) -> None:
    """Check the files of finished stages by their hashes; exit status 1 for damage."""
    from pipeline.engine.status import verify as verify_outputs

    rows = verify_outputs(chosen.task())
    damaged = [row for row in rows if row.damage]
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            for line in row.damage:
                typer.echo(f"{row.label} is damaged: {row.directory}: {line}")
            if row.remake:
                typer.echo(f"{row.label}: make it again: {row.remake}")
        typer.echo(f"{len(rows)} outputs checked, {len(damaged)} damaged")
    if damaged:
        raise typer.Exit(1)


@with_configuration
def gc(
    context: typer.Context,
    chosen: Chosen,
    also: Annotated[
        list[str] | None,
        typer.Option(help="further configuration or variant whose outputs are kept; repeatable"),
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(help="examine all runs below this directory, by the config.yaml of each"),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="remove the listed outputs")] = False,
    incomplete: Annotated[
        bool,
        typer.Option(
            "--incomplete",
            help="instead, remove incomplete outputs, unused checkpoints and merged models",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List outputs that no configuration names; with --remove, remove them."""
    if incomplete:
        refuse_options(context, ("also", "runs", "remove", "as_json"), "with --incomplete")
        _remove_incomplete(chosen)
        return
    if runs is not None and not runs.is_dir():
        raise InputError.at(runs, "no such directory; --runs takes the directory of runs")
    named = chosen.given or runs is None or chosen.overrides or chosen.data
    choices = [chosen] if named else []
    choices += [dataclasses.replace(chosen, config=name) for name in also or ()]
    import tasks as tasks  # declares the stages
    from pipeline.engine.gc import collect

    reports = [choice.task() for choice in choices]
    found = collect(reports, runs, removing=remove)
    if as_json:
        print_json(found.rows)
    else:
        _print(found, remove)
    for line in found.left:
        typer.echo(f"left: {line}", err=as_json)


def _print(found: Collection, removing: bool) -> None:
    from rich.filesize import decimal

    if found.rows:
        lines = (
            (row.stage, decimal(row.bytes), f"{row.age_seconds / 86_400:.1f} days")
            + (os.path.relpath(row.directory), row.reason)
            + (("yes" if row.removed else "no",) if removing else ())
            for row in found.rows
        )
        removed = ["removed"] if removing else []
        console().print(table(("stage", "size", "age", "directory", "why", *removed), lines))
    rows = [row for row in found.rows if row.removed] if removing else found.rows
    total = decimal(sum(row.bytes for row in rows))
    if removing:
        typer.echo(f"{len(rows)} of {len(found.rows)} directories removed, {total}")
    elif not rows:
        typer.echo("every output is named by a configuration")
    else:
        typer.echo(f"{len(rows)} directories, {total}; --remove removes them")


def _remove_incomplete(chosen: Chosen) -> None:
    task = chosen.task()
    from pipeline.engine.removal import clean
    from pipeline.llm.merged_adapter import merged_models, remove_unused

    cleaning = clean(task)
    removed = [*cleaning.removed, *remove_unused(merged_models(task.settings.cache_dir))]
    for path in removed:
        typer.echo(f"removed {path}")
    for line in cleaning.left:
        typer.echo(f"left: {line}")
    typer.echo(f"{len(removed)} directories and files removed")
