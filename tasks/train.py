"""One round of training: DPO+SFT on pairs, or GRPO on all scored trajectories."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config import for_round
from tasks.base import StageTask
from tasks.fingerprint import model_identity, select
from tasks.pair import Pair
from tasks.policy import ADAPTER, policy
from tasks.rounds import TRAJECTORIES, RoundTask
from tasks.score import Score
from tasks.sft import Sft

_SHARED = ("lora", "model.chat_template", "seed")


class Train(RoundTask):
    """LoRA adapter of policy n, trained on the pairs or the scored trajectories of round n."""

    stage = "train"
    version = 3
    entry = "pipeline.stages.train:run_round"
    hashes_inputs = True
    reads = ("dpo", *_SHARED)

    @property
    def input_files(self) -> Mapping[str, tuple[str, ...]]:
        return {
            "pair": ("pairs.parquet",),
            "score": TRAJECTORIES,
            "policy": ADAPTER,
            "sft": ADAPTER,
        }

    def upstream(self) -> dict[str, StageTask]:
        grpo = self.settings.objective == "grpo"
        needs: dict[str, StageTask] = {
            "score" if grpo else "pair": self.clone(Score if grpo else Pair),
            "policy": policy(self, self.round - 1),
        }
        if not grpo and self.settings.dpo.reference == "sft":
            needs["sft"] = self.clone(Sft)
        return needs

    def files(self) -> dict[str, Path | str]:
        return {"base model": model_identity(self.settings.model.base)}

    def slice(self) -> dict[str, Any]:
        """The block of the objective, and of DPO's lists only this round's eta and epochs.

        A change for a later round therefore does not rerun this one.
        """
        if self.settings.objective == "grpo":
            names = ("grpo", "sampling.temperature", *_SHARED)
            return select(self.settings, names)
        values = super().slice()
        dpo = dict(values["dpo"])
        for name in ("eta", "round_epochs"):
            dpo[name] = for_round(tuple(dpo[name]), self.round)
        return {**values, "dpo": dpo}
