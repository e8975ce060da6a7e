"""Executors: where the process of a stage runs (setting ``execution``)."""

from tasks.executors.base import Executor, NoResources, Resources, StageRun
from tasks.executors.choose import check_executor, executor_of, serving

__all__ = [
    "Executor",
    "NoResources",
    "Resources",
    "StageRun",
    "check_executor",
    "executor_of",
    "serving",
]
