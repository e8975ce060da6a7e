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
from pipeline.core.model_files import model_hash
from pipeline.engine.fingerprint import base_model_files
from pipeline.engine.opened import Opened, Work, training
from pipeline.engine.plan.clock import Clock
from pipeline.engine.stage import TRAJECTORIES, RoundTask, StageTask
from tasks.pair import Pair
from tasks.policy import ADAPTER, policy, policy_files
from tasks.questions import questions
from tasks.score import Score
from tasks.sft import Sft, tracking_of, trained_policy, write_policy, written_form

if TYPE_CHECKING:
    from pipeline.engine.context import StageContext
    from pipeline.training.lineage import Lineage
    from pipeline.training.trl_types import PeftModel

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
    from pipeline.engine.files.training_data import (
        encode_pair_data,
        encode_trajectory_data,
        report,
    )
    from pipeline.engine.process.launch import launch, with_processes
    from pipeline.training.preflight import recorded_facts

    objective = context.config.objective
    context, grpo = with_processes(context, objective), objective == "grpo"
    settings = context.config.trainer
    questions = {
        name: path for name, path in context.inputs.items() if name.startswith("questions-")
    }
    source = ("score", "trajectories.parquet") if grpo else ("pair", "pairs.parquet")
    file = context.inputs[source[0]] / source[1]
    report(context, recorded_facts(file, objective, settings.max_length, questions))
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
    from pipeline.training.change import trained_weights, training_record
    from pipeline.training.dpo import dpo_trainer
    from pipeline.training.encode import EncodedPair, EncodedSft
    from pipeline.training.encoded_file import EncodedFile
    from pipeline.training.grpo import grpo_trainer
    from pipeline.training.history import History
    from pipeline.training.lineage import Lineage, check_base, read_lineage
    from pipeline.training.lora import load_tokenizer, locate_base
    from pipeline.training.sft import sft_trainer
    from pipeline.training.trainer_args import on_main, train

    config, number, settings = context.config, context.round or 1, context.config.trainer
    by_grpo, chosen_alone = isinstance(settings, Grpo), config.dpo.loss == "sft"
    data = TrainingData.read(context.checkpoint_dir)
    base = locate_base(config.model.base)
    sha, parent = model_hash(base), read_lineage(context.inputs["policy"])
    check_base(parent, sha)
    reference = _reference(context, parent, sha)
    kind: Any = EncodedTrajectory if by_grpo else EncodedSft if chosen_alone else EncodedPair
    records = EncodedFile(context.checkpoint_dir / TRAINING, kind)
    model = _previous_policy(context, base, max(records.lengths))
    tokenizer = load_tokenizer(base, config.model)
    before, history = trained_weights(model), History(context.progress)
    shared: dict[str, Any] = {
        "seed": context.seed, "checkpoint_dir": context.checkpoint_dir, "history": history,
        "tracking": tracking_of(context),
    }  # fmt: skip
    trainer: Any
    if isinstance(settings, Grpo):
        of_round: dict[str, Any] = {"temperature": config.sampling.temperature}
        trainer = grpo_trainer(model, tokenizer, records, settings, **shared, **of_round)
    else:
        epochs = for_round(settings.round_epochs, number)
        of_round = {"eta": for_round(settings.eta, number), "epochs": epochs}
        shared["number"] = number
        if reference is None:
            trainer = sft_trainer(model, tokenizer, records, settings, **shared)
        else:
            same = reference.policy == parent.policy
            trainer = dpo_trainer(
                model, tokenizer, records, settings, **shared,
                reference_name=f"{reference.base_sha} {reference.policy}",
                reference_adapter=None if same else context.inputs["sft"] / "adapter",
            )  # fmt: skip
    train(trainer, history, context.checkpoint_dir)
    lineage = Lineage(
        policy="", base=config.model.base, base_sha=sha, parent=parent.policy,
        reference=None if reference is None else reference.policy, round=number,
        method="grpo" if by_grpo else _METHODS[config.dpo.loss], seed=context.seed,
        counts=data.counts,
        settings={
            **settings.deciding(),
            **of_round,
            "lora": config.lora.model_dump(),
            "paths_from" if by_grpo else "pairs_from": data.policies,
        },
        training=training_record(before, trained_policy(trainer), history, config.objective),
        **written_form(config, tokenizer),
    )  # fmt: skip
    on_main(trainer, lambda: write_policy(context, trainer, history, lineage, {}))
    return data.counts


def _reference(context: StageContext, parent: Lineage, sha: str) -> Lineage | None:
    """The lineage of the reference policy; None for a loss without one."""
    from pipeline.training.lineage import check_base, read_lineage

    config = context.config
    if config.grpo is not None and config.objective == "grpo":
        return parent if config.grpo.beta else None
    if config.dpo.reference == "sft":
        reference = read_lineage(context.inputs["sft"])
        check_base(reference, sha)
        return reference
    return None if config.dpo.loss == "sft" else parent


def _previous_policy(context: StageContext, base: Path, longest: int) -> PeftModel:
    """Policy n - 1 with a trainable adapter; ``longest`` is the length of the longest sequence."""
    from pipeline.rollout.policy import read_policy
    from pipeline.training.lora import check_positions, continue_adapter, load_base, new_adapter

    config = context.config
    model = load_base(base, config.trainer, config.objective)
    check_positions(model, longest, config.objective)
    adapter = read_policy(context.inputs["policy"]).adapter
    if adapter is None:  # the base model (``start``)
        return new_adapter(model, config.lora, context.seed)
    return continue_adapter(model, adapter, config.lora)
