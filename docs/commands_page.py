"""Adds the page *Commands* to the site: arguments and options, grouped as in ``steep --help``."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.main import get_command

from pipeline.cli.app import app

LEAST_SHARED = 4  # commands
_HEAD = """\
# Commands

`steep COMMAND --help` shows the same in the terminal. Errors that you can fix are one sentence on \
standard error, with exit status 2. `steep --install-completion` makes your shell complete \
commands, options, configurations, stages and settings. `make help` lists the targets of the \
repository.

These options have one meaning in every command:

| option | meaning |
|---|---|
"""


def page() -> str:
    """The page as Markdown; options that many commands share are described once."""
    command: Any = get_command(app)
    groups: dict[str, list[tuple[str, Any]]] = {}
    shared: Counter[tuple[str, str]] = Counter()
    for name, found in command.commands.items():
        if not found.hidden:
            groups.setdefault(found.rich_help_panel, []).append((name, found))
            shared.update(_options(name, found))
    common = {row for row, count in shared.items() if count >= LEAST_SHARED}
    parts = [_HEAD + "\n".join(map(_row, sorted(common))) + "\n"]
    for group, commands in groups.items():
        parts.append(f"## {group}\n")
        parts.extend(part for name, found in commands for part in _describe(name, found, common))
    return "\n".join(parts)


def _options(name: str, command: Any) -> list[tuple[str, str]]:
    """Names and meaning of the arguments and options."""
    context = command.make_context(name, [], resilient_parsing=True)
    return [found for found in (p.get_help_record(context) for p in command.params) if found]


def _row(option: tuple[str, str]) -> str:
    return f"| `{option[0]}` | {_cell(option[1])} |"


def _describe(name: str, command: Any, common: set[tuple[str, str]]) -> Iterator[str]:
    """The section of a command, or of each command below it."""
    if hasattr(command, "commands"):
        yield f"### steep {name}\n\n{inspect.cleandoc(command.help)}\n"
        for below, found in command.commands.items():
            section = _section(f"{name} {below}", found, common)
            yield f"#### steep {name} {below}\n\n{section}"
    else:
        yield f"### steep {name}\n\n{_section(name, command, common)}"


def _section(name: str, command: Any, common: set[tuple[str, str]]) -> str:
    context = command.make_context(name, [], resilient_parsing=True)
    usage = " ".join(["steep", name, *command.collect_usage_pieces(context)])
    lines = [f"```\n{usage}\n```\n", f"{inspect.cleandoc(command.help)}\n"]
    options = _options(name, command)
    if own := [option for option in options if option not in common]:
        lines += ["| argument or option | meaning |", "|---|---|", *map(_row, own), ""]
    if also := [
        names.partition(" <")[0] for names, meaning in options if (names, meaning) in common
    ]:
        lines += [f"Also {', '.join(f'`{names}`' for names in also)}.", ""]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page to the site; mkdocs calls this hook (``mkdocs.yml``)."""
    files.append(File.generated(config, "commands.md", content=page()))
    return files
