"""``steep evaluate``: metrics of any policies on any questions, or the stage ``evaluate``.

With ``--policy`` or ``--questions`` nothing of the run is made or changed: finished indexes and
policies are read, and each evaluation is kept beside the run.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pipeline.cli import options, runs
from pipeline.core.atomic import json_text, text_output

if TYPE_CHECKING:
    from rich.table import Table

    from tasks.evaluations import Evaluation

_PANEL = "Options with --policy or --questions"
_ONLY_WITH = ("dataset", "limit", "select", "json", "output")
_TESTED = ("em", "f1", "steps", "total")  # measures whose tests the terminal shows


def evaluate(
    context: typer.Context,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="base, sft, a round, RUN:ROUND, or the directory of an adapter; repeatable; without "
            "it all trained policies of the configuration",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    questions: Annotated[
        Path | None,
        typer.Option(
            help="file of any data set, or questions.parquet; without it the evaluation split",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="data set of the file, where it cannot be told", rich_help_panel=_PANEL),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="number of questions", rich_help_panel=_PANEL)
    ] = None,
    select: Annotated[
        Literal["first", "random"],
        typer.Option(help="which questions --limit takes", rich_help_panel=_PANEL),
    ] = "first",
    json: Annotated[
        bool, typer.Option("--json", help="print the rows as JSON", rich_help_panel=_PANEL)
    ] = False,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="JSON file for the rows", rich_help_panel=_PANEL),
    ] = None,
    config: options.ConfigOption = options.DEFAULT_CONFIGURATION,
    set: options.SetOption = None,
    data: options.DataOption = None,
    round: options.RoundOption = None,
    workers: options.WorkersOption = None,
    force: options.ForceOption = False,
    no_check: options.NoCheckOption = False,
) -> None:
    """Measure any policies on any questions; without both options run stage evaluate.

    The stage measures all policies of the configuration, with everything that it needs.
    """
    if not policy and questions is None:
        reason = "without --policy and --questions; give one of them"
        options.refuse_options(context, _ONLY_WITH, reason)
        runs.run("evaluate", config, set, data, round, workers, force, no_check)
        return
    options.refuse_options(context, ("round", "workers"), "with --policy or --questions; remove it")
    task = runs.stage_task("evaluate", config, set, data)
    from tasks.evaluations import evaluate as evaluate_policies
    from tasks.question_sets import QuestionChoice

    with contextlib.redirect_stdout(sys.stderr):  # progress, apart from the rows
        done = evaluate_policies(
            task,
            policy or (),
            QuestionChoice(questions, dataset, limit, select),
            force=force,
            check=not no_check,
        )
    if output is not None:
        with text_output(output) as write:
            write(json_text(done.rows, indent=1, allow_nan=False) + "\n")
    if json:
        typer.echo(json_text(done.rows, indent=2, allow_nan=False))
    elif output != "-":
        _print(done)


def _print(done: Evaluation) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(f"{done.questions.count:,} questions of {done.questions.source}", markup=False)
    console.print(_metrics_table([r for r in done.rows if r["split"] == done.questions.name]))
    if done.tests:
        console.print(_tests_table(done.tests))
    for policy in done.policies:
        console.print(f"{policy.name}: {policy.source}", markup=False, soft_wrap=True)
        console.print(f"  trajectories: {done.directories[policy.name]}", soft_wrap=True)


def _metrics_table(rows: list[dict[str, Any]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    names = ("policy", "data set", "n", "EM", "F1", "95 %", "CEM", "format", "steps", "tokens")
    table = Table(*names)
    for row in rows:
        interval = row["ci"]["f1"]
        table.add_row(
            Text(row["policy"]),
            Text(row["dataset"]),
            f"{row['n']:,}",
            f"{row['em']:.3f}",
            f"{row['f1']:.3f}",
            "" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}",
            f"{row['cem']:.3f}",
            f"{row['format_ok']:.3f}",
            f"{row['steps']:.2f}",
            f"{row['tokens']['total']:.0f}",
        )
    return table


def _tests_table(tests: list[dict[str, Any]]) -> Table:
    """Paired t-tests over all questions, of the measures in `_TESTED`."""
    from rich.table import Table
    from rich.text import Text

    table = Table("before", "after", "measure", "n", "difference", "95 %", "p")
    for test in tests:
        if test["dataset"] != "all" or test["measure"] not in _TESTED:
            continue
        low_high, p = test["interval"], test["p"]
        table.add_row(
            Text(test["before"]),
            Text(test["after"]),
            "tokens" if test["measure"] == "total" else test["measure"],
            f"{test['n']:,}",
            f"{test['difference']:+.3f}",
            "" if low_high is None else f"{low_high[0]:+.3f} to {low_high[1]:+.3f}",
            "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}",
        )
    return table
