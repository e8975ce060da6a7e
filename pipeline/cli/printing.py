"""The output of commands: tables as wide as the terminal, JSON, and plain lines."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from pipeline.core.atomic import STDOUT, json_text, text_output
from pipeline.core.errors import InputError
from pipeline.core.text import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from pipeline.evaluation.comparison_tables import Table as TextTable

_WIDTH = 160  # outside a terminal


def console(width: int = _WIDTH) -> Console:
    """A console as wide as the terminal, or ``width`` outside one."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else width)


def table(header: Sequence[str], rows: Iterable[Iterable[object]], right: int = 0) -> Table:
    """A table of plain texts, in which brackets are not markup.

    The last ``right`` columns are aligned to the right.
    """
    from rich.table import Table
    from rich.text import Text

    made = Table()
    for place, heading in enumerate(header, start=right - len(header)):
        made.add_column(Text(heading), justify="left" if place < 0 else "right")
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    return made


def print_tables(shown: Iterable[TextTable]) -> None:
    """Print tables of texts, each with its title and its note."""
    from rich.text import Text

    for each in shown:
        grid = table(each.header, each.rows)
        grid.title, grid.caption = Text(each.title), Text(each.note)
        grid.title_justify = grid.caption_justify = "left"
        console().print(grid)


def check_markdown(output: str | None) -> None:
    """Raise InputError unless the file for tables has a name of Markdown; ``-`` is stdout."""
    if output not in (None, STDOUT) and not output.endswith(".md"):
        raise InputError(f"--output is {output}, and the tables are Markdown; name a .md file")


def show_tables(shown: Sequence[TextTable], output: str | None, value: Any) -> None:
    """Write tables to ``output`` as Markdown, and print ``value`` as JSON, or without it them."""
    from pipeline.evaluation.comparison_tables import markdown

    if output is not None:
        with text_output(output) as write:
            write(markdown(shown))
    if value is not None:
        print_json(value)
    elif output != STDOUT:
        print_tables(shown)


def print_json(value: Any, indent: int | None = 2) -> None:
    """Print a value as JSON, data classes as objects.

    Raises ValueError for numbers that JSON does not have.
    """
    typer.echo(json_text(value, indent=indent, allow_nan=False, default=asdict))


def print_lines(lines: Iterable[str], *, err: bool = False) -> None:
    """Print lines, without control characters."""
    for line in lines:
        typer.echo(visible(line), err=err)


def silence_model_loading() -> None:
    """Turn off progress bars and warnings that libraries print while a model loads."""
    import logging

    from transformers.utils import logging as transformers_logging

    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    transformers_logging.disable_progress_bar()
