"""Section "Failure modes" of the report: a table.

Input: the metrics rows. Output: the variables of ``failure_modes.html.j2``. They are empty for an
evaluation without failure modes, which the page reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.core.answer_metrics import ALL, is_average
from pipeline.evaluation.failures import LEGEND, FailureMode


def values(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Template variables: the failure modes that occur, and rows by data set."""
    main = [row for row in rows if row["split"] == rows[0]["split"]]
    datasets = list(dict.fromkeys(row["dataset"] for row in main if not is_average(row["dataset"])))
    groups = {
        dataset: [row for row in main if row["dataset"] == dataset]
        for dataset in ([ALL, *datasets] if main else [])
    }
    occurring = [m for m in FailureMode if any(_count(row, m)["n"] for row in groups.get(ALL, []))]
    return {
        "failure_modes": {
            failure_mode.value: {
                "title": failure_mode.value.replace("_", " "),
                "meaning": LEGEND[failure_mode],
                "color": f"var(--{failure_mode.value.replace('_', '-')})",
            }
            for failure_mode in occurring
        },
        "failure_mode_rows": groups,
    }


def _count(row: Mapping[str, Any], failure_mode: FailureMode) -> Mapping[str, float]:
    count: Mapping[str, float] = row["failure_modes"][failure_mode.value]
    return count
