"""Section "Failure modes" of the report: a table.

Input: the metrics rows. Output: the variables of ``failure_modes.html.j2``. They are empty for an
evaluation without failure modes, which the page reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.evaluation.failures import LEGEND, FailureMode
from pipeline.look.report.data import by_dataset


def values(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Template variables: the failure modes that occur, and rows by data set."""
    main = [row for row in rows if row["split"] == rows[0]["split"]]
    occurring = [
        mode for mode in FailureMode if any(row["failure_modes"][mode.value]["n"] for row in main)
    ]
    return {
        "failure_modes": {
            failure_mode.value: {
                "title": failure_mode.value.replace("_", " "),
                "meaning": LEGEND[failure_mode],
                "color": f"var(--{failure_mode.value.replace('_', '-')})",
            }
            for failure_mode in occurring
        },
        "failure_mode_rows": by_dataset(main),
    }
