"""The stages that read a setting, from their declarations."""

from __future__ import annotations

from pipeline.config import Config
from pipeline.config.base import Execution
from pipeline.engine.stage import STAGES, StageTask


def stages_reading(dotted: str) -> list[str]:
    """The stages that read the setting ``dotted`` under some configuration, in running order."""
    return [stage for stage, task in STAGES.items() if task.named and _reads(task, dotted)]


def _reads(task: type[StageTask], dotted: str) -> bool:
    return any(
        dotted == name or dotted.startswith((f"{name}.", f"{name}[].")) for name in task.reads
    )


def setting_stages(dotted: str) -> str:
    """The stages that read a setting, or a setting of the block ``dotted``, in words."""
    if dotted.partition(".")[0] in Config.marked(Execution):
        return "every stage"
    reading = stages_reading(dotted) or [
        stage for stage, task in STAGES.items() if task.named and _reads_below(task, dotted)
    ]
    return ", ".join(reading) or "–"


def _reads_below(task: type[StageTask], block: str) -> bool:
    return any(name.startswith(f"{block}.") for name in task.reads)
