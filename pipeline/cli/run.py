"""``steep run`` and ``steep status``: the stages of a configuration, run or shown.

A run ends with plain lines, the same in a terminal and in a file: EM of every policy, a sentence on
the reward, and where to look next.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.options import (
    Chosen,
    JsonOption,
    NoCheckOption,
    RoundOption,
    StageArgument,
    WorkersOption,
    complete_stages,
    with_configuration,
)
from pipeline.cli.printing import console, print_json, print_lines, table
from pipeline.core.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from pipeline.engine.status import StageState

_COLORS = {
    "done": "green", "reused": "green", "running": "cyan", "missing": "dim", "stale": "yellow",
    "failed": "red", "damaged": "red",
}  # fmt: skip


@with_configuration
def run(
    chosen: Chosen,
    stage: StageArgument = "report",
    round: RoundOption = None,
    workers: WorkersOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="run this stage again, even if done")
    ] = False,
    no_check: NoCheckOption = False,
    list_stages: Annotated[bool, typer.Option("--list", help="list the stages instead")] = False,
) -> None:
    """Run a stage and all incomplete stages that it needs.

    A whole run ends with its result: EM of every policy, and where to look next.
    """
    if list_stages:
        from tasks import STAGES

        for name, listed in STAGES.items():
            if listed.named:
                typer.echo(f"{name:<20}  {listed.help}")
        return
    task = chosen.task(stage, round)
    from pipeline.engine.run import run as run_task

    directory = run_task(task, workers=workers, force=force, keep_config=True, check=not no_check)
    if stage != "report":
        typer.echo(str(directory))
        return
    print_lines(result_lines(task.settings.run_dir))


def result_lines(run_dir: Path) -> Iterator[str]:
    """The lines of a run with a report. Raises StoreError when a file of the report is broken."""
    from pipeline.engine.store import read_output

    rows: list[dict[str, Any]] = read_output(run_dir / "metrics.json")
    figures = read_output(run_dir / "report.json")
    if rows:
        yield from _results(rows, figures["average"])
    for sentence in (*figures["parted"], figures["verdict"], *figures["constant_judges"]):
        if sentence:
            yield sentence
    yield f"report:  {run_dir / 'report.html'}"
    yield f"browser: steep browse --config {shlex.quote(str(run_dir / 'config.yaml'))}"
    if figures["control"]:
        yield f"control (outcome and format rewards alone): {figures['control']}"


def _results(rows: Sequence[Mapping[str, Any]], average: str) -> Iterator[str]:
    """The measures of answers of every policy: the row ``average``, the other one if it differs.

    EM has its interval. For judged steps CEM has its interval too, because HiPRAG's tables show it.
    """
    from pipeline.core.answer_metrics import (
        ALL,
        ALL_QUESTIONS,
        AVERAGE_TITLES,
        OF_ANSWERS,
        is_average,
    )
    from pipeline.evaluation.compare import interval_text
    from pipeline.evaluation.policy_names import policy_title

    split = rows[0]["split"]
    main = [row for row in rows if row["split"] == split]
    averages = [row for row in main if row["dataset"] == average]
    datasets = {row["dataset"] for row in main if not is_average(row["dataset"])}
    judged = any(row["osr"] is not None or row["usr"] is not None for row in averages)
    bounded = ("em", "cem") if judged else ("em",)

    def line(title: str, cells: Mapping[str, str], bounds: Mapping[str, str]) -> str:
        parts = (
            f"  {cells[name]:>6}" + (f"  {bounds[name]:<15}" if name in bounds else "")
            for name in OF_ANSWERS
        )
        return f"{title:<{width}}{''.join(parts)}".rstrip()

    def cells_of(row: Mapping[str, Any]) -> dict[str, str]:
        return {name: f"{scale * row[name]:.{d}f}" for name, (_, scale, d) in OF_ANSWERS.items()}

    width = max(len("policy"), *(len(policy_title(row["policy"])) for row in averages))
    titles = {name: title for name, (title, _, _) in OF_ANSWERS.items()} | {"words": "words"}
    yield line("policy", titles, dict.fromkeys(bounded, "95 % interval"))
    sets = f"{averages[0]['n']:,} questions of {split} from {len(datasets)} data "
    sets += f"{'set' if len(datasets) == 1 else 'sets'}, "
    shown = [cells_of(row) for row in averages]
    for row_name in (average, *{ALL, ALL_QUESTIONS} - {average}):
        found = [row for row in main if row["dataset"] == row_name]
        if row_name != average and [cells_of(row) for row in found] == shown:
            continue
        for row in found:
            bounds = {name: interval_text(row["ci"][name], scale=100) for name in bounded}
            yield line(policy_title(row["policy"]), cells_of(row), bounds)
        yield f"{sets}{AVERAGE_TITLES[row_name]}; words are those of the answer"


@with_configuration
def status(
    chosen: Chosen,
    why: Annotated[
        str | None,
        typer.Option(
            "--why", help="stage to explain, such as sample:2", autocompletion=complete_stages
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the state of every stage; with --why, the reason that one would run."""
    from pipeline.engine import status as states

    if why is not None:
        lines = states.why(chosen.task(*_stage_and_round(why)))
        print_json(lines, indent=None) if as_json else print_lines(lines)
        return
    rows = states.status(chosen.task())
    if as_json:
        print_json(rows)
        return
    console().print(table_of(rows))
    print_lines(notes_of(rows))


def _stage_and_round(why: str) -> tuple[str, int | None]:
    """Stage and round of ``sample:2``. Raises InputError when no number follows the colon."""
    stage, colon, number = why.partition(":")
    if colon and not number.isdecimal():
        raise InputError(
            f"--why is {why!r}; expected a stage, or a stage and round such as sample:2"
        )
    return stage, int(number) if colon else None


def table_of(rows: Sequence[StageState]) -> Table:
    """One row for each stage: state, seconds, rows or known progress, directory."""
    from rich.text import Text

    def cells(row: StageState) -> tuple[object, ...]:
        counts = ", ".join(f"{value:,} {name}" for name, value in row.counts.items())
        message = "" if row.state == "failed" else row.message or ""  # it is told below the table
        seconds = "" if row.wall_seconds is None else f"{row.wall_seconds:.0f}"
        state = "damaged" if row.damage else row.state
        color, place = Text(state, _COLORS.get(state, "")), os.path.relpath(row.directory)
        return row.label, color, seconds, counts or message, place

    return table(("stage", "state", "seconds", "rows", "directory"), map(cells, rows))


def notes_of(rows: Sequence[StageState]) -> list[str]:
    """One line for each failure, each damaged file and each command that makes an output again.

    Stages that failed for the same reason share a line.
    """
    notes = []
    failed: dict[str, list[str]] = {}
    for row in rows:
        if row.state == "failed" and row.message:
            failed.setdefault(row.message, []).append(row.label)
    for message, labels in failed.items():
        notes.append(f"{', '.join(labels)} failed: {message}")
    for row in rows:
        notes += [f"{row.label} is damaged: {line}" for line in row.damage]
        if row.remake:
            notes.append(f"{row.label}: make it again: {row.remake}")
    return notes
