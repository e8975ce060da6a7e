"""``steep compare``: tables of finished runs, with spread over seeds, and paired tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.options import JsonOption
from pipeline.cli.printing import add_row, console, print_json
from pipeline.core.atomic import text_output

if TYPE_CHECKING:
    from pipeline.evaluation.comparison_tables import Table


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...", help="directories of finished runs, or their names below runs/"
        ),
    ],
    dataset: Annotated[
        str,
        typer.Option(help="data set, single-hop, multi-hop, or all: the average over data sets"),
    ] = "all",
    as_json: JsonOption = False,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            help="file for the tables: an HTML page if it ends in .html, else Markdown",
        ),
    ] = None,
) -> None:
    """Compare finished runs by round, with their spread over seeds and paired tests.

    Runs whose settings differ in seeds alone are one row. Other rows are tested against the first.
    """
    from pipeline.evaluation.comparison_tables import markdown, tables
    from pipeline.report.comparison import comparison_page
    from pipeline.report.finished_run import compare_directories, run_directory

    comparison = compare_directories([run_directory(run) for run in runs])
    shown = list(tables(comparison, dataset))
    if output is not None:
        is_page = output.lower().endswith((".html", ".htm"))
        text = comparison_page(comparison, dataset) if is_page else markdown(shown)
        with text_output(output) as write:
            write(text)
    if as_json:
        print_json(comparison.to_json())
    elif output != "-":
        _print(shown)


def _print(shown: Sequence[Table]) -> None:
    from rich.table import Table as Grid
    from rich.text import Text

    for table in shown:
        grid = Grid(title=Text(table.title), caption=Text(table.note), title_justify="left")
        grid.caption_justify = "left"
        for name in table.header:
            grid.add_column(Text(name))
        for row in table.rows:
            add_row(grid, *row)
        console().print(grid)
