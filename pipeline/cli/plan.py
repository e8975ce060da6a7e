"""``steep plan``: which stages would run, and their memory, disk and GPU hours."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

from pipeline.cli.options import (
    Chosen,
    JsonOption,
    MachineOption,
    RoundOption,
    StageArgument,
    with_configuration,
)
from pipeline.cli.plan_table import plan_json, print_plan
from pipeline.cli.printing import print_json
from pipeline.core.errors import SteepError

if TYPE_CHECKING:
    from tasks.base import StageTask


@with_configuration
def plan(
    chosen: Chosen,
    stage: StageArgument = "report",
    round: RoundOption = None,
    machine: MachineOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the stages that would run, with their memory, disk and GPU hours.

    The data may be missing; then the plan covers the whole run.
    """
    from tasks.checks.machine import machine_of
    from tasks.planning.plan import make_plan
    from tasks.planning.sizes import sizes_of

    task = chosen.task(stage, round)
    running, unknown = _running(task)
    made = make_plan(running, sizes_of(task.run_settings), machine_of(machine).gpus)
    if as_json:
        labels = [needed.label for needed in running]
        print_json({"running": labels, "unknown": unknown, "plan": plan_json(made)})
        return
    if unknown is not None:
        typer.echo(
            "this is the plan of the whole run, because the state of its stages is unknown: "
            f"{unknown}"
        )
    if not running:
        typer.echo("every stage is done; nothing would run")
        return
    stages = "stage" if len(running) == 1 else "stages"
    typer.echo(f"{len(running)} {stages} would run: {_named(running)}")
    print_plan(made)


def _running(task: StageTask) -> tuple[list[StageTask], str | None]:
    """The stages that would run, without their shards; and the reason when that is unknown."""
    from tasks.base import walk, walk_configured

    stages = list(walk_configured(task))
    try:
        incomplete = {needed.task_id for needed in walk(task) if not needed.complete()}
    except SteepError as error:
        return stages, str(error)
    return [needed for needed in stages if needed.task_id in incomplete], None


def _named(tasks: Iterable[StageTask]) -> str:
    """The names of stages, with the number of rounds or policies where a stage has several."""
    counts = Counter(re.sub(r"-\d+$", "", task.label) for task in tasks)
    return ", ".join(f"{name} ({times})" if times > 1 else name for name, times in counts.items())
