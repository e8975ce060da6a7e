"""``steep compare --output FILE.html``: several runs on one page.

Input: a `Comparison`. Output: one HTML page without scripts or external links: EM by policy of all
runs as a figure, tables with spread and paired tests for every data set, and the settings that
differ.
"""

from __future__ import annotations

from typing import Any

from pipeline.core.text import visible
from pipeline.evaluation import plots
from pipeline.evaluation.comparison_tables import (
    described,
    measure_tables,
    pairs_table,
    runs_table,
    settings_table,
)
from pipeline.evaluation.policy_names import in_order, of_run, policy_title
from pipeline.evaluation.run_comparison import Comparison
from pipeline.report.html_pages import page_environment
from pipeline.report.page import TEMPLATES


def comparison_page(comparison: Comparison, dataset: str) -> str:
    """The page, the tables of ``dataset`` first. Raises InputError when no run has such rows."""
    from markupsafe import Markup

    labels = [group["label"] for group in comparison.groups]
    others = dict.fromkeys(row["dataset"] for row in comparison.means if row["dataset"] != dataset)
    environment = page_environment(TEMPLATES)
    environment.filters |= {
        "policy": policy_title,
        "svg": lambda figure: Markup(visible(figure)),  # only for figures of `plots`
    }
    return environment.get_template("comparison.html.j2").render(
        labels=labels,
        count=sum(len(group["runs"]) for group in comparison.groups),
        colors=[plots.series_color(plots.run_series(place), 1) for place in range(len(labels))],
        runs=runs_table(comparison),
        figures={
            title: plots.run_curves(*_curves(comparison, dataset, measure), scale)
            for measure, title, scale in (
                ("em", "EM, %", 100),
                ("f1", "F1, %", 100),
                ("steps", "Steps", 1),
                ("total", "Tokens", 1),
            )
        },
        dataset=described(dataset),
        tables=measure_tables(comparison, dataset),
        others={described(name): measure_tables(comparison, name) for name in others},
        pairs=pairs_table(comparison) if comparison.pairs else None,
        settings=settings_table(comparison) if comparison.settings else None,
    )


def _curves(
    comparison: Comparison, dataset: str, measure: str
) -> tuple[list[str], list[plots.RunPoints]]:
    """Titles of the policies, and the points of each run."""
    rows = [
        row
        for row in comparison.means
        if (row["dataset"], row["measure"]) == (dataset, measure)
    ]  # fmt: skip
    policies = in_order(row["policy"] for row in rows)
    found: dict[tuple[str, str], dict[str, Any]] = {(r["group"], r["policy"]): r for r in rows}
    curves: list[plots.RunPoints] = []
    for group in comparison.groups:
        cells = {
            policy: found[group["label"], policy]
            for policy in policies
            if (group["label"], policy) in found
        }
        trained = of_run(cells)
        curves.append(
            [
                (place, cell["mean"], cell["spread"] or 0.0, policy in trained)
                for place, policy in enumerate(policies)
                if (cell := cells.get(policy)) is not None
            ]
        )
    return [policy_title(policy) for policy in policies], curves
