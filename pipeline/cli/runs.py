"""Commands that run the stages of a configuration, show their state, and clean up after them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli import completion
from pipeline.cli.options import (
    DEFAULT_CONFIGURATION,
    ConfigOption,
    DataOption,
    ForceOption,
    JsonOption,
    NoCheckOption,
    RoundOption,
    SetOption,
    WorkersOption,
)
from pipeline.core.errors import InputError
from pipeline.core.text import visible

if TYPE_CHECKING:
    from tasks.base import StageTask

# The stages in the order of a run, and what each writes. `score`, `pair` and `evaluate` have commands
# that also take files (`pipeline.cli.app`).
STAGES = {
    "world": "documents and questions of the closed world",
    "corpus": "passages of the documents",
    "graph": "knowledge graph of the passages",
    "index": "embeddings and indexes of passages, entities and triplets",
    "hypergraph": "n-ary facts of the passages",
    "hyper-index": "embeddings and indexes of hyperedges and their entities",
    "sft-data": "supervised trajectories",
    "sft": "policy 0, trained on the supervised trajectories",
    "start": "policy 0 without training: the base model or an adapter (the setting start)",
    "sample": "trajectories of a round",
    "judge": "verdicts on the steps of a round",
    "score": "trajectories of a round with rewards",
    "pair": "preference pairs of a round",
    "train": "the policy after a round",
    "evaluate": "metrics of all policies",
    "report": "the HTML report",
}


def run(
    stage: Annotated[
        str,
        typer.Argument(
            help="stage to run, with everything that it needs", autocompletion=completion.stages
        ),
    ] = "report",
    config: ConfigOption = DEFAULT_CONFIGURATION,
    set: SetOption = None,
    data: DataOption = None,
    round: RoundOption = None,
    workers: WorkersOption = None,
    force: ForceOption = False,
    no_check: NoCheckOption = False,
) -> None:
    """Run a stage and everything that it needs, except what is done.

    The end of a whole run is its result: EM of every policy, and where to look next.
    """
    task = stage_task(stage, config, set, data, round)
    from tasks.run import run as run_task

    directory = run_task(task, workers=workers, force=force, keep_config=True, check=not no_check)
    if stage != "report":
        typer.echo(str(directory))
        return
    from pipeline.cli.run_results import result_lines

    for line in result_lines(task.settings.run_dir):
        typer.echo(visible(line))


def stage_command(stage: str) -> Callable[..., None]:
    """The command ``steep STAGE``, which does the same as ``steep run STAGE``."""

    def command(
        config: ConfigOption = DEFAULT_CONFIGURATION,
        set: SetOption = None,
        data: DataOption = None,
        round: RoundOption = None,
        workers: WorkersOption = None,
        force: ForceOption = False,
        no_check: NoCheckOption = False,
    ) -> None:
        run(stage, config, set, data, round, workers, force, no_check)

    command.__doc__ = f"Run stage {stage}: {STAGES[stage]}."
    return command


def status(
    config: ConfigOption = DEFAULT_CONFIGURATION,
    set: SetOption = None,
    data: DataOption = None,
    why: Annotated[
        str | None,
        typer.Option(
            "--why", help="stage to explain, such as sample:2", autocompletion=completion.stages
        ),
    ] = None,
    round: RoundOption = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="show it again each second, until Ctrl-C")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the state of every stage; with --why, the reason that one would run."""
    from pipeline.cli import status_view
    from tasks import status as states

    if watch and (as_json or why is not None):
        other = "--json" if as_json else "--why"
        raise InputError(f"--watch cannot be used with {other}; remove one of them")

    if why is not None:
        stage, number = _stage_and_round(why, round)
        lines = states.why(stage_task(stage, config, set, data, number))
        typer.echo(json.dumps(lines) if as_json else "\n".join(lines))
        return
    if round is not None:
        raise InputError(f"--round is {round} without --why; name a stage, such as --why sample:2")
    task = stage_task("report", config, set, data)
    if watch:
        status_view.watch(lambda: states.status(task))
        return
    rows = states.status(task)
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(row) for row in rows], indent=2))
    else:
        status_view.print_status(rows)


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
    typer.echo(f"{len(removed)} directories and files removed")


def serve_retrieval(
    config: ConfigOption = DEFAULT_CONFIGURATION,
    set: SetOption = None,
    data: DataOption = None,
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port")] = 8765,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="a name by which clients reach the service; IP addresses, localhost and the names "
            "of this machine are allowed (repeatable)"
        ),
    ] = None,
) -> None:
    """Serve the index over HTTP, for sampling processes that set retrieval.service."""
    task = stage_task("index", config, set, data)
    from tasks.serve import serve_retrieval as serve

    serve(task, host, port, allow_host or ())


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
