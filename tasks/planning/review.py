"""The plan that a run started with, kept beside the run, and what its stages took.

``runs/<run>/plan.json`` holds the plan of the last run in which a stage had to run, the time at which it
was made, and at the end of the run its wall time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.core.atomic import write_json
from pipeline.core.errors import InputError
from pipeline.core.input_files import read_json
from tasks.planning.estimate import Estimate
from tasks.planning.measured import Measured, read_measured
from tasks.planning.plan import Plan

FILE = "plan.json"
_TIME = "%Y-%m-%dT%H:%M:%SZ"  # as in manifests, so that texts compare like times


@dataclass(frozen=True)
class Kept:
    """A plan, the time at which it was made (UTC), and the wall seconds of its run once it has ended."""

    plan: Plan
    made: str
    wall_seconds: float | None = None


@dataclass(frozen=True)
class Compared:
    """A stage that was to run: what was expected, and what it took, None if it has not run since."""

    expected: Estimate
    measured: Measured | None

    @property
    def seconds(self) -> float | None:
        """Measured wall seconds, from the start of the stage's process."""
        found = self.measured
        return None if found is None else found.launch_seconds + found.seconds


def now() -> str:
    """The time as plans and manifests write it."""
    return time.strftime(_TIME, time.gmtime())


def keep(run_dir: Path, plan: Plan) -> Kept:
    """Write the plan of a run that is about to start."""
    kept = Kept(plan, now())
    _write(run_dir, kept)
    return kept


def finish(run_dir: Path, kept: Kept, wall_seconds: float) -> None:
    """Add the wall time of the run to its plan."""
    _write(run_dir, replace(kept, wall_seconds=round(wall_seconds, 2)))


def _write(run_dir: Path, kept: Kept) -> None:
    run_dir.mkdir(parents=True, exist_ok=True)
    expected = None if kept.plan.unknown else round(kept.plan.wall_seconds, 2)
    write_json(run_dir / FILE, {**asdict(kept), "expected_wall_seconds": expected})


def read_kept(run_dir: Path) -> Kept:
    """The plan of the last run. Raises InputError when there is none, or it cannot be read."""
    path = run_dir / FILE
    if not path.exists():
        raise InputError.at(
            path, None, "no such file; steep run writes it when it starts; run a stage first"
        )
    try:
        value: Mapping[str, Any] = read_json(path)
        plan = value["plan"]
        stages = tuple(_estimate(stage) for stage in plan["stages"])
        room = (
            int(plan.get(name, 0)) for name in ("gpus", "threads")
        )  # added after the first plans
        made = Plan(stages, int(plan["workers"]), *room)
        return Kept(made, str(value["made"]), value["wall_seconds"])
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError.at(
            path, None, f"not the plan of a run ({error!r:.80}); delete it and run a stage"
        ) from None


def _estimate(value: Mapping[str, Any]) -> Estimate:
    return Estimate(**{**value, "needs": tuple(value["needs"])})


def compare(kept: Kept) -> list[Compared]:
    """The stages that were to run, beside what they took since the plan was made."""
    return [
        Compared(stage, _since(Path(stage.directory), kept.made)) for stage in kept.plan.running
    ]


def _since(directory: Path, made: str) -> Measured | None:
    found = read_measured(directory)
    return found if found is not None and found.started >= made else None
