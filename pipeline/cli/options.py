"""Options and arguments that several commands share, and checks on which of them are given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.cli import completion
from pipeline.core.errors import InputError

DEFAULT_CONFIGURATION = "embedded"


def _configuration(panel: str | None = None) -> Any:
    """The option ``--config``, which stands in ``panel`` of a command's help."""
    return typer.Option(
        "--config",
        "-c",
        help="configuration file, or name of a shipped one",
        autocompletion=completion.configurations,
        rich_help_panel=panel,
    )


ConfigOption = Annotated[str, _configuration()]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="key.key=value; repeatable")]
DataOption = Annotated[Path | None, typer.Option("--data", help="directory of the data files")]
RoundOption = Annotated[
    int | None, typer.Option("--round", help="round from 1, for stages of a round")
]
WorkersOption = Annotated[int | None, typer.Option("--workers", help="stages run at once")]
ForceOption = Annotated[bool, typer.Option("--force", help="run this stage again, even if done")]
NoCheckOption = Annotated[
    bool, typer.Option("--no-check", help="start without the checks of steep check")
]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON")]
Source = Annotated[str, typer.Argument(metavar="FILE", help="JSONL or Parquet file; - is stdin")]
Output = Annotated[str, typer.Option("--output", "-o", help="JSONL file; - is standard output")]

STAGE_PANEL = "Options of the stage (without FILE)"
FILE_PANEL = "Options with FILE"
FROM_PANEL = "Options that look at a run without running anything"

# `steep score` and `steep pair` run a stage, or with FILE a command on that file.
OptionalSource = Annotated[
    str | None,
    typer.Argument(
        metavar="FILE",
        help="JSONL or Parquet file; - is stdin; without it the stage runs",
        show_default=False,
    ),
]
StageConfigOption = Annotated[str, _configuration(STAGE_PANEL)]
StageSetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="key.key=value; repeatable", rich_help_panel=STAGE_PANEL),
]
StageDataOption = Annotated[
    Path | None,
    typer.Option("--data", help="directory of the data files", rich_help_panel=STAGE_PANEL),
]
StageRoundOption = Annotated[
    int | None, typer.Option("--round", help="round from 1", rich_help_panel=STAGE_PANEL)
]
StageWorkersOption = Annotated[
    int | None,
    typer.Option("--workers", help="stages run at once", rich_help_panel=STAGE_PANEL),
]
StageForceOption = Annotated[
    bool,
    typer.Option("--force", help="run this stage again, even if done", rich_help_panel=STAGE_PANEL),
]
StageNoCheckOption = Annotated[
    bool,
    typer.Option(
        "--no-check", help="start without the checks of steep check", rich_help_panel=STAGE_PANEL
    ),
]
FileOutput = Annotated[
    str,
    typer.Option(
        "--output", "-o", help="JSONL file; - is standard output", rich_help_panel=FILE_PANEL
    ),
]
STAGE_OPTIONS = ("config", "set", "data", "round", "workers", "force", "no_check")


def refuse_options(context: typer.Context, names: Sequence[str], reason: str) -> None:
    """Raise InputError, which ends in ``reason``, if the command line has one of the options."""
    named = {
        parameter.name: "FILE" if parameter.param_type_name == "argument" else parameter.opts[0]
        for parameter in context.command.params
    }
    used = [
        named[name]
        for name in names
        if (source := context.get_parameter_source(name)) and source.name == "COMMANDLINE"
    ]
    if used:
        raise InputError(f"steep {context.info_name}: {', '.join(used)} cannot be used {reason}")


WITHOUT_FILE = "without FILE; name a file (- is standard input)"
WITHOUT_FROM = "without --from; name the directory of a run"
WITH_FROM = "with --from, which runs no stage; remove one of them"
WITH_FILE = "with FILE, which runs no stage; remove one of them"
MachineOption = Annotated[
    str | None,
    typer.Option(
        "--machine",
        help="plan for another machine: 8x80 has 8 GPUs of 80 GB; 8x80,1000 also 1,000 GiB of RAM",
    ),
]
