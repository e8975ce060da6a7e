"""``steep calibrate``: accuracy, precision and recall of a judge, as a table or JSON.

Input: verdicts of a judge and reference verdicts (of an oracle or a person) on the same steps, as
the stage ``judge`` writes them or as JSONL with the fields of `Verdict`. Output: one row per kind
of step.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.options import (
    Chosen,
    JsonOption,
    RoundOption,
    refuse_options,
    with_configuration,
)
from pipeline.cli.printing import console, print_json, table
from pipeline.core.errors import STDIN, InputError
from pipeline.core.record_io import iterate_records
from pipeline.core.verdicts import Verdict
from pipeline.judges import search_errors
from pipeline.judges.search_errors import Calibration

# Settings of the exact judge; the table reports steps that it leaves undecided.
EXACT_JUDGE = (
    "judges.over={backend: closed-world}",
    "judges.under={backend: closed-world}",
    "judges.unknown_ceiling=1",
)


@with_configuration
def calibrate(
    context: typer.Context,
    chosen: Chosen,
    judged: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="verdicts; without it the judges of --config judge the round"
        ),
    ] = None,
    truth: Annotated[Path | None, typer.Option(help="reference verdicts on the same steps")] = None,
    round: RoundOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare a judge with reference verdicts, or with the closed world's truth."""
    if (judged is None) != (truth is None):
        raise InputError(
            "name both files of verdicts (FILE --truth FILE), or neither and a --config"
        )
    if judged is not None and truth is not None:
        names = ("config", "variant", "set", "data", "round")
        refuse_options(context, names, "with FILE, which runs no stage; remove one of them")
    else:
        tasks = [chosen.task("judge", round, judges) for judges in ((), EXACT_JUDGE)]
        from pipeline.engine.run import run

        judged, truth = (run(task) / "verdicts.parquet" for task in tasks)
    rows = compare(judged, truth)
    if as_json:
        print_json([row.as_json() for row in rows])
        return
    heads = ("accuracy", "precision", "recall")
    counts = ("true_yes", "false_yes", "true_no", "false_no", "unknown", "undecided")
    lines = (
        (
            row.kind, f"{row.n:,}", *(_percent(getattr(row, name)) for name in heads),
            *(f"{getattr(row, name):,}" for name in counts),
        )
        for row in rows
    )  # fmt: skip
    header = ("search", "n", *heads, *(name.replace("_", " ") for name in counts))
    console().print(table(header, lines))


def compare(judged: Path | str, truth: Path | str) -> list[Calibration]:
    """Calibrations from two files of verdicts.

    The first file is read one verdict at a time; the verdicts of the second are held in memory.
    Raises InputError when a file cannot be read or names a step twice, and when the files have no
    step in common.
    """
    if str(judged) == str(truth) == STDIN:
        raise InputError("standard input is named for both files of verdicts; name two files")
    rows = search_errors.calibrate(_distinct(judged), _distinct(truth))
    if not any(row.n + row.unknown + row.undecided for row in rows):
        raise InputError(f"{judged} and {truth} have no step in common; expected equal id and step")
    return rows


def _distinct(path: Path | str) -> Iterator[Verdict]:
    """The verdicts of a file; raises InputError when two are on one step."""
    seen: set[tuple[str, int, str]] = set()
    for verdict in iterate_records(path, Verdict):
        key = (verdict.id, verdict.step, verdict.kind)
        if key in seen:
            problem = f"two verdicts ({verdict.kind}) on step {verdict.step} of {verdict.id!r}"
            raise InputError.at(path, f"{problem}; keep one")
        seen.add(key)
        yield verdict


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"
