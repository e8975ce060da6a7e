"""``steep evaluate``: metrics of policies beside a run. ``steep compare``: finished runs."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pipeline.cli.options import (
    NAMES_OF_POLICIES,
    Chosen,
    JsonOption,
    MarkdownOption,
    NoCheckOption,
    with_configuration,
)
from pipeline.cli.printing import check_markdown, console, print_json, show_tables, table
from pipeline.core.atomic import json_text, text_output
from pipeline.core.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from pipeline.serving.evaluations import Evaluation

_UNSHOWN = ("format_ok", "searches", "thinking", "retrieved")  # tests that are in files alone


@with_configuration
def evaluate(
    chosen: Chosen,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{NAMES_OF_POLICIES}; repeatable; "
            "without it all trained policies of the configuration",
        ),
    ] = None,
    questions: Annotated[
        Path | None,
        typer.Option(
            help="file of any data set, or questions.parquet; without it the evaluation split",
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="data set of the file, where it cannot be told"),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="number of questions")] = None,
    select: Annotated[
        Literal["first", "random"],
        typer.Option(help="which questions --limit takes"),
    ] = "first",
    samples: Annotated[
        int,
        typer.Option(
            help="trajectories per question, for pass@k, majority@k and diversity; at "
            "sampling.temperature unless evaluation.temperature > 0: greedy ones would be equal",
        ),
    ] = 1,
    as_json: JsonOption = False,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="JSON file for the rows"),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="evaluate again, even if it is done")
    ] = False,
    no_check: NoCheckOption = False,
) -> None:
    """Measure any policies on any questions.

    Nothing of the run is made or changed: finished indexes and policies are read, and each
    evaluation is kept beside the run.
    """
    if not policy and questions is None:
        raise InputError(
            "steep evaluate: name --policy, --questions or both; steep run evaluate runs the stage"
        )
    task = chosen.task("evaluate")
    from pipeline.serving.evaluations import evaluate as evaluate_policies

    with contextlib.redirect_stdout(sys.stderr):  # progress, apart from the rows
        done = evaluate_policies(
            task, policy or (), questions, dataset=dataset, limit=limit, select=select,
            samples=samples, force=force, check=not no_check,
        )  # fmt: skip
    if output is not None:
        with text_output(output) as write:
            write(json_text(done.rows, indent=1, allow_nan=False) + "\n")
    if as_json:
        print_json(done.rows)
    elif output != "-":
        _print(done)


def _print(done: Evaluation) -> None:
    from pipeline.core.answer_metrics import ALL
    from pipeline.evaluation.compare import parted
    from pipeline.evaluation.policy_names import policy_title

    terminal = console()
    terminal.print(f"{done.questions.count:,} questions of {done.questions.source}", markup=False)
    rows = [row for row in done.rows if row["split"] == done.questions.name]
    terminal.print(metrics_table(rows))
    if done.sampled is not None:
        terminal.print(done.sampled, markup=False)
        terminal.print(_sampled_table(rows))
    if done.tests:
        terminal.print(_tests_table(done.tests))
        for sentence in parted(test for test in done.tests if test["dataset"] == ALL):
            terminal.print(sentence, markup=False)
    for name, policy in done.policies.items():
        terminal.print(f"{policy_title(name)}: {policy.source}", markup=False, soft_wrap=True)
        terminal.print(f"  trajectories: {done.directories[name]}", soft_wrap=True)


def metrics_table(rows: list[dict[str, Any]]) -> Table:
    """The rows of ``metrics.json`` as a table; imported outputs have no counts of tokens."""
    from pipeline.evaluation.compare import interval_text
    from pipeline.evaluation.policy_names import policy_title

    header = "policy", "data set", "questions", "EM", "95 %", "F1", "CEM", "words", "well-formed"
    lines = (
        [
            policy_title(row["policy"]), row["dataset"], f"{row['n']:,}", f"{100 * row['em']:.1f}",
            interval_text(row["ci"]["em"], scale=100), f"{100 * row['f1']:.1f}",
            f"{100 * row['cem']:.1f}", f"{row['words']:.2f}", f"{100 * row['format_ok']:.1f}",
            f"{row['steps']:.2f}", f"{total:.0f}" if (total := row["tokens"]["total"]) else "–",
        ]
        for row in rows
    )  # fmt: skip
    return table([*header, "steps", "tokens"], lines)


def _sampled_table(rows: list[dict[str, Any]]) -> Table:
    """The measures of several trajectories per question, each above its interval."""
    from pipeline.evaluation.compare import interval_text
    from pipeline.evaluation.comparison_tables import shown_as
    from pipeline.evaluation.metrics import MEASURES
    from pipeline.evaluation.policy_names import policy_title

    names = ["em", *(name for name in rows[0]["ci"] if name not in MEASURES)]
    shown = {name: shown_as(name) for name in names}
    lines = [[policy_title(row["policy"]), row["dataset"]] for row in rows]
    for line, row in zip(lines, rows, strict=True):
        for name, (_, scale, digits) in shown.items():
            both = [row[name]], row["ci"][name]
            line.append("\n".join(interval_text(b, scale=scale, form=f".{digits}f") for b in both))
    return table(["policy", "data set", *(title for title, *_ in shown.values())], lines)


def _tests_table(tests: list[dict[str, Any]]) -> Table:
    """Paired t-tests of both averages, without the measures in `_UNSHOWN`."""
    from pipeline.core.answer_metrics import ALL, ALL_QUESTIONS
    from pipeline.evaluation.comparison_tables import test_cells
    from pipeline.evaluation.policy_names import policy_title

    lines = (
        [*map(policy_title, (test["before"], test["after"])), test["dataset"], *test_cells(test)]
        for test in tests
        if test["dataset"] in (ALL, ALL_QUESTIONS) and test["measure"] not in _UNSHOWN
    )
    header = ("before", "after", "data set", "measure", "questions", "difference", "95 %", "p")
    return table(header, lines)


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...", help="directories of finished runs, or their names below runs/"
        ),
    ],
    dataset: Annotated[
        str,
        typer.Option(
            help="data set or average: all (data sets), all-questions, single-hop, multi-hop"
        ),
    ] = "all",
    as_json: JsonOption = False,
    output: MarkdownOption = None,
) -> None:
    """Compare finished runs by round, with their spread over seeds and paired tests.

    Runs whose settings differ in seeds alone are one row. Other rows are tested against the first.
    """
    check_markdown(output)
    from pipeline.evaluation.comparison_tables import tables
    from pipeline.look.report.finished_run import compare as compare_finished

    comparison = compare_finished(runs)
    shown = tables(comparison, dataset)
    show_tables(shown, output, comparison if as_json else None)
