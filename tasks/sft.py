"""Policy 0."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tasks.base import StageTask
from tasks.fingerprint import base_model_files
from tasks.sft_data import SftData


class Sft(StageTask):
    """LoRA adapter of policy 0, trained on supervised trajectories."""

    stage = "sft"
    version = 5
    entry = "pipeline.stages.train:run_sft"
    hashes_inputs = True
    reads = ("sft", "lora", "model", "seed")

    @property
    def machines(self) -> int:
        return self.settings.sft.machines

    def upstream(self) -> dict[str, StageTask]:
        return {"sft-data": self.clone(SftData)}

    @property
    def input_files(self) -> Mapping[str, tuple[str, ...]]:
        return {"sft-data": ("train.parquet", "test.parquet")}

    def files(self) -> dict[str, Path | str]:
        return base_model_files(self.settings)
