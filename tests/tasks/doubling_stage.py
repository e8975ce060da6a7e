"""A stage in one file: its declaration, and what it does."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from pipeline.engine.context import StageContext
from pipeline.engine.opened import Opened, Work, policy_engine
from pipeline.engine.plan.clock import Clock
from pipeline.engine.stage import StageTask
from tests.tasks.counting_tasks import First


class Doubles(StageTask):
    """Twice the number of the first stage."""

    stage = "doubles"
    help = "twice the number of the first stage"
    reads = ("engine", "name")

    @cached_property
    def inputs(self) -> dict[str, StageTask]:
        return {"first": self.clone(First)}

    def opens(self) -> Iterator[Opened]:
        yield policy_engine(self.settings)

    def work(self, clock: Clock) -> Work:
        return Work(36.0 * clock.sizes.chunks, disk=1e4 * clock.sizes.chunks)

    def faults(self) -> Iterator[str]:
        if self.settings.name == "odd":
            yield "name is odd; choose another"


def run(context: StageContext) -> dict[str, int]:
    """Write the number."""
    number = int((context.inputs["first"] / "number.txt").read_text())
    (context.output / "doubled.txt").write_text(str(2 * number))
    return {"numbers": 1}
