"""The plan of a run as a table, and as JSON: ``steep plan`` and ``steep check``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from pipeline.cli.printing import add_row, console, print_lines, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from tasks.planning.plan import Plan

_HOUR = 3600


def plan_json(plan: Plan | None) -> dict[str, Any] | None:
    """The plan with bytes and GPU hours; None without one."""
    if plan is None:
        return None
    return {
        "gpu_bytes": None if plan.gpu is None else plan.gpu.memory,
        "ram_bytes": round(plan.ram),
        "disk_bytes": round(plan.disk),
        "gpu_hours": round(plan.gpu_seconds / _HOUR, 2),
        "stages": [
            {
                "stage": stage.stage,
                "gpus": stage.gpus,
                "device_bytes": round(stage.device_bytes),
                "parts": {part.name: round(part.size) for part in stage.device},
                "ram_bytes": round(stage.ram),
                "disk_bytes": round(stage.disk),
                "gpu_hours": round(stage.gpu_seconds / _HOUR, 2),
                "unknown_models": list(stage.unknown),
            }
            for stage in plan.stages
        ],
    }


def print_plan(plan: Plan, downloads: Sequence[tuple[str, float | None]] = ()) -> None:
    """Print the table of a plan, and below it the facts that the table leaves out."""
    from tasks.planning.plan import summary

    if not plan.stages:
        return
    typer.echo("memory in GiB at the peak of each stage, disk and GPU hours of all its rounds")
    console(200).print(_table(plan))
    print_lines(summary(plan, downloads))
    unknown = sorted({model for stage in plan.stages for model in stage.unknown})
    if unknown:
        typer.echo(f"left out of the plan, because their shapes are unknown: {', '.join(unknown)}")


def _table(plan: Plan) -> Table:
    """One row for each stage."""
    from tasks.planning.memory import gib

    on_gpus = plan.gpu is not None
    amounts = (*(("GPUs", "on each", "GPU hours") if on_gpus else ()), "RAM", "disk")
    made = table(("stage",), amounts, ("parts on each GPU",) if on_gpus else ())
    for stage in plan.stages:
        cells = [stage.stage]
        if on_gpus:
            used = stage.device_bytes > 0
            cells += [
                str(stage.gpus) if used else "",
                gib(stage.device_bytes) if used else "",
                f"{stage.gpu_seconds / _HOUR:,.1f}" if stage.gpu_seconds else "",
            ]
        cells += [gib(stage.ram), gib(stage.disk)]
        if on_gpus:
            parts = [f"{part.name} {gib(part.size)}" for part in stage.device]
            cells.append(", ".join([*parts, *stage.notes]))
        add_row(made, *cells)
    return made
