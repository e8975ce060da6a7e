"""``steep plan``: what a run would do, how long it would take, and what it would cost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from pipeline.cli.options import (
    Chosen,
    JsonOption,
    RoundOption,
    StageArgument,
    WorkersOption,
    with_configuration,
)
from pipeline.cli.printing import add_row, console, print_json, print_lines, table

if TYPE_CHECKING:
    from rich.table import Table

    from tasks.planning.estimate import Estimate
    from tasks.planning.plan import Plan

# Columns of amounts: heading, and the name in a stage's work. A column that is empty is left out.
_AMOUNTS = {
    "trajectories": "trajectories",
    "generated tokens": "generated_tokens",
    "reranked pairs": "reranked_pairs",
    "judge calls": "judge_calls",
    "training tokens": "training_tokens",
}
_ROLLED_OUT = ("sample", "evaluate-policy")  # other stages read trajectories that these made
_JOINED = "merged_trajectories"  # of shards, which have rows of their own
_COLORS = {"run": "bold", "done": "green", "reused": "green"}


@with_configuration
def plan(
    chosen: Chosen,
    stage: StageArgument = "report",
    round: RoundOption = None,
    workers: WorkersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a run would do, how long it would take, and what it would cost."""
    task = chosen.task(stage, round)
    from tasks.leases import Capacity
    from tasks.other_shards import unused_work
    from tasks.planning.plan import make_plan
    from tasks.run import walk

    made = make_plan(task, walk(task), Capacity.expected(task.run_settings, workers))
    if as_json:
        print_json(
            {
                "stages": [asdict(stage) for stage in made.stages],
                "wall_seconds": made.wall_seconds,
                "workers": made.workers,
                "unknown": [stage.label for stage in made.unknown],
            }
        )
    else:
        if len(made.unknown) < len(made.running):  # otherwise a table would say nothing
            console().print(_table(made))
        print_lines(plan_lines(made))
    print_lines((f"warning: {line}" for line in unused_work(walk(task))), err=True)


def _table(plan: Plan) -> Table:
    """One row for each stage of a plan."""
    from rich.text import Text

    shown = [
        heading
        for heading in _AMOUNTS
        if any(amount_of(stage, heading) is not None for stage in plan.running)
    ]
    money = any(stage.cost for stage in plan.running)
    gpus = any(stage.gpu_seconds for stage in plan.running)
    numbers = (*shown, *(["GPU hours"] * gpus), *(["cost"] * money), "disk")
    made = table(("stage", "state", "time"), numbers, ("going by",))
    for stage in plan.stages:
        runs = stage.state == "run"
        time = "" if not runs else "unknown" if stage.seconds is None else duration(stage.seconds)
        amounts = [amount_of(stage, heading) if runs else None for heading in shown]
        cells = ["" if amount is None else count(amount) for amount in amounts]
        if gpus:
            cells.append(f"{stage.gpu_seconds / 3600:.2f}" if runs and stage.gpu_seconds else "")
        if money:
            cells.append(f"{stage.cost:,.2f}" if runs and stage.cost else "")
        cells.append(size(stage.size) if stage.size is not None else "")
        source = "; ".join(filter(None, [stage.source, stage.note]))
        add_row(made, stage.label, Text(stage.state, _COLORS[stage.state]), time, *cells, source)
    return made


def plan_lines(plan: Plan) -> list[str]:
    """The totals of a plan, and the stages of unknown time."""
    if not plan.running:
        return ["every stage is done; nothing would run"]
    unknown = [stage.label for stage in plan.unknown]
    known = len(plan.running) - len(unknown)
    lines = []
    if not known:
        lines.append(f"{len(unknown)} stages would run: {_named(unknown)}")
    if known:
        least = f"at least, for the {known} stages that are known: " if unknown else "total: "
        lines.append(least + ", ".join(_totals(plan)))
    costless = [
        stage.label for stage in plan.running if stage.seconds is not None and stage.cost is None
    ]
    if costless:
        lines.append(f"cost unknown: {', '.join(costless)}")
    if unknown:
        which = f"of {_named(unknown)} " if known else ""
        lines.append(
            f"the time {which}is unknown: no earlier output of these stages with the same models, or "
            "no size of their input"
        )
    return lines


def _named(labels: Sequence[str]) -> str:
    """The names of stages, with the number of rounds and shards where a stage has several."""
    counts = Counter(re.sub(r"(-shard)?(-\d+)*$", "", label) for label in labels)
    return ", ".join(f"{name} ({times})" if times > 1 else name for name, times in counts.items())


def _totals(plan: Plan) -> list[str]:
    workers = f"{plan.workers} worker{'s' * (plan.workers > 1)}"
    totals = [f"about {duration(plan.wall_seconds)} with {workers}"]
    for heading in _AMOUNTS:
        amounts = [amount_of(stage, heading) for stage in plan.running]
        if total := sum(amount for amount in amounts if amount is not None):
            totals.append(f"{count(total)} {heading}")
    if gpu := sum(stage.gpu_seconds or 0.0 for stage in plan.running):
        totals.append(f"{gpu / 3600:.2f} GPU hours")
    if cost := sum(stage.cost or 0.0 for stage in plan.running):
        totals.append(f"cost {cost:,.2f}")
    totals.append(f"{size(sum(stage.size or 0.0 for stage in plan.running))} on the disk")
    return totals


def amount_of(stage: Estimate, heading: str) -> float | None:
    """The amount of a stage in a column of the plan; None when it has none, or it is unknown."""
    name = _AMOUNTS[heading]
    rolls_out = stage.label.startswith(_ROLLED_OUT) and _JOINED not in stage.amounts
    if name == "trajectories" and not rolls_out:
        return None
    return stage.amounts.get(name)


def duration(seconds: float) -> str:
    """Seconds for people: ``45 s``, ``12 min 5 s``, ``3 h 20 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def count(number: float) -> str:
    """A number of things with separators."""
    return f"{round(number):,}"


def size(number: float) -> str:
    """Bytes for people: ``940 B``, ``2.3 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:,.1f} TB"
