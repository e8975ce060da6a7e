"""One round of training: DPO+SFT on pairs, or GRPO on all scored trajectories."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config import for_round
from tasks.base import StageTask
from tasks.fingerprint import base_model_files
from tasks.pair import Pair
from tasks.policy import ADAPTER, policy, policy_files
from tasks.questions import questions
from tasks.rounds import TRAJECTORIES, RoundTask
from tasks.score import Score
from tasks.sft import Sft

_SHARED = ("objective", "lora", "model", "seed")


class Train(RoundTask):
    """LoRA adapter of policy n, trained on the pairs or the scored trajectories of round n."""

    stage = "train"
    version = 5
    entry = "pipeline.stages.train:run_round"
    hashes_inputs = True
    reads = _SHARED
    reads_at_times = ("dpo", "grpo", "sampling.temperature")

    @property
    def input_files(self) -> Mapping[str, tuple[str, ...]]:
        return {
            "pair": ("pairs.parquet",),
            "score": TRAJECTORIES,
            "policy": policy_files(self.inputs["policy"]),
            "sft": ADAPTER,
        }

    @property
    def machines(self) -> int:
        return self.settings.trainer.machines

    def upstream(self) -> dict[str, StageTask]:
        grpo = self.settings.objective == "grpo"
        needs: dict[str, StageTask] = {
            "score" if grpo else "pair": self.clone(Score if grpo else Pair),
            "policy": policy(self, self.round - 1),
        }
        if not grpo and self.settings.dpo.reference == "sft":
            needs["sft"] = self.clone(Sft)
        return needs

    def input_directories(self) -> dict[str, str]:
        """Also the questions, which decide nothing: they are compared before training (`preflight`)."""
        asked = (questions(self, split) for split in ("sampling", "test", "validation"))
        compared = {task.stage: str(task.directory) for task in asked if task.complete()}
        return {**super().input_directories(), **compared}

    def files(self) -> dict[str, Path | str]:
        return base_model_files(self.settings)

    def reading(self) -> tuple[str, ...]:
        """The block of the objective."""
        if self.settings.objective == "grpo":
            return (*self.reads, "grpo", "sampling.temperature")
        return (*self.reads, "dpo")

    def slice(self) -> dict[str, Any]:
        """Of DPO's lists only this round's eta and epochs.

        A change for a later round therefore does not rerun this one.
        """
        values = super().slice()
        if self.settings.objective == "grpo":
            return values
        dpo = dict(values["dpo"])
        for name in ("eta", "round_epochs"):
            dpo[name] = for_round(tuple(dpo[name]), self.round)
        return {**values, "dpo": dpo}
