"""Policy 0."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from tasks.base import StageTask
from tasks.fingerprint import model_identity
from tasks.sft_data import SftData


class Sft(StageTask):
    """LoRA adapter of policy 0, trained on supervised trajectories."""

    stage = "sft"
    version = 3
    entry = "pipeline.stages.train:run_sft"
    hashes_inputs = True
    input_files: ClassVar = {"sft-data": ("train.parquet", "test.parquet")}
    reads = ("sft", "lora", "model.chat_template", "seed")

    def upstream(self) -> dict[str, StageTask]:
        return {"sft-data": self.clone(SftData)}

    def files(self) -> dict[str, Path | str]:
        return {"base model": model_identity(self.settings.model.base)}
