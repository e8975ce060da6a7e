"""Commands that run the stages of a configuration, show their state, and clean up after them."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.options import (
    DEFAULT_CONFIGURATION,
    ConfigOption,
    DataOption,
    ForceOption,
    JsonOption,
    RoundOption,
    SetOption,
    WorkersOption,
)
from pipeline.core.errors import InputError

if TYPE_CHECKING:
    from tasks.base import StageTask
    from tasks.status import StageState

# The stages in the order of a run, and what each writes. `score` and `pair` have commands that also
# take a file (`pipeline.cli.app`).
STAGES = {
    "world": "documents and questions of the closed world",
    "corpus": "passages, and the questions of all data sets",
    "graph": "knowledge graph of the passages",
    "index": "embeddings and indexes of passages, entities and triplets",
    "hypergraph": "n-ary facts of the passages",
    "hyper-index": "embeddings and indexes of hyperedges and their entities",
    "sft-data": "supervised trajectories",
    "sft": "policy 0, trained on the supervised trajectories",
    "sample": "trajectories of a round",
    "judge": "verdicts on the steps of a round",
    "score": "trajectories of a round with rewards",
    "pair": "preference pairs of a round",
    "train": "the policy after a round",
    "evaluate": "metrics of all policies",
    "report": "the HTML report",
}
_COLORS = {"done": "green", "reused": "cyan", "missing": "dim", "stale": "yellow", "damaged": "red"}


def run(
    stage: Annotated[str, typer.Argument(help="stage to run, with everything that it needs")] = (
        "report"
    ),
    config: ConfigOption = DEFAULT_CONFIGURATION,
    set: SetOption = None,
    data: DataOption = None,
    round: RoundOption = None,
    workers: WorkersOption = None,
    force: ForceOption = False,
) -> None:
    """Run a stage and everything that it needs, except what is done."""
    task = stage_task(stage, config, set, data, round)
    from tasks.run import run as run_task

    typer.echo(str(run_task(task, workers=workers, force=force)))


def stage_command(stage: str) -> Callable[..., None]:
    """The command ``steep STAGE``, which does the same as ``steep run STAGE``."""

    def command(
        config: ConfigOption = DEFAULT_CONFIGURATION,
        set: SetOption = None,
        data: DataOption = None,
        round: RoundOption = None,
        workers: WorkersOption = None,
        force: ForceOption = False,
    ) -> None:
        run(stage, config, set, data, round, workers, force)

    command.__doc__ = f"Run stage {stage}: {STAGES[stage]}."
    return command


def status(
    config: ConfigOption = DEFAULT_CONFIGURATION,
    set: SetOption = None,
    data: DataOption = None,
    why: Annotated[
        str | None, typer.Option("--why", help="stage to explain, such as sample:2")
    ] = None,
    round: RoundOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show every stage as done, reused, stale or missing; with --why, the reason that one would run."""
    from tasks import status as states

    if why is not None:
        stage, number = _stage_and_round(why, round)
        lines = states.why(stage_task(stage, config, set, data, number))
        typer.echo(json.dumps(lines) if as_json else "\n".join(lines))
        return
    if round is not None:
        raise InputError(f"--round is {round} without --why; name a stage, such as --why sample:2")
    rows = states.status(stage_task("report", config, set, data))
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(row) for row in rows], indent=2))
    else:
        _print_status(rows)


def _stage_and_round(why: str, round: int | None) -> tuple[str, int | None]:
    """The stage and the round of ``sample:2``, or of a stage's name with ``round``.

    Raises InputError when the part after the colon is not a number.
    """
    stage, colon, number = why.partition(":")
    if not colon:
        return stage, round
    if not number.isdecimal():
        raise InputError(
            f"--why is {why!r}; expected a stage, or a stage and round such as sample:2"
        )
    return stage, int(number)


def clean_tmp(
    config: ConfigOption = DEFAULT_CONFIGURATION, set: SetOption = None, data: DataOption = None
) -> None:
    """Remove incomplete outputs, and checkpoints and merged models that no process uses."""
    task = stage_task("report", config, set, data)
    from pipeline.llm.merged_adapter import merged_models, remove_unused
    from tasks.run import clean

    cleaning = clean(task)
    removed = [*cleaning.removed, *remove_unused(merged_models(task.settings.cache_dir))]
    for path in removed:
        typer.echo(f"removed {path}")
    for line in cleaning.left:
        typer.echo(f"left: {line}")
    typer.echo(f"{len(removed)} directories removed")


def serve_retrieval(
    config: ConfigOption = DEFAULT_CONFIGURATION,
    set: SetOption = None,
    data: DataOption = None,
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port")] = 8765,
) -> None:
    """Serve the index over HTTP, for sampling processes that set retrieval.service."""
    task = stage_task("index", config, set, data)
    from tasks.serve import serve_retrieval as serve

    serve(task, host, port)


def stage_task(
    stage: str,
    config: str,
    overrides: list[str] | None = None,
    data: Path | None = None,
    round: int | None = None,
) -> StageTask:
    """The Luigi task of a stage.

    Relative paths in a configuration, such as ``runs_dir``, are below the current directory.
    Raises ConfigError for an unknown stage or an impossible round, InputError when ``data`` is not a
    directory.
    """
    if data is not None and not data.is_dir():
        raise InputError.at(
            data, None, "no such directory; --data (DATA=) takes the directory of the data files"
        )
    from tasks.run import task_for

    root = str(data.absolute()) if data else None
    return task_for(stage, config, tuple(overrides or ()), root, round)


def _print_status(rows: list[StageState]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text  # text with brackets is no markup

    table = Table("stage", "state", "seconds", "rows", "directory")
    for row in rows:
        counts = ", ".join(f"{value:,} {name}" for name, value in row.counts.items())
        seconds = "" if row.wall_seconds is None else f"{row.wall_seconds:.0f}"
        state = "damaged" if row.damage else row.state
        directory = os.path.relpath(row.directory)
        cells = (
            Text(row.label),
            Text(state, _COLORS[state]),
            seconds,
            Text(counts),
            Text(directory),
        )
        table.add_row(*cells)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    for row in rows:
        for line in row.damage:
            typer.echo(f"{row.label} is damaged: {line}")
        if row.remake:
            typer.echo(f"{row.label}: make it again: {row.remake}")
