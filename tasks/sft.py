"""The stage ``sft``: policy 0, trained on supervised trajectories (TeaRAG 2511.05385, eq. 4).

Input: the examples of stage ``sft-data``. Output: ``adapter/``, ``lineage.json``, ``log.json``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.model_files import model_hash
from pipeline.engine.fingerprint import base_model_files
from pipeline.engine.opened import Opened, Work, training
from pipeline.engine.plan.clock import Clock
from pipeline.engine.stage import StageTask
from tasks.sft_data import SftData

if TYPE_CHECKING:
    from pipeline.config import Config
    from pipeline.engine.context import StageContext
    from pipeline.llm.tokenizer import Tokenizer
    from pipeline.training.history import History
    from pipeline.training.lineage import Lineage
    from pipeline.training.trackers import Tracking
    from pipeline.training.trl_types import PeftModel, TrlTrainer


class Sft(StageTask):
    """LoRA adapter of policy 0, trained on supervised trajectories."""

    stage = "sft"
    help = "policy 0, trained on the supervised trajectories"
    version = 8
    reads = ("sft", "lora", "model", "seed")

    @cached_property
    def inputs(self) -> dict[str, StageTask]:
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
        from pipeline.engine.check.limits import trainer_faults

        yield from trainer_faults("sft", self.settings.sft)


def run(context: StageContext) -> dict[str, int]:
    """Stage ``sft``: policy 0. Returns counts of examples and tokens."""
    from pipeline.engine.files.training_data import encode_sft_data
    from pipeline.engine.process.launch import launch, with_processes

    context = with_processes(context, "sft")
    settings = context.config.sft
    encode_sft_data(context)
    if settings.processes > 1:
        return launch(context, f"{__name__}:train_sft", settings, "sft")
    return train_sft(context)


def train_sft(context: StageContext) -> dict[str, int]:
    """Train policy 0 on encoded data; each process of `pipeline.engine.process.launch` calls it.

    Raises TrainingError when the base model has too few positions and when nothing is trained.
    """
    from pipeline.engine.files.training_data import HELDOUT, TRAINING, TrainingData
    from pipeline.training.change import trained_weights, training_record
    from pipeline.training.encode import EncodedSft
    from pipeline.training.encoded_file import EncodedFile
    from pipeline.training.history import History
    from pipeline.training.lineage import Lineage
    from pipeline.training.lora import (
        check_positions,
        load_base,
        load_tokenizer,
        locate_base,
        new_adapter,
    )
    from pipeline.training.sft import heldout_loss, sft_trainer
    from pipeline.training.trainer_args import on_main, train

    config, settings = context.config, context.config.sft
    data = TrainingData.read(context.checkpoint_dir)
    examples = EncodedFile(context.checkpoint_dir / TRAINING, EncodedSft)
    held_out = EncodedFile(context.checkpoint_dir / HELDOUT, EncodedSft)
    base = locate_base(config.model.base)
    tokenizer = load_tokenizer(base, config.model)
    base_model = load_base(base, settings, "sft")
    check_positions(base_model, max(examples.lengths), "sft")
    model = new_adapter(base_model, config.lora, context.seed)
    before, history = trained_weights(model), History(context.progress)
    trainer = sft_trainer(
        model, tokenizer, examples, settings,
        seed=context.seed, checkpoint_dir=context.checkpoint_dir, history=history,
        tracking=tracking_of(context),
    )  # fmt: skip
    train(trainer, history, context.checkpoint_dir)
    lineage = Lineage(
        policy="", base=config.model.base, base_sha=model_hash(base), parent=None, reference=None,
        round=0, method="sft", seed=context.seed, counts=data.counts,
        settings={**settings.deciding(), "lora": config.lora.model_dump()},
        training=training_record(before, trained_policy(trainer), history, "sft"),
        **written_form(config, tokenizer),
    )  # fmt: skip
    test = heldout_loss(trainer, held_out)
    on_main(trainer, lambda: write_policy(context, trainer, history, lineage, test))
    return data.counts


def tracking_of(context: StageContext) -> Tracking:
    """The trackers of a training, with the stage and its round as its name."""
    from pipeline.training.trackers import Tracking

    label = context.stage if context.round is None else f"{context.stage}-{context.round}"
    config = context.config
    return Tracking(config.trackers, config.name, label, config.run_dir / "trackers")


def trained_policy(trainer: TrlTrainer) -> PeftModel:
    """The model with its adapter, without the wrapper of several processes."""
    return trainer.accelerator.unwrap_model(trainer.model)


def write_policy(
    context: StageContext,
    trainer: TrlTrainer,
    history: History,
    lineage: Lineage,
    test: dict[str, float],
) -> None:
    """Write the adapter, its lineage and the history; ``test`` has the losses of held-out data."""
    from pipeline.training.lineage import policy_fingerprint
    from pipeline.training.lora import save_adapter

    adapter = context.output / "adapter"
    save_adapter(trained_policy(trainer), adapter)
    policy = policy_fingerprint(adapter, lineage.base_sha)
    replace(lineage, policy=policy).write(context.output)
    history.write(context.output / "log.json", training=lineage.training, test=test)
    print(f"{history.steps:,} steps, mean loss {history.mean_loss():.4f}; {history.line()}")
    print(f"policy {policy}: {lineage.training}; held out: {test or 'nothing'}")


def written_form(config: Config, tokenizer: Tokenizer) -> dict[str, Any]:
    """What a policy is trained to write, and in which chat template, for its lineage."""
    from pipeline.rollout.conversations.chat_template import ChatTemplate

    template = ChatTemplate(tokenizer, thinking=config.model.thinking)
    return {
        "chat_template": template.identity, "grammar": config.grammar, "format": config.format
    }  # fmt: skip
