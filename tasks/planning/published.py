"""The section *Published runs* of ``docs/scale.md``: time, memory and disk of the published configurations.

``python -m tasks.planning.published`` writes the section into the page; a test compares them. Sizes are those
of the published data sets, memory is that of `tasks.planning.memory` and time that of
`tasks.planning.gpu_time`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.config import load
from pipeline.core.atomic import write_text
from pipeline.core.gpus import GIB, nominal_gpu
from tasks.checks.uses import stage_names
from tasks.planning.gpu_time import gpu_seconds
from tasks.planning.memory import MemoryPlan, memory_plan
from tasks.planning.rates import ASSUMED, rates
from tasks.planning.sizes import (
    HYPEREDGES_PER_CHUNK,
    NEW_PARAGRAPHS,
    published_count,
    sizes_of,
)
from tasks.report import Report

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
BEGIN, END = "<!-- published runs -->", "<!-- end of published runs -->"
RUNS: Mapping[str, str] = {
    "tearag-llama3-8b": "TeaRAG 8B",
    "tearag-qwen2.5-14b": "TeaRAG 14B",
    "hiprag-qwen2.5-3b": "HiPRAG 3B",
    "hiprag-qwen2.5-7b": "HiPRAG 7B",
    "prograph-qwen2.5-3b": "ProGraph 3B",
    "prograph-qwen2.5-7b": "ProGraph 7B",
}
GPU_GB = 80.0
_HOURS = (
    "graph", "hypergraph", "index", "sft-data", "sft", "sample", "judge", "score", "train", "evaluate",
    "judge-policy",
)  # fmt: skip
_ON_GPU = (
    "graph", "hypergraph", "index", "hyper-index", "sft-data", "sft", "sample", "judge", "score", "train",
    "evaluate-policy",
)  # fmt: skip


@dataclass(frozen=True)
class PublishedRun:
    """One published configuration: its plan on GPUs of 80 GB, and its GPU seconds by stage."""

    title: str
    gpus: int
    plan: MemoryPlan
    seconds: Mapping[str, float]


def published_runs() -> list[PublishedRun]:
    """The plans of all published configurations."""
    runs = []
    for name, title in RUNS.items():
        settings = load(name)
        sizes = sizes_of(settings, published_count)
        stages = stage_names(Report(config=name))
        gpus = [nominal_gpu(GPU_GB)] * settings.gpus
        plan = memory_plan(settings, stages, sizes, gpus)
        runs.append(PublishedRun(title, settings.gpus, plan, gpu_seconds(settings, sizes)))
    return runs


def section() -> str:
    """The section as Markdown, between its marks."""
    runs = published_runs()
    usable = (nominal_gpu(GPU_GB).memory or 0) / GIB
    parts = [
        BEGIN,
        "## Published runs",
        "",
        "GPU hours, memory, RAM and disk of the six published configurations, from the code of `steep check` "
        "(`tasks/planning/`). **They are computed, not measured.** `python -m tasks.planning.published` writes "
        "this section, and a test compares it with the code.",
        "",
        "### GPU hours on A100s of 80 GB",
        "",
        *_table("stage", runs, _hours(runs)),
        "",
        "| TeaRAG's own training, 8 A100s (table 9) | paper, 8B | computed, 8B | paper, 14B | computed, 14B |",
        "|---|---|---|---|---|",
        *_beside_paper(runs),
        "",
        "The paper's minutes are wall time: 681 for 8B and 752 for 14B in all, extraction, indexing and evaluation "
        "not included. Their GPUs wait in the authors' loop, about .5 s for each trajectory and .42 s for each "
        "reward with 8B; the computed hours contain no waiting. Part `rollout` of the [GPU check](gpu.md) measures "
        "how many trajectories a GPU finishes in our loop. Work of the CPU, such as joining the graph and training "
        "the indexes, is not in these hours. Memory per GPU was 42 GB and 61 GB in "
        "the paper's training.",
        "",
        f"### Memory of each GPU, GiB at the peak of {usable:.1f}",
        "",
        *_table("stage", runs, _memory(runs)),
        "",
        "Engines take the share that `gpu_memory_utilization` gives them, so `sample` and `evaluate` are near "
        "the limit on purpose: what is left of the share is cache.",
        "",
        "### The host: GiB",
        "",
        *_table("", runs, _host(runs)),
        "",
        "RAM is highest in sampling, where every process holds the vector indexes (`retrieval.service` keeps them "
        "in one), and in training, where every process holds its libraries and reads one file of the base weights "
        "at a time. The index holds its vectors twice until it is done.",
        "",
        "### Rates",
        "",
        "These are all the rates and amounts that plans and schedules assume (`tasks/planning/rates.py`). What the "
        "GPU check has measured ([docs/gpu.json](gpu.md)) stands in the place of what is assumed.",
        "",
        "| rate or amount | value | from |",
        "|---|---|---|",
        *(
            f"| {meaning} | {_number(value)} | {origin} |"
            for meaning, value, origin in rates().rows()
        ),
        f"| hyperedges of a chunk | {HYPEREDGES_PER_CHUNK:g} | {ASSUMED} |",
        f"| share of the paragraphs of question files that are new | {NEW_PARAGRAPHS:g} | {ASSUMED} |",
        "",
        "Triplets and entities of a chunk are those of TeaRAG's tables 4 and 5.",
        END,
    ]
    return "\n".join(map(_wrapped, parts))


def _wrapped(line: str) -> str:
    """The line, wrapped unless it is part of a table."""
    return line if line.startswith(("|", "<", "#")) else textwrap.fill(line, 120)


def _table(
    corner: str, runs: Sequence[PublishedRun], rows: Sequence[tuple[str, Sequence[str]]]
) -> list[str]:
    titles = [f"{run.title} ({run.gpus} GPUs)" for run in runs]
    lines = [f"| {' | '.join([corner, *titles])} |", "|---" * (len(runs) + 1) + "|"]
    return [*lines, *(f"| {' | '.join([name, *cells])} |" for name, cells in rows)]


def _hours(runs: Sequence[PublishedRun]) -> list[tuple[str, list[str]]]:
    rows = []
    for stage in _HOURS:
        hours = [run.seconds.get(stage, 0.0) / 3600 for run in runs]
        if any(hours):
            rows.append((f"`{stage}`", [f"{hour:,.1f}" if hour else "–" for hour in hours]))
    totals = [sum(run.seconds.values()) / 3600 for run in runs]
    rows.append(("all", [f"{hour:,.0f}" for hour in totals]))
    walls = [total / run.gpus for total, run in zip(totals, runs, strict=True)]
    rows.append(("all, on its GPUs", [f"{wall:,.0f} h" for wall in walls]))
    return rows


def _beside_paper(runs: Sequence[PublishedRun]) -> list[str]:
    paper = {"training": (85, 115), "sampling": (376, 417), "rewards": (220, 220)}
    stages = {"training": ("sft", "train"), "sampling": ("sample",), "rewards": ("score",)}
    lines = []
    for name, minutes in paper.items():
        cells = [name]
        for run, published in zip(runs[:2], minutes, strict=True):
            seconds = sum(run.seconds.get(stage, 0.0) for stage in stages[name])
            cells += [f"{published} min", f"{seconds / run.gpus / 60:,.0f} min"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _memory(runs: Sequence[PublishedRun]) -> list[tuple[str, list[str]]]:
    rows = []
    for stage in _ON_GPU:
        found = [_device_bytes(run.plan, stage) for run in runs]
        if any(found):
            cells = [f"{size / GIB:.1f}" if size else "–" for size in found]
            rows.append((f"`{stage}`", cells))
    return rows


def _device_bytes(plan: MemoryPlan, name: str) -> float:
    return sum(stage.device_bytes for stage in plan.stages if stage.stage == name)


def _host(runs: Sequence[PublishedRun]) -> list[tuple[str, list[str]]]:
    return [
        ("RAM, largest stage", [f"{run.plan.ram / GIB:,.0f}" for run in runs]),
        ("disk", [f"{run.plan.disk / GIB:,.0f}" for run in runs]),
    ]


def _number(value: float) -> str:
    return f"{value:.2e}" if value >= 1e6 or value < 1e-3 else f"{value:g}"


def main() -> None:
    """Replace the section in the page."""
    page = PAGE.read_text(encoding="utf-8")
    before, found, rest = page.partition(BEGIN)
    after = rest.partition(END)[2] if found else "\n"
    write_text(PAGE, f"{before}{section()}{after}")


if __name__ == "__main__":
    main()
