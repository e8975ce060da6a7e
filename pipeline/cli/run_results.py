"""The end of ``steep run``: EM of every policy, what the reward does, and where to look next.

Input: the figures of a finished report in the run's directory. Output: lines of plain text, the same in a
terminal and in a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.core.answer_metrics import ALL, is_average
from pipeline.evaluation.policy_names import policy_title
from pipeline.stages.report_data import read_json


def result_lines(run_dir: Path) -> Iterator[str]:
    """The lines of a run with a report. Raises StoreError when a file of the report is broken."""
    rows: list[dict[str, Any]] = read_json(run_dir / "metrics.json")
    figures = read_json(run_dir / "report.json")
    if rows:
        yield from _table(rows)
    for sentence in (figures["verdict"], *figures["constant_judges"]):
        if sentence:
            yield sentence
    yield f"report:  {run_dir / 'report.html'}"
    yield f"browser: steep browse --config {run_dir / 'config.yaml'}"


def _table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """EM of every policy with its interval; cover EM too where steps were judged, as HiPRAG reports it."""
    split = rows[0]["split"]
    main = [row for row in rows if row["split"] == split]
    averages = [row for row in main if row["dataset"] == ALL]
    datasets = {row["dataset"] for row in main if not is_average(row["dataset"])}
    measures = {"em": "EM"}
    if any(row["osr"] is not None or row["usr"] is not None for row in averages):
        measures["cem"] = "cover EM"
    width = max(len("policy"), *(len(policy_title(row["policy"])) for row in averages))
    yield f"{'policy':<{width}}" + "".join(
        f"  {title:>8}  95 % interval" for title in measures.values()
    )
    for row in averages:
        cells = "".join(f"  {100 * row[m]:8.1f}  {_interval(row['ci'][m]):<13}" for m in measures)
        yield f"{policy_title(row['policy']):<{width}}{cells}".rstrip()
    yield (
        f"{averages[0]['n']:,} questions of {split}, average over {len(datasets)} data "
        f"{'set' if len(datasets) == 1 else 'sets'}"
    )


def _interval(bounds: Sequence[float] | None) -> str:
    return "" if bounds is None else f"{100 * bounds[0]:.1f} to {100 * bounds[1]:.1f}"
