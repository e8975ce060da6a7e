"""``steep plan``: what a run would do and cost, and afterwards what it did."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.options import (
    DEFAULT_CONFIGURATION,
    ConfigOption,
    DataOption,
    JsonOption,
    RoundOption,
    SetOption,
    WorkersOption,
)
from pipeline.cli.plan_tables import plan_lines, plan_table, review_lines, review_table
from pipeline.cli.runs import stage_task
from pipeline.cli.schedule_table import schedule_lines, schedule_table
from pipeline.core.errors import ConfigError, InputError

if TYPE_CHECKING:
    from tasks.base import StageTask
    from tasks.planning.plan import Plan
    from tasks.planning.simulation import Simulated


def plan(
    stage: Annotated[str, typer.Argument(help="stage to plan, with everything that it needs")] = (
        "report"
    ),
    config: ConfigOption = DEFAULT_CONFIGURATION,
    set: SetOption = None,
    data: DataOption = None,
    round: RoundOption = None,
    workers: WorkersOption = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="first run a small copy, as runs/NAME-probe")
    ] = False,
    review: Annotated[
        bool, typer.Option("--review", help="compare the last run with the plan it started with")
    ] = False,
    schedule: Annotated[
        bool,
        typer.Option("--schedule", help="show when each stage would run, and on which GPUs"),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what a run would do, how long it would take and what it would cost, without running it."""
    chosen = {"--probe": probe, "--review": review, "--schedule": schedule}
    if len(together := [name for name, given in chosen.items() if given]) > 1:
        raise InputError(f"{' and '.join(together)} cannot be used together; remove one of them")
    task = stage_task(stage, config, set, data, round)
    if review:
        _review(task, as_json)
        return
    if schedule:
        _show_schedule(_schedule_of(task, workers), as_json)
        return
    from tasks.run import walk
    from tasks.sharding import unused_work

    if probe:
        from tasks.planning.probe import probe_overrides
        from tasks.run import run

        small = [*(set or ()), *probe_overrides(task.settings)]
        run(stage_task(stage, config, small, data, 1 if round else None), workers=workers)
    _show(_plan_of(task, workers), as_json)
    for line in unused_work(walk(task)):
        typer.echo(f"warning: {line}", err=True)


def _plan_of(task: StageTask, workers: int | None) -> Plan:
    from tasks.execution.leases import Capacity
    from tasks.planning.plan import make_plan
    from tasks.run import walk

    return make_plan(task, walk(task), Capacity.expected(task.run_settings, workers))


def _schedule_of(task: StageTask, workers: int | None) -> Simulated:
    """The simulated schedule of what would run; of the whole run where its data are not there."""
    from tasks.execution.leases import Capacity
    from tasks.planning.simulation import simulate

    capacity = Capacity.expected(task.run_settings, workers)
    try:
        plan = _plan_of(task, workers)
    except (ConfigError, InputError):
        return simulate(task, capacity)
    return simulate(task, capacity, {stage.label: stage.seconds for stage in plan.running})


def _show_schedule(simulated: Simulated, as_json: bool) -> None:
    if as_json:
        stages = [
            {
                "label": one.job.label,
                "start": one.start,
                "end": one.end,
                "devices": one.devices,
                "threads": one.job.threads,
                "assumed": one.job.label in simulated.assumed,
            }
            for one in simulated.placed
        ]
        total = {"wall_seconds": simulated.seconds, "gpus": simulated.gpus, "busy": simulated.busy}
        typer.echo(json.dumps({"stages": stages, **total}, indent=2))
        return
    _print(schedule_table(simulated), schedule_lines(simulated))


def _show(plan: Plan, as_json: bool) -> None:
    if as_json:
        stages = [asdict(stage) for stage in plan.stages]
        unknown = [stage.label for stage in plan.unknown]
        total = {"wall_seconds": plan.wall_seconds, "workers": plan.workers, "unknown": unknown}
        typer.echo(json.dumps({"stages": stages, **total}, indent=2))
        return
    if len(plan.unknown) < len(plan.running):
        _print(plan_table(plan), plan_lines(plan))
    else:  # a table would say nothing
        for line in plan_lines(plan):
            typer.echo(line)


def _review(task: StageTask, as_json: bool) -> None:
    from tasks.planning.review import compare, read_kept

    kept = read_kept(task.settings.run_dir)
    rows = compare(kept)
    if as_json:
        stages = [
            {"label": row.expected.label, "expected": asdict(row.expected), "measured": _taken(row)}
            for row in rows
        ]
        expected = None if kept.plan.unknown else kept.plan.wall_seconds
        walls = {"expected_wall_seconds": expected, "wall_seconds": kept.wall_seconds}
        typer.echo(json.dumps({"made": kept.made, **walls, "stages": stages}, indent=2))
        return
    _print(review_table(rows), review_lines(kept))


def _taken(row: Any) -> dict[str, Any] | None:
    found = row.measured
    if found is None:
        return None
    return {"seconds": row.seconds, "amounts": dict(found.amounts), "size": found.size}


def print_review_since(task: StageTask, started: str) -> None:
    """Print the review of the run that ``task`` has just finished, if its plan told the time.

    Nothing is printed when no stage had to run, or when the times of more than half of them were unknown.
    ``started`` is the time before the run, in the format of plans.
    """
    from tasks.planning.review import FILE, compare, read_kept

    run_dir = task.settings.run_dir
    if not (run_dir / FILE).exists():
        return
    kept = read_kept(run_dir)
    plan = kept.plan
    if kept.made >= started and 2 * len(plan.unknown) <= len(plan.running):
        _print(review_table(compare(kept)), review_lines(kept))


def _print(table: Any, lines: list[str]) -> None:
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 160).print(table)
    for line in lines:
        typer.echo(line)
