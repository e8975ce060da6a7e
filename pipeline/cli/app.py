"""The ``steep`` command: its list of commands and its entry point.

Every error that the user can fix is one sentence on standard error and exit status 2.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import typer

from pipeline.cli import (
    ask,
    browse,
    calibrate,
    check,
    compare,
    config,
    data,
    evaluate,
    failures,
    gc,
    init,
    outputs,
    pair,
    plan,
    recall,
    retrieval,
    runs,
    score,
    show,
    verify,
    view,
)
from pipeline.core.errors import SteepError
from pipeline.core.process_variables import choose_kernels
from pipeline.core.text import visible

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Teach language models to search well, offline: run the stages, inspect them, or use "
    "single steps on your own files.",
)

Commands = dict[str, Callable[..., Any]]
RUN: Commands = {
    "init": init.init,
    "data": data.data,
    "run": runs.run,
    "status": runs.status,
}
PLAN: Commands = {"check": check.check, "plan": plan.plan}
LOOK: Commands = {
    "browse": browse.browse,
    "view": view.view,
    "show": show.show,
    "ask": ask.ask,
    "compare": compare.compare,
}
STAGES: Commands = {
    **{
        stage: runs.stage_command(stage) for stage in runs.STAGES
    },  # replaced below for three stages
    "score": score.score,
    "pair": pair.pair,
    "evaluate": evaluate.evaluate,
}
STEPS: Commands = {
    "import": outputs.import_outputs,
    "parse": outputs.parse,
    "mask": outputs.mask,
    "metrics": outputs.metrics,
    "kag": retrieval.kag,
    "hyper": retrieval.hyper,
    "failures": failures.failures,
    "calibrate": calibrate.calibrate,
}
RETRIEVAL: Commands = {"serve-retrieval": runs.serve_retrieval, "recall": recall.recall}
STORE: Commands = {"verify": verify.verify, "gc": gc.gc, "clean-tmp": runs.clean_tmp}
PANELS = {
    "Run": RUN,
    "Check and plan": PLAN,
    "Look and compare": LOOK,
    "One stage, and what it needs": STAGES,
    "Single steps on your own files, besides score and pair": STEPS,
    "Retrieval": RETRIEVAL,
    "Store": STORE,
}

for panel, commands in PANELS.items():
    for name, command in commands.items():
        app.command(name, rich_help_panel=panel)(command)
app.add_typer(config.app, name="config", rich_help_panel="Check and plan")

_BUG = "This is a bug in steep; please open an issue with the command and the lines above."


def main(command: Callable[[], object] = app) -> None:
    """Entry point of the console script; it ends with `SystemExit`."""
    _occupy_closed_descriptors()
    choose_kernels()  # a retrieval service, and commands on files, give what the stages give
    status = _run(command)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        status = status or 1
    except (OSError, ValueError) as error:
        if not status:
            status = _report(f"standard output: cannot be written: {_reason(error)}")
    _discard_output()
    sys.exit(status)


def _run(command: Callable[[], object]) -> int | str | None:
    """Run the command line and return its exit status."""
    try:
        command()
    except SystemExit as end:
        return end.code
    except SteepError as error:
        return _report(str(error), error.exit_status)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the program that reads our output ended
        return 1
    except MemoryError:
        return _report("out of memory; use a smaller file, or give the process more memory")
    except RecursionError:
        return _report("a value is nested too deeply to be read or written")
    except OSError as error:
        return _report(f"{error.filename}: {_reason(error)}" if error.filename else _reason(error))
    except Exception:  # noqa: BLE001 - a bug, which is shown and not hidden
        traceback.print_exc()
        print(_BUG, file=sys.stderr)
        return 70  # EX_SOFTWARE
    return 0


def _report(problem: str, status: int = 2) -> int:
    """Print one sentence on standard error, without control characters of what it quotes."""
    print(f"error: {visible(problem)}", file=sys.stderr)
    return status


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _occupy_closed_descriptors() -> None:
    """Open the standard streams that the caller closed (``<&-``), so that no other file gets their number.

    Reading or writing them still fails, except for standard error, which is discarded.
    """
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_WRONLY), "r", closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", closefd=False)


def _discard_output() -> None:
    """Send what is left of standard output to nowhere, so that the interpreter's exit succeeds."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):  # a stream in memory
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
