"""One round of training: DPO+SFT on pairs, or GRPO on all scored trajectories."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.config import for_round
from tasks.base import TRAJECTORIES, RoundTask, StageTask
from tasks.fingerprint import base_model_files
from tasks.limits import over_long_faults, trainer_faults
from tasks.opened import Opened, Work, training
from tasks.pair import Pair
from tasks.planning.clock import Clock
from tasks.policy import ADAPTER, policy, policy_files
from tasks.questions import questions
from tasks.score import Score
from tasks.sft import Sft

_SHARED = ("objective", "lora", "model", "seed")


class Train(RoundTask):
    """LoRA adapter of policy n, trained on the pairs or the scored trajectories of round n."""

    stage = "train"
    help = "the policy that a round trains"
    version = 8
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
        """Adds the questions, which change no result: they are compared before training."""
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

    def opens(self) -> Iterator[Opened]:
        yield training(self.settings, self.settings.objective, self.settings.trainer)

    def work(self, clock: Clock) -> Work:
        settings, a = self.settings, clock.rates
        questions = clock.sizes.questions["sampling"]
        grpo, chosen_alone = settings.objective == "grpo", settings.dpo.loss == "sft"
        if grpo:
            records = questions * settings.sampling.samples
        else:
            pairs = a.pairs_first if self.round == 1 else a.pairs_later
            records = questions * pairs * (1 if chosen_alone else 2)
        epochs = settings.trainer.passes(self.round)
        trained = training(settings, settings.objective, settings.trainer)
        referred = 0 if chosen_alone and not grpo else records
        return Work(clock.training(trained, records * epochs, referred))

    def faults(self) -> Iterator[str]:
        settings = self.settings
        yield from trainer_faults(settings.objective, settings.trainer)
        yield from over_long_faults(settings)
