"""The tables and lines of ``steep plan``: amounts, times and money for people."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from tasks.planning.estimate import Estimate
    from tasks.planning.plan import Plan
    from tasks.planning.review import Compared, Kept

UNKNOWN = "unknown"
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


def plan_table(plan: Plan) -> Table:
    """One row for each stage of a plan."""
    from rich.table import Table
    from rich.text import Text

    shown = [
        heading
        for heading in _AMOUNTS
        if any(amount_of(stage, heading) is not None for stage in plan.running)
    ]
    money = any(stage.cost for stage in plan.running)
    gpus = any(stage.gpu_seconds for stage in plan.running)
    table = Table("stage", "state", "time")
    for heading in (*shown, *(["GPU hours"] * gpus), *(["cost"] * money), "disk"):
        table.add_column(heading, justify="right")
    table.add_column("going by")
    for stage in plan.stages:
        runs = stage.state == "run"
        cells = [Text(stage.label), Text(stage.state, _COLORS[stage.state]), _time(stage)]
        amounts = [amount_of(stage, heading) if runs else None for heading in shown]
        cells += [Text("" if amount is None else count(amount)) for amount in amounts]
        if gpus:
            hours = stage.gpu_seconds
            cells.append(Text(f"{hours / 3600:.2f}" if runs and hours else ""))
        if money:
            cells.append(Text(f"{stage.cost:,.2f}" if runs and stage.cost else ""))
        cells.append(Text(size(stage.size) if stage.size is not None else ""))
        cells.append(Text("; ".join(filter(None, [stage.source, stage.note]))))
        table.add_row(*cells)
    return table


def plan_lines(plan: Plan) -> list[str]:
    """The totals of a plan, and what to do about stages of unknown time."""
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
    if without_cost := [stage.label for stage in plan.running if _cost_is_unknown(stage)]:
        lines.append(f"cost unknown: {', '.join(without_cost)}")
    if unknown:
        which = f"of {_named(unknown)} " if known else ""
        lines.append(
            f"the time {which}is unknown: no earlier output of these stages with the same models, or no size "
            "of their input; steep plan --probe runs a small copy and goes by that"
        )
    return lines


def _named(labels: Sequence[str]) -> str:
    """The names of stages, with the number of rounds and shards where a stage has several."""
    counts = Counter(re.sub(r"(-shard)?(-\d+)*$", "", label) for label in labels)
    return ", ".join(f"{name} ({times})" if times > 1 else name for name, times in counts.items())


def _totals(plan: Plan) -> list[str]:
    seconds = plan.wall_seconds
    workers = f"{plan.workers} worker{'s' * (plan.workers > 1)}"
    totals = [f"about {duration(seconds)} with {workers}"]
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


def review_table(rows: Sequence[Compared]) -> Table:
    """Expected and measured time, generated tokens and disk of each stage that was to run."""
    from rich.table import Table
    from rich.text import Text

    with_tokens = any("generated_tokens" in row.expected.amounts for row in rows)
    token_columns = ("tokens expected", "generated", "ratio") if with_tokens else ()
    table = Table("stage")
    for heading in ("expected", "took", "ratio", *token_columns, "disk expected", "disk"):
        table.add_column(heading, justify="right")
    for row in rows:
        expected, found = row.expected, row.measured
        tokens = expected.amounts.get("generated_tokens")
        generated = None if found is None else found.amounts.get("generated_tokens")
        taken = None if found is None else found.size
        cells = [
            row.expected.label,
            UNKNOWN if expected.seconds is None else duration(expected.seconds),
            "not run" if row.seconds is None else duration(row.seconds),
            ratio(row.seconds, expected.seconds),
        ]
        if with_tokens:
            cells.append("" if tokens is None else count(tokens))
            cells.append("" if generated is None else count(generated))
            cells.append(ratio(generated, tokens))
        cells.append("" if expected.size is None else size(expected.size))
        cells.append("" if taken is None else size(taken))
        table.add_row(*map(Text, cells))
    return table


def review_lines(kept: Kept) -> list[str]:
    """The expected and the measured wall time of a run."""
    if kept.wall_seconds is None:
        return ["the run has not finished, so its wall time is unknown"]
    took = f"took {duration(kept.wall_seconds)}"
    if unknown := len(kept.plan.unknown):
        stages = len(kept.plan.running)
        part = "its stages" if unknown == stages else f"{unknown} of its {stages} stages"
        return [f"the run {took}; no earlier run told the time of {part}"]
    expected = kept.plan.wall_seconds
    share = ratio(kept.wall_seconds, expected)
    return [f"the run {took}; expected {duration(expected)} (ratio {share})"]


def amount_of(stage: Estimate, heading: str) -> float | None:
    """The amount of a stage in a column of the plan; None when it has none, or it is unknown."""
    name = _AMOUNTS[heading]
    rolls_out = stage.label.startswith(_ROLLED_OUT) and _JOINED not in stage.amounts
    if name == "trajectories" and not rolls_out:
        return None
    return stage.amounts.get(name)


def _cost_is_unknown(stage: Estimate) -> bool:
    return stage.seconds is not None and stage.cost is None


def _time(stage: Estimate) -> Text:
    from rich.text import Text

    if stage.state != "run":
        return Text("")
    return Text(UNKNOWN, "yellow") if stage.seconds is None else Text(duration(stage.seconds))


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


def ratio(measured: float | None, expected: float | None) -> str:
    """Measured by expected, or an empty text where one of them is unknown or 0."""
    return f"{measured / expected:.2f}" if measured is not None and expected else ""
