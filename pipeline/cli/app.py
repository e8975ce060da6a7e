"""The ``steep`` command: its list of commands and its entry point.

Every error that the user can fix is one sentence on standard error and exit status 2.
"""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from pipeline.core.atomic import check_distinct
from pipeline.core.errors import SteepError, check_name
from pipeline.core.process_variables import choose_kernels
from pipeline.core.text import visible


class _Command(TyperCommand):
    """A command whose outputs are neither its inputs nor each other."""

    def invoke(self, ctx: Any) -> Any:
        outputs = [ctx.params.get(name) for name in _OUTPUTS]
        named = (value for name, value in ctx.params.items() if name not in _OUTPUTS)
        given = (each for value in named for each in (value if type(value) is list else [value]))
        check_distinct(outputs, (each for each in given if isinstance(each, str | Path)))
        return super().invoke(ctx)


_OUTPUTS = ("output", "funnel", "export")  # parameters that name files to write


class _Groups(TyperGroup):
    """A help that fits one screen: each command in one line, in groups."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(
            "Usage: steep COMMAND [OPTIONS]; --help describes a command, --install-completion "
            f"completes words\n{self.help}\n"
        )
        group: str | None = None
        for name, command in self.commands.items():
            panel = getattr(command, "rich_help_panel", None)
            if panel != group:
                group = panel
                formatter.write(f"{group}:\n")
            summary = inspect.cleandoc(command.help or "").partition("\n\n")[0]
            formatter.write(f"  {name:<16}{summary}\n")


# The module and the name of each command, which is imported when it is named.
PANELS = {
    "Run": {"init": "init.init", "data": "init.data", "synthesise": "synthesise.synthesise",
        "decompose": "synthesise.decompose", "check": "check.check", "plan": "plan.plan",
        "run": "run.run", "status": "run.status", "serve": "retrieval.serve",
        "record": "retrieval.record"},
    "Look and compare": {"browse": "browse.browse", "view": "view.view", "ask": "ask.ask",
        "evaluate": "evaluate.evaluate", "compare": "evaluate.compare", "submit": "submit.submit",
        "audit-rewards": "audit_rewards.audit_rewards", "search": "retrieval.search",
        "recall": "retrieval.recall"},
    "Single steps on files": {"import": "outputs.import_outputs", "parse": "outputs.parse",
        "kag": "retrieval.kag", "hyper": "retrieval.hyper", "score": "score.score",
        "pair": "pair.pair", "mask": "outputs.mask", "metrics": "outputs.metrics",
        "failures": "outputs.failures", "calibrate": "calibrate.calibrate"},
    "Store and settings": {"fork": "store.fork", "verify": "store.verify", "gc": "store.gc",
        "export": "export.app", "config": "config.app"},
}  # fmt: skip


def command_line(wanted: str | None = None) -> typer.Typer:
    """The command line. It has the command ``wanted`` alone, or all if none is called so.

    All modules of commands import a third of the package, and a run needs one of them.
    """
    line = typer.Typer(
        cls=_Groups,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        callback=lambda: None,  # so that a line of one command is a group too
        help="Teach language models to search, offline: run stages, look at them, or use steps on "
        "own files.",
    )
    places = [(panel, *one) for panel, commands in PANELS.items() for one in commands.items()]
    for panel, name, place in [one for one in places if one[1] == wanted] or places:
        module, _, attribute = place.partition(".")
        command = getattr(import_module(f"pipeline.cli.{module}"), attribute)
        if isinstance(command, typer.Typer):
            line.add_typer(command, name=name, rich_help_panel=panel)
        else:
            line.command(name, cls=_Command, rich_help_panel=panel)(command)
    return line


def __getattr__(name: str) -> typer.Typer:
    """``app``: the command line with all commands."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return command_line()


_BUG = "This is a bug in steep; please open an issue with the command and the lines above."


def main(command: Callable[[], object] | None = None) -> None:
    """Entry point of the console script; it ends with `SystemExit`."""
    _open_closed_streams()
    choose_kernels()  # services and commands on files then give the results of stages
    status = _run(command or (lambda: command_line(*sys.argv[1:2])()))
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        status = status or 1
    except (OSError, ValueError) as error:  # full, or closed by the caller
        status = status or _report(f"standard output: cannot be written: {_reason(error)}")
    # So that the interpreter's exit succeeds.
    with suppress(OSError, ValueError), open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())
    sys.exit(status)


def _open_closed_streams() -> None:
    """Open the standard streams that the caller has closed.

    Files of this process would otherwise get their descriptors, which its children take for their
    streams. To read the input or to write the output stays an error.
    """
    streams = (
        ("stdin", "r", os.O_WRONLY),
        ("stdout", "w", os.O_RDONLY),
        ("stderr", "w", os.O_RDWR),
    )
    for descriptor, (name, mode, access) in enumerate(streams):
        try:
            os.fstat(descriptor)
        except OSError:  # closed, so the next file gets this descriptor
            os.open(os.devnull, access)
            os.set_inheritable(descriptor, True)
            stream = open(descriptor, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def _run(command: Callable[[], object]) -> int | str | None:
    """Run the command line and return its exit status."""
    try:
        for argument in sys.argv[1:]:
            check_name(argument)
        with suppress(FileNotFoundError):
            check_name(Path.cwd())
        command()
    except SystemExit as end:
        return end.code
    except SteepError as error:
        return _report(str(error), error.exit_status)
    except RecursionError:  # of the reader of JSON, whose depth is the interpreter's
        return _report("a value in the input is nested too deeply; expected a few levels")
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the program that reads our output ended
        return 1
    except OSError as error:
        return _report(f"{error.filename}: {_reason(error)}" if error.filename else _reason(error))
    except Exception:  # noqa: BLE001 - a bug, which must be shown
        traceback.print_exc()
        print(_BUG, file=sys.stderr)
        return 70  # EX_SOFTWARE
    return 0


def _report(problem: str, status: int = 2) -> int:
    """Print one sentence on standard error, with control characters removed."""
    print(f"error: {visible(problem)}", file=sys.stderr)
    return status


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
