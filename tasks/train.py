"""The stage ``train``: one round of training, DPO+SFT on pairs or GRPO on all trajectories.

Input: ``policy``, which may be the base model, and ``pair`` (Pair; also ``sft`` if it is the
reference) or, for objective ``grpo``, ``score`` (Trajectory). Output: as of stage ``sft``. Round n
continues policy n - 1 on its own pairs (TeaRAG, arXiv 2511.05385, eq. 15-17), or on all its scored
trajectories (ProGraph-R1, eq. 16). The data is encoded once
(`pipeline.engine.files.training_data`), before the training processes start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config import Grpo, for_round
from pipeline.core.model_files import UNTRAINED
from pipeline.engine.fingerprint import base_model_files
from pipeline.engine.opened import Opened, Work, training
from pipeline.engine.plan.clock import Clock
from pipeline.engine.stage import TRAJECTORIES, RoundTask, StageTask
from tasks.pair import Pair
from tasks.policy import ADAPTER, policy, policy_files
from tasks.questions import questions
from tasks.score import Score
from tasks.sft import Sft, training_of, write_policy

if TYPE_CHECKING:
    from pipeline.engine.context import StageContext

_SHARED = ("objective", "lora", "model", "seed")


class Train(RoundTask):
    """LoRA adapter of policy n, trained on the pairs or the scored trajectories of round n."""

    stage = "train"
    help = "the policy that a round trains"
    version = 8
    reads = (*_SHARED, "dpo", "grpo", "sampling.temperature")

    @property
    def input_files(self) -> Mapping[str, tuple[str, ...]]:
        return {
            "pair": ("pairs.parquet",),
            "score": TRAJECTORIES,
            "policy": policy_files(self.inputs["policy"]),
            "sft": ADAPTER,
        }

    @cached_property
    def inputs(self) -> dict[str, StageTask]:
        grpo = self.settings.objective == "grpo"
        needs: dict[str, StageTask] = {
            "score" if grpo else "pair": self.clone(Score if grpo else Pair),
            "policy": policy(self, self.round - 1),
        }
        if not grpo and self.settings.dpo.reference == "sft":
            needs["sft"] = self.clone(Sft)
        return needs

    def facts(self) -> dict[str, Any]:
        """The questions, which change no result: they are compared before training."""
        asked = (questions(self, split) for split in ("sampling", "test", "validation"))
        return {task.stage: task.directory for task in asked if task.complete()}

    def files(self) -> dict[str, Path | str]:
        return base_model_files(self.settings)

    def reading(self) -> tuple[str, ...]:
        """The block of the objective."""
        if self.settings.objective == "grpo":
            return (*_SHARED, "grpo", "sampling.temperature")
        return (*_SHARED, "dpo")

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
        questions = clock.sizes.in_round(self.round)
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
        from pipeline.engine.check.limits import over_long_faults, trainer_faults

        settings = self.settings
        yield from trainer_faults(settings.objective, settings.trainer)
        yield from over_long_faults(settings)


_METHODS = {"sigmoid": "dpo+sft", "apo_zero": "apo-zero+sft", "sft": "rejection-sampling"}


def run(context: StageContext) -> dict[str, int]:
    """Stage ``train``: policy ``context.round``. Returns counts of records and of tokens."""
    from pipeline.engine.files.training_data import encode_pair_data, encode_trajectory_data, report
    from pipeline.engine.process.launch import launch, with_processes
    from pipeline.training.preflight import recorded_facts

    objective = context.config.objective
    context, grpo = with_processes(context, objective), objective == "grpo"
    settings, inputs = context.config.trainer, context.inputs
    file = inputs["score"] / "trajectories.parquet" if grpo else inputs["pair"] / "pairs.parquet"
    report(context, recorded_facts(file, objective, settings.max_length, inputs))
    (encode_trajectory_data if grpo else encode_pair_data)(context)
    if settings.processes > 1:
        return launch(context, f"{__name__}:train_round", settings, objective)
    return train_round(context)


def train_round(context: StageContext) -> dict[str, int]:
    """Train the policy of ``context.round`` on encoded pairs, chosen sides, or trajectories.

    Every process calls it. Raises TrainingError for a reference over another base, for a base model
    with too few positions, when the stop rule applies, and when nothing is trained.
    """
    from pipeline.engine.files.training_data import TRAINING, TrainingData
    from pipeline.training.advantages import EncodedTrajectory
    from pipeline.training.change import trained_weights
    from pipeline.training.dpo import dpo_trainer
    from pipeline.training.encode import EncodedPair, EncodedSft
    from pipeline.training.encoded_file import EncodedFile
    from pipeline.training.grpo import grpo_trainer
    from pipeline.training.lineage import read_lineage, reference_of
    from pipeline.training.lora import continue_adapter, load_base, load_tokenizer, new_adapter
    from pipeline.training.sft import sft_trainer
    from pipeline.training.trainer_args import train

    config, number, settings = context.config, context.round or 1, context.config.trainer
    by_grpo, chosen_alone = isinstance(settings, Grpo), config.dpo.loss == "sft"
    data = TrainingData.read(context.checkpoint_dir)
    kind: Any = EncodedTrajectory if by_grpo else EncodedSft if chosen_alone else EncodedPair
    records = EncodedFile(context.checkpoint_dir / TRAINING, kind)
    base, parent = Path(data.base), read_lineage(context.inputs["policy"])
    reference = reference_of(settings, parent, context.inputs)
    base_model = load_base(base, settings, config.objective, longest=max(records.lengths))
    model = (
        new_adapter(base_model, config.lora, context.seed)
        if parent.method == UNTRAINED  # the base model (``start``)
        else continue_adapter(base_model, context.inputs["policy"] / "adapter", config.lora)
    )
    tokenizer = load_tokenizer(base, config.model)
    before, training = trained_weights(model), training_of(context)
    of_round: dict[str, Any]
    trainer: Any
    if isinstance(settings, Grpo):
        of_round = {"temperature": config.sampling.temperature}
        trainer = grpo_trainer(model, tokenizer, records, settings, training, **of_round)
    else:
        of_round = {
            "eta": for_round(settings.eta, number),
            "epochs": for_round(settings.round_epochs, number),
        }
        trainer = (
            sft_trainer(model, tokenizer, records, settings, training, number)
            if reference is None
            else dpo_trainer(
                model, tokenizer, records, settings, training, number=number,
                reference_name=f"{reference.base_sha} {reference.policy}",
                reference_adapter=(
                    None if reference.policy == parent.policy else context.inputs["sft"] / "adapter"
                ),
            )
        )  # fmt: skip
    train(trainer, training)
    write_policy(
        context, trainer, tokenizer, before, training,
        base_sha=parent.base_sha, parent=parent.policy,
        reference=None if reference is None else reference.policy,
        method="grpo" if by_grpo else _METHODS[config.dpo.loss], counts=data.counts,
        settings={
            **settings.deciding(),
            **of_round,
            "lora": config.lora.model_dump(),
            "paths_from" if by_grpo else "pairs_from": data.policies,
        },
    )  # fmt: skip
    return data.counts
