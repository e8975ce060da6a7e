"""Adds the page *Commands* to the site: arguments and options, grouped as in ``steep --help``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.main import get_command

from pipeline.cli.app import app

_HEAD = """\
# Commands

`steep COMMAND --help` shows the same in the terminal. \
Errors that you can fix are one sentence on standard error, with exit
status 2. `steep --install-completion` \
makes your shell complete commands, options, shipped configurations, stages and
settings; `steep --show-completion` \
prints the script instead. `make help` lists the targets of the repository.
"""


def page() -> str:
    """The page as Markdown."""
    command: Any = get_command(app)
    groups: dict[str, list[tuple[str, Any]]] = {}
    for name, found in command.commands.items():
        if not found.hidden:
            groups.setdefault(found.rich_help_panel, []).append((name, found))
    parts = [_HEAD]
    for group, commands in groups.items():
        parts.append(f"## {group}\n\n{_overview(commands)}")
        parts.extend(part for name, found in commands for part in _describe(name, found))
    return "\n".join(parts)


def _overview(commands: list[tuple[str, Any]]) -> str:
    rows = (
        f"| [`{name}`](#steep-{name}) | {_cell(_summary(command))} |" for name, command in commands
    )
    return "\n".join(("| command | |", "|---|---|", *rows, ""))


def _describe(name: str, command: Any) -> Iterator[str]:
    """The section of a command, or of each command below it."""
    if hasattr(command, "commands"):
        yield f"### steep {name}\n\n{inspect.cleandoc(command.help)}\n"
        for below, found in command.commands.items():
            yield f"#### steep {name} {below}\n\n{_section(f'{name} {below}', found)}"
    else:
        yield f"### steep {name}\n\n{_section(name, command)}"


def _section(name: str, command: Any) -> str:
    context = command.make_context(name, [], resilient_parsing=True)
    usage = " ".join(["steep", name, *command.collect_usage_pieces(context)])
    lines = [f"```\n{usage}\n```\n", f"{inspect.cleandoc(command.help)}\n"]
    records = [p.get_help_record(context) for p in command.params]
    rows = [f"| `{names}` | {_cell(meaning)} |" for names, meaning in filter(None, records)]
    if rows:
        lines += ["| argument or option | meaning |", "|---|---|", *rows]
    return "\n".join((*lines, ""))


def _summary(command: Any) -> str:
    return " ".join(command.help.strip().partition("\n\n")[0].split())


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page to the site; mkdocs calls this hook (``mkdocs.yml``)."""
    files.append(File.generated(config, "commands.md", content=page()))
    return files
