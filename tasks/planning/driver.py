"""One amount of a stage that decides how much it does, in this run and in an earlier output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tasks.base import StageTask
from tasks.planning.measured import Earlier, Measured

Number = float | None


@dataclass(frozen=True)
class Known:
    """The amounts of the stages before one, expected or measured, by task id; and earlier outputs."""

    amounts: Mapping[str, Mapping[str, float]]
    earlier: Earlier

    def of(self, task: StageTask, name: str, source: str) -> Number:
        """Amount ``name`` of the upstream stage that ``task`` calls ``source``."""
        upstream = task.upstream().get(source)
        return None if upstream is None else self.amounts.get(upstream.task_id, {}).get(name)


@dataclass(frozen=True)
class Driver:
    """One amount that decides how much a stage does.

    ``expected`` gives it for a task that would run, ``measured`` for an earlier output; None is
    unknown. ``stages`` are further stages whose outputs tell what this one takes. The size of the
    output does not grow with the amount if ``constant_size``. ``cached`` and ``was_cached`` say whether
    the results of a stage's model are in a cache, which makes its seconds those of reading them.
    """

    name: str
    expected: Callable[[StageTask, Known], Number]
    measured: Callable[[Measured, Earlier], Number]
    stages: tuple[str, ...] = ()
    constant_size: bool = False
    cached: Callable[[StageTask, Known], bool] = lambda task, known: False
    was_cached: Callable[[Measured], bool] = lambda found: False
