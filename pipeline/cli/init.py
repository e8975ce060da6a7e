"""``steep init``: copy a shipped configuration to start from, or list the shipped configurations."""

from __future__ import annotations

import re
import shlex
import stat
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli import completion
from pipeline.cli.options import DEFAULT_CONFIGURATION
from pipeline.core.atomic import STDOUT, text_output
from pipeline.core.errors import ConfigError, InputError
from pipeline.core.shipped import (
    CONFIGURATIONS,
    SCHEMA,
    configuration_name,
    configuration_names,
    shipped_configuration,
)

_BASE = re.compile(r"^base: *(\S+)", re.MULTILINE)


def init(
    name: Annotated[
        str,
        typer.Argument(
            help="shipped configuration; see --list", autocompletion=completion.configurations
        ),
    ] = DEFAULT_CONFIGURATION,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="file to write; default: NAME.yaml; - is stdout"),
    ] = None,
    list_names: Annotated[
        bool, typer.Option("--list", help="list the shipped configurations instead")
    ] = False,
) -> None:
    """Copy a shipped configuration, with its comments, to edit and run."""
    if list_names:
        _print_names()
        return
    source = shipped_configuration(name)
    if source is None:
        from pipeline.config.base import shown

        raise ConfigError(f"no shipped configuration {shown(name)}; steep init --list shows them")
    target = output or Path(source.name)
    through = str(target) == STDOUT or _is_special(target)
    steps = _next_steps(configuration_name(source), target)
    with text_output(target) as write:
        if not through:
            write(f"# yaml-language-server: $schema={SCHEMA}\n")  # for editors
        write(_with_shipped_base(source))
    if not through:
        typer.echo(f"wrote {target}")
        typer.echo(steps)


def _is_special(target: Path) -> bool:
    """Whether ``target`` is a FIFO or a device; raises InputError when it is a file."""
    try:
        mode = target.stat().st_mode
    except OSError:  # there is none, or `text_output` says what is wrong
        return False
    if stat.S_ISREG(mode):
        problem = "the file exists; name another with --output, or remove it"
        raise InputError.at(target, None, problem)
    return True


def _with_shipped_base(source: Path) -> str:
    """The text of a configuration whose ``base:`` is a shipped name, which resolves anywhere."""

    def renamed(match: re.Match[str]) -> str:
        base = (source.parent / match.group(1)).resolve()
        return f"base: {configuration_name(base)}.yaml"

    return _BASE.sub(renamed, source.read_text(encoding="utf-8"))


def _next_steps(name: str, target: Path) -> str:
    from pipeline.config import load

    data = "" if load(name).data.closed_world else " --data DIR"
    file = shlex.quote(str(target))
    if name.startswith("recall/"):
        return f"Edit it, then measure retrieval with:\n  steep recall --config {file}{data}"
    return (
        f"Edit it, then run it and see what is done with:\n"
        f"  steep run --config {file}{data}\n"
        f"  steep status --config {file}{data}"
    )


def _print_names() -> None:
    names = configuration_names()
    width = max(map(len, names))
    for name in names:
        first = (CONFIGURATIONS / f"{name}.yaml").read_text(encoding="utf-8").partition("\n")[0]
        typer.echo(f"{name:<{width}}  {first.removeprefix('#').strip()}")
