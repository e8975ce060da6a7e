"""The stage ``sft``: policy 0, trained on supervised trajectories (TeaRAG 2511.05385, eq. 4).

Input: the examples of stage ``sft-data``. Output: ``adapter/``, ``lineage.json``, ``log.json``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.core.model_files import model_hash
from pipeline.engine.fingerprint import base_model_files
from pipeline.engine.opened import Opened, Work, training
from pipeline.engine.plan.clock import Clock
from pipeline.engine.stage import StageTask
from tasks.sft_data import SftData

if TYPE_CHECKING:
    import torch

    from pipeline.engine.context import StageContext
    from pipeline.llm.tokenizer import Tokenizer
    from pipeline.training.trainer_args import Training
    from pipeline.training.trl_types import TrlTrainer


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
    from pipeline.training.change import trained_weights
    from pipeline.training.encode import EncodedSft
    from pipeline.training.encoded_file import EncodedFile
    from pipeline.training.lora import load_base, load_tokenizer, new_adapter
    from pipeline.training.sft import heldout_loss, sft_trainer
    from pipeline.training.trainer_args import train

    config, settings = context.config, context.config.sft
    data = TrainingData.read(context.checkpoint_dir)
    examples = EncodedFile(context.checkpoint_dir / TRAINING, EncodedSft)
    held_out = EncodedFile(context.checkpoint_dir / HELDOUT, EncodedSft)
    base = Path(data.base)
    tokenizer = load_tokenizer(base, config.model)
    base_model = load_base(base, settings, "sft", longest=max(examples.lengths))
    model = new_adapter(base_model, config.lora, context.seed)
    before, training = trained_weights(model), training_of(context)
    trainer = sft_trainer(model, tokenizer, examples, settings, training)
    train(trainer, training)
    write_policy(
        context, trainer, tokenizer, before, training, test=heldout_loss(trainer, held_out),
        base_sha=model_hash(base), parent=None, reference=None, method="sft", counts=data.counts,
        settings={**settings.deciding(), "lora": config.lora.model_dump()},
    )  # fmt: skip
    return data.counts


def training_of(context: StageContext) -> Training:
    """The training of a stage, whose trackers know it by the stage and its round."""
    from pipeline.training.history import History
    from pipeline.training.trackers import Tracking
    from pipeline.training.trainer_args import Training

    label = context.stage if context.round is None else f"{context.stage}-{context.round}"
    config = context.config
    tracking = Tracking(config.trackers, config.name, label, config.run_dir / "trackers")
    return Training(context.seed, context.checkpoint_dir, History(context.progress), tracking)


def write_policy(
    context: StageContext,
    trainer: TrlTrainer,
    tokenizer: Tokenizer,
    before: Mapping[str, torch.Tensor],
    training: Training,
    *,
    base_sha: str,
    parent: str | None,
    reference: str | None,
    method: str,
    settings: dict[str, object],
    counts: dict[str, int],
    test: dict[str, float] | None = None,
) -> None:
    """Write the adapter, its lineage and the history, in the main process.

    ``before`` are the weights of the parent, and ``test`` the losses of held-out data. The other
    arguments are fields of the `Lineage`. Raises TrainingError when nothing was trained.
    """
    from pipeline.rollout.conversations.chat_template import ChatTemplate
    from pipeline.training.change import training_record
    from pipeline.training.lineage import Lineage, policy_fingerprint
    from pipeline.training.lora import save_adapter
    from pipeline.training.trainer_args import on_main

    config, history, test = context.config, training.history, test or {}
    model = trainer.accelerator.unwrap_model(trainer.model)
    block = "sft" if context.round is None else config.objective
    record = training_record(before, model, history, block)

    def write() -> None:
        adapter = context.output / "adapter"
        save_adapter(model, adapter)
        lineage = Lineage(
            policy=policy_fingerprint(adapter, base_sha), base=config.model.base,
            base_sha=base_sha, parent=parent, reference=reference, round=context.round or 0,
            method=method, settings=settings, seed=context.seed, counts=counts, training=record,
            chat_template=ChatTemplate(tokenizer, thinking=config.model.thinking).identity,
            grammar=config.grammar, format=config.format,
        )  # fmt: skip
        lineage.write(context.output)
        history.write(context.output / "log.json", training=record, test=test)
        print(f"{history.steps:,} steps, mean loss {history.mean_loss():.4f}; {history.line()}")
        print(f"policy {lineage.policy}: {record}; held out: {test or 'nothing'}")

    on_main(trainer, write)
