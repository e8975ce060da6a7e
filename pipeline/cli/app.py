"""The ``steep`` command: its list of commands and its entry point.

Every error that the user can fix is one sentence on standard error and exit status 2.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import typer

from pipeline.cli import (
    calibrate,
    failures,
    init,
    outputs,
    pair,
    recall,
    retrieval,
    runs,
    score,
    verify,
    view,
)
from pipeline.core.errors import SteepError
from pipeline.core.text import visible

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Teach language models to search well, offline: run the stages, inspect them, or use "
    "single steps on your own files.",
)

Commands = dict[str, Callable[..., Any]]
RUN: Commands = {
    "init": init.init,
    "run": runs.run,
    "status": runs.status,
    "verify": verify.verify,
    "view": view.view,
    "serve-retrieval": runs.serve_retrieval,
    "clean-tmp": runs.clean_tmp,
}
STAGES: Commands = {
    **{stage: runs.stage_command(stage) for stage in runs.STAGES},  # replaced below for two stages
    "score": score.score,
    "pair": pair.pair,
}
FILES: Commands = {
    "import": outputs.import_outputs,
    "parse": outputs.parse,
    "mask": outputs.mask,
    "metrics": outputs.metrics,
    "kag": retrieval.kag,
    "hyper": retrieval.hyper,
    "failures": failures.failures,
    "calibrate": calibrate.calibrate,
    "recall": recall.recall,
}
PANELS = {
    "Runs": RUN,
    "Stages, each with everything that it needs": STAGES,
    "Files and measurements": FILES,
}

for panel, commands in PANELS.items():
    for name, command in commands.items():
        app.command(name, rich_help_panel=panel)(command)
app.command("causes", hidden=True)(failures.failures)  # its name in version 0.1


def main() -> None:
    """Entry point of the console script."""
    try:
        app()
    except SteepError as error:
        print(f"error: {visible(str(error))}", file=sys.stderr)
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the program that reads our output ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
