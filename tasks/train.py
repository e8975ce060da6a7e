"""One round of DPO+SFT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.config import for_round
from tasks.base import StageTask, model_identity
from tasks.pair import Pair
from tasks.policy import policy
from tasks.rounds import RoundTask
from tasks.sft import Sft


class Train(RoundTask):
    """LoRA adapter of policy n, trained on the pairs of round n."""

    stage = "train"
    version = 2
    entry = "pipeline.training.stage:run_dpo"
    reads = ("dpo", "lora", "model.chat_template", "seed")

    def upstream(self) -> dict[str, StageTask]:
        needs: dict[str, StageTask] = {
            "pair": self.clone(Pair),
            "policy": policy(self, self.round - 1),
        }
        if self.settings.dpo.reference == "sft":
            needs["sft"] = self.clone(Sft)
        return needs

    def files(self) -> dict[str, Path | str]:
        return {"base model": model_identity(self.settings.model.base)}

    def slice(self) -> dict[str, Any]:
        """Only this round's eta and epochs count: a later round's change reruns nothing here."""
        values = super().slice()
        dpo = dict(values["dpo"])
        for name in ("eta", "round_epochs"):
            dpo[name] = for_round(tuple(dpo[name]), self.round)
        return {**values, "dpo": dpo}
