"""Section "Failure modes" of the report: table and example trajectories.

Input: the metrics rows, and the directory of the stage ``evaluate`` for the failures of the last
policy. Output: the variables of ``failure_modes.html.j2``. They are empty for an evaluation without
failure modes, which the page reports.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.core.answer_metrics import ALL, is_average
from pipeline.core.record_io import read_records
from pipeline.core.records import Trajectory
from pipeline.evaluation.failures import LEGEND, FailureMode
from pipeline.report.data import trajectory_view
from pipeline.run.store import read_output

EVIDENCE_WIDTH = 200  # characters per piece of golden evidence; MuSiQue's pieces are paragraphs


def values(rows: Sequence[Mapping[str, Any]], evaluate: Path | None) -> dict[str, Any]:
    """Template variables: the failure modes that occur, rows by data set, examples.

    Raises StoreError or InputError when a file of the evaluation is missing or broken.
    """
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
        "failures": failures(evaluate) if main and evaluate else [],
    }


def failures(evaluate: Path) -> list[dict[str, Any]]:
    """Failed trajectories of the last policy, as `pipeline.evaluation.excerpts` selected them.

    ``failed_hop`` is a phrase such as "hop 1 of 2", or None.
    """
    diagnoses = read_output(evaluate / "failures.json")
    trajectories = read_records(evaluate / "failures.parquet", Trajectory)
    return [
        {
            "failure_mode": FailureMode(diagnosis["failure_mode"]),
            "failed_hop": diagnosis["hop"] and f"hop {diagnosis['hop']} of {diagnosis['hops']}",
            "question": trajectory.question,
            "dataset": trajectory.dataset,
            "gold": trajectory.answers,
            "evidence": [
                textwrap.shorten(piece, EVIDENCE_WIDTH, placeholder=" …")
                for piece in trajectory.evidence
            ],
            "trajectory": trajectory_view(trajectory, "Trajectory"),
        }
        for diagnosis, trajectory in zip(diagnoses, trajectories, strict=True)
    ]


def _count(row: Mapping[str, Any], failure_mode: FailureMode) -> Mapping[str, float]:
    count: Mapping[str, float] = row["failure_modes"][failure_mode.value]
    return count
