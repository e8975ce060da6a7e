"""Policy 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from tasks.base import StageTask
from tasks.fingerprint import base_model_files
from tasks.limits import trainer_faults
from tasks.opened import Opened, Work, training
from tasks.planning.clock import Clock
from tasks.sft_data import SftData


class Sft(StageTask):
    """LoRA adapter of policy 0, trained on supervised trajectories."""

    stage = "sft"
    help = "policy 0, trained on the supervised trajectories"
    version = 8
    entry = "pipeline.stages.train:run_sft"
    hashes_inputs = True
    reads = ("sft", "lora", "model", "seed")

    def upstream(self) -> dict[str, StageTask]:
        return {"sft-data": self.clone(SftData)}

    @property
    def input_files(self) -> Mapping[str, tuple[str, ...]]:
        return {"sft-data": ("train.parquet", "test.parquet")}

    def files(self) -> dict[str, Path | str]:
        return base_model_files(self.settings)

    def opens(self) -> Iterator[Opened]:
        yield training(self.settings, "sft", self.settings.sft)

    def work(self, clock: Clock) -> Work:
        settings = self.settings
        records = sum(settings.sft_data.sizes.values()) * settings.sft.epochs
        return Work(clock.training(training(settings, "sft", settings.sft), records))

    def faults(self) -> Iterator[str]:
        yield from trainer_faults("sft", self.settings.sft)
