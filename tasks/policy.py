"""The task that makes policy n, and the files of it that other stages read."""

from __future__ import annotations

from pipeline.config.evaluation import BASE
from pipeline.config.run import SFT
from pipeline.core.model_files import LINEAGE
from tasks.base import STAGES, StageTask
from tasks.given_policy import Start, UntrainedPolicy
from tasks.sft import Sft

ADAPTER = ("adapter/*",)  # of an adapter; its lineage follows from this


def policy(task: StageTask, number: int) -> StageTask:
    """The task that makes policy ``number``: round n for policy n, SFT or `Start` for policy 0."""
    if number > 0:
        # By name, against an import cycle: training reads stages that read the policy before it.
        made: StageTask = task.clone(STAGES["train"], round=number)
    else:
        made = task.clone(Sft if task.run_settings.start == SFT else Start)
    return made


def policy_files(made: StageTask) -> tuple[str, ...]:
    """The files that other stages read of a task's policy; the base model has no adapter."""
    is_base = isinstance(made, UntrainedPolicy) and made.given == BASE
    return (LINEAGE,) if is_base else ADAPTER
