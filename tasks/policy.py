"""The task that trains policy n."""

from __future__ import annotations

from tasks.base import StageTask
from tasks.sft import Sft

ADAPTER = ("adapter/*",)  # what other stages read of a policy; its lineage follows from this


def policy(task: StageTask, number: int) -> StageTask:
    """The task that trains policy ``number``: SFT for policy 0, round n for policy n."""
    from tasks.train import Train  # that module imports this one

    trained: StageTask = task.clone(Train, round=number) if number > 0 else task.clone(Sft)
    return trained
