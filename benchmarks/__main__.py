"""``python -m benchmarks``: measure the selected rows, print one table and write JSON.

Rows are in `ROWS`. The rows in `OF_A_RUN` read a finished run. A row whose peer or run is missing
is left out, with a message, and the others are measured. Row ``run`` executes a whole run, so it is
measured only if it is named. An invalid option gives one sentence on standard error and exit status
2, as in the rest of steep.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from benchmarks.page import number, write_between_marks
from benchmarks.timing import LEAST_REPEATS, Row, machine
from pipeline.core.atomic import write_text
from pipeline.core.errors import DependencyError, InputError, StoreError

ROWS = (
    "kag",
    "store",
    "reward",
    "index",
    "growth",
    "sampling",
    "serving",
    "dpo",
    "no-op",
    "status",
    "pairs",
    "browse",
    "bill",
    "run",
)
OF_A_RUN = ("sampling", "serving", "dpo", "no-op", "status", "pairs")
_COMMANDS = OF_A_RUN[3:]


def main(
    rows: Annotated[str, typer.Option(help=f"comma-separated: {', '.join(ROWS)}")] = ",".join(
        ROWS[:-1]
    ),
    steps: Annotated[int, typer.Option(help="steps of row kag")] = 10_000,
    sizes: Annotated[str, typer.Option(help="triplets of row store")] = "100000,1000000",
    trajectories: Annotated[
        Path | None,
        typer.Option(help="sampled trajectories for row reward; the demonstration's by default"),
    ] = None,
    chunks: Annotated[
        str, typer.Option(help="corpora of rows growth and index")
    ] = "1000,10000,100000",
    run: Annotated[
        Path, typer.Option(help=f"directory of the finished run of rows {', '.join(OF_A_RUN)}")
    ] = Path("runs/embedded"),
    pairs: Annotated[int, typer.Option(help="pairs of row dpo")] = 64,
    questions: Annotated[int, typer.Option(help="questions of row sampling on this machine")] = 8,
    pages: Annotated[int, typer.Option(help="trajectories of row browse")] = 10_000,
    built: Annotated[
        Path | None,
        typer.Option(help="folder that stores the builds of rows growth and index for later runs"),
    ] = None,
    repeats: Annotated[int, typer.Option(help="timed rounds, at least 5")] = LEAST_REPEATS,
    output: Annotated[Path, typer.Option(help="JSON file")] = Path("runs/benchmarks.json"),
    page: Annotated[
        Path | None, typer.Option(help="page whose table is replaced, such as docs/log/bench.md")
    ] = None,
) -> None:
    """Measure the rows, print them as a table and write them as JSON."""
    selected = _names(rows)
    counts = _numbers("--sizes", sizes)
    corpora = _numbers("--chunks", chunks)
    _at_least("--chunks: the number of sizes", len(set(corpora)), 2)
    _at_least("--repeats", repeats, LEAST_REPEATS)
    for option, value in (
        ("--steps", steps), ("--pairs", pairs), ("--questions", questions), ("--pages", pages)
    ):  # fmt: skip
        _at_least(option, value, 1)
    about = machine()
    # Imported here, so that invalid options are reported before heavy packages are loaded.
    from benchmarks import (
        browse,
        commands,
        dpo,
        growth,
        index,
        kag,
        reward,
        sampling,
        serving,
        store,
    )
    from benchmarks.peers import Missing

    missing = Missing()
    measure: dict[str, Callable[[], list[Row]]] = {
        "kag": lambda: kag.rows(steps, repeats, missing),
        "store": lambda: store.rows(counts, repeats, missing),
        "reward": lambda: reward.rows(trajectories),
        "index": lambda: index.rows(sorted(set(corpora)), repeats, folder),
        "growth": lambda: growth.rows(sorted(set(corpora)), repeats, folder),
        "sampling": lambda: sampling.rows(run, questions, repeats),
        "serving": lambda: serving.rows(run, repeats),
        "dpo": lambda: dpo.rows(run, pairs, repeats),
        **{name: lambda name=name: commands.rows([name], run, repeats) for name in _COMMANDS},  # type: ignore[misc]
        "browse": lambda: browse.rows(pages),
        "bill": lambda: commands.bill(),
        "run": lambda: commands.whole_run(),
    }
    measured: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="growth-") as temporary:
        folder = built or Path(temporary)
        try:
            for name in selected:
                try:
                    measured += measure[name]()
                except (DependencyError, StoreError) as error:
                    missing.add(f"row {name} is left out: {error}")
        finally:  # an error in one row keeps the others
            _write(measured, about, missing.reasons, output, page)


def _write(
    rows: list[Row], about: dict[str, Any], left_out: list[str], output: Path, page: Path | None
) -> None:
    """Print the rows, and write them as JSON and to the page."""
    _print(rows, about)
    content = {
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": about,
        "rows": [row.as_json() for row in rows],
        "left_out": left_out,
    }
    write_text(output, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    if page is not None:
        write_between_marks(page, f"{_described(about)}.\n\n{_markdown(rows)}")
    for reason in left_out:
        print(reason)
    print(f"written to {output}")


_COLUMNS = ("row", "work", "ours", "peer", "", "unit", "ratio", "[lowest, highest]", "goal")


def _cells(row: Row) -> list[str]:
    return [
        row.name,
        row.work,
        number(median(row.ours)),
        row.peer_name,
        "–" if row.peer is None else number(median(row.peer)),
        row.unit,
        "–" if row.ratio is None else f"{row.ratio:.2f}",
        f"[{min(row.ratios):.2f}, {max(row.ratios):.2f}]" if row.ratios else "",
        row.goal,
    ]


def _described(about: dict[str, Any]) -> str:
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in about.items())


def _markdown(rows: list[Row]) -> str:
    """A table of few columns, so that the work fits in a line or two."""
    lines = [["row and work", "peer", "ours, and the peer's", "ratio", "goal"], ["---"] * 5]
    for name, work, ours, peer_name, peer, unit, ratio, between, goal in map(_cells, rows):
        figures = f"{ours} {unit}" if peer == "–" else f"{ours} and {peer} {unit}"
        lines.append([f"`{name}`: {work}", peer_name, figures, f"{ratio} {between}".strip(), goal])
    escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)


def _print(rows: list[Row], about: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=_described(about), title_justify="left")
    for column in _COLUMNS:
        numeric = column in ("ours", "", "ratio")
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*_cells(row))
    # A file or a pipe has no width, and a table folded to 80 columns is unreadable.
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in ROWS]
    if unknown or not names:
        names_text = ", ".join(map(repr, unknown)) or repr(text)
        raise InputError(f"--rows: no row {names_text}; rows: {', '.join(ROWS)}")
    return names


def _numbers(option: str, text: str) -> list[int]:
    try:
        numbers = [int(part.replace("_", "")) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option}: expected whole numbers with commas, got {text!r}") from None
    for value in numbers:
        _at_least(option, value, 1)
    return numbers


def _at_least(option: str, value: int, least: int) -> None:
    if value < least:
        raise InputError(f"{option} is {value}; expected at least {least}")


if __name__ == "__main__":
    from benchmarks.commands import launch

    launch(main)
