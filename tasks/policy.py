"""Which task wrote policy n."""

from __future__ import annotations

from tasks.base import StageTask
from tasks.sft import Sft


def policy(task: StageTask, number: int) -> StageTask:
    """The task that writes policy ``number``: SFT writes policy 0, round n writes policy n."""
    from tasks.train import Train  # a round's training needs the policy before it

    found: StageTask = task.clone(Train, round=number) if number > 0 else task.clone(Sft)
    return found
