"""Gold coverage in the report: what the corpus lacks, and results over the other questions.

Input: the outputs of the stages ``coverage`` and ``corpus``, and the evaluation of every policy.
Output: variables of the results' tables and of ``coverage.html.j2``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.engine.store import read_output
from pipeline.evaluation.measured import RESAMPLES, read_outcomes
from pipeline.evaluation.metrics import metrics_rows
from pipeline.knowledge.corpus.coverage import ADDED, CoverageRow
from pipeline.knowledge.corpus.coverage import COVERAGE as FILE

NAMED = 20  # titles of passages that were added


def values(
    inputs: Mapping[str, Path], policies: Sequence[str], split: str, seed: int
) -> dict[str, Any]:
    """Template variables; ``answerable`` has rows by policy, split and data set.

    It is empty if all evaluated questions are covered. Raises StoreError when a file is missing.
    """
    if "coverage" not in inputs:
        return {"coverage": [], "lacking_titles": [], "answerable": {}, "added_gold": []}
    found = read_output(inputs["coverage"] / FILE)
    lacking = set(found["uncovered"].get(split, ()))
    answerable: dict[tuple[str, str, str], Mapping[str, Any]] = {}
    for policy in policies if lacking else ():
        outcomes = read_outcomes(inputs[f"evaluate-{policy}"]).outcomes
        covered = [outcome for outcome in outcomes if outcome.question_id not in lacking]
        if covered:
            rows = metrics_rows(policy, split, covered, {}, resamples=RESAMPLES, seed=seed)
            answerable |= {(policy, row["split"], row["dataset"]): row for row in rows}
    added = inputs["corpus"] / ADDED
    return {
        "coverage": [CoverageRow(**row) for row in found["rows"]],
        "lacking_titles": found["titles"],
        "answerable": answerable,
        "added_gold": read_output(added) if added.is_file() else [],
        "named": NAMED,
    }
