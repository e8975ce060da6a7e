"""The stages ``sft`` and ``train``: from records to a policy directory.

Input of ``sft``: ``sft-data`` (SftExample). Input of ``train``: ``policy``, which may be the base
model, and ``pair`` (Pair; also ``sft`` if it is the reference) or, for objective ``grpo``,
``score`` (Trajectory). Output: ``adapter/``, ``lineage.json``, ``log.json``. SFT gives policy 0
(TeaRAG, arXiv 2511.05385, 4.3, eq. 4). Round n continues policy n - 1 on its own pairs (eq. 15-17),
or on all its scored trajectories (ProGraph-R1, eq. 16). The data is encoded once
(`pipeline.stages.files.training_data`), before the training processes start.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.config import for_round
from pipeline.core.model_files import model_hash
from pipeline.rollout.policy import read_policy
from pipeline.run.context import StageContext
from pipeline.run.launch import launch, with_processes
from pipeline.stages.files.training_data import (
    HELDOUT,
    TRAINING,
    TrainingData,
    encode_pair_data,
    encode_sft_data,
    encode_trajectory_data,
    report,
)
from pipeline.stages.given_policy import written_form
from pipeline.training.advantages import EncodedTrajectory
from pipeline.training.change import trained_weights, training_record
from pipeline.training.dpo import dpo_trainer
from pipeline.training.encode import EncodedPair, EncodedSft
from pipeline.training.encoded_file import EncodedFile
from pipeline.training.grpo import grpo_trainer
from pipeline.training.history import History
from pipeline.training.lineage import Lineage, check_base, policy_fingerprint, read_lineage
from pipeline.training.lora import (
    check_positions,
    continue_adapter,
    load_base,
    load_tokenizer,
    locate_base,
    new_adapter,
    save_adapter,
)
from pipeline.training.preflight import recorded_facts
from pipeline.training.sft import heldout_loss, sft_trainer
from pipeline.training.trackers import Tracking
from pipeline.training.trainer_args import on_main, train
from pipeline.training.trl_types import PeftModel, TrlTrainer

_METHODS = {"sigmoid": "dpo+sft", "apo_zero": "apo-zero+sft", "sft": "rejection-sampling"}


def run_sft(context: StageContext) -> dict[str, int]:
    """Stage ``sft``: policy 0. Returns counts of examples and tokens."""
    context = with_processes(context, "sft")
    settings = context.config.sft
    encode_sft_data(context)
    if settings.processes > 1:
        return launch(context, f"{__name__}:train_sft", settings, "sft")
    return train_sft(context)


def run_round(context: StageContext) -> dict[str, int]:
    """Stage ``train``: policy ``context.round``. Returns counts of records and of tokens."""
    objective = context.config.objective
    context, grpo = with_processes(context, objective), objective == "grpo"
    settings = context.config.trainer
    encode, train_stage = (
        (encode_trajectory_data, train_grpo) if grpo else (encode_pair_data, train_dpo)
    )
    _check_data(context)
    encode(context)
    if settings.processes > 1:
        return launch(context, f"{__name__}:{train_stage.__name__}", settings, objective)
    return train_stage(context)


def _check_data(context: StageContext) -> None:
    """Check the pairs of a round, or its trajectories for ``grpo``."""
    config, objective = context.config, context.config.objective
    questions = {
        name: path for name, path in context.inputs.items() if name.startswith("questions-")
    }
    if objective == "grpo":
        file = context.inputs["score"] / "trajectories.parquet"
    else:
        file = context.inputs["pair"] / "pairs.parquet"
    report(context, recorded_facts(file, objective, config.trainer.max_length, questions))


def train_sft(context: StageContext) -> dict[str, int]:
    """Train policy 0 on encoded data; each process of `pipeline.run.launch` calls it.

    Raises TrainingError when the base model has too few positions and when nothing is trained.
    """
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
        tracking=_tracking(context),
    )  # fmt: skip
    train(trainer, history, context.checkpoint_dir)
    lineage = Lineage(
        policy="", base=config.model.base, base_sha=model_hash(base), parent=None, reference=None,
        round=0, method="sft", seed=context.seed, counts=data.counts,
        settings={**settings.deciding(), "lora": config.lora.model_dump()},
        training=training_record(before, _policy(trainer), history, "sft"),
        **written_form(config, tokenizer),
    )  # fmt: skip
    test = heldout_loss(trainer, held_out)
    on_main(trainer, lambda: _write(context, trainer, history, lineage, test))
    return data.counts


def train_dpo(context: StageContext) -> dict[str, int]:
    """Train the policy of ``context.round`` on encoded pairs, or with loss "sft" on chosen sides.

    Every process calls it. Raises TrainingError for a reference over another base, when the stop
    rule applies, and when nothing is trained.
    """
    config, settings, number = context.config, context.config.dpo, context.round or 1
    data = TrainingData.read(context.checkpoint_dir)
    path = context.checkpoint_dir / TRAINING
    base, sha, parent = _parent(context)
    reference = parent
    if settings.reference == "sft":
        reference = read_lineage(context.inputs["sft"])
        check_base(reference, sha)
    chosen_alone = settings.loss == "sft"
    lengths = EncodedFile(path, EncodedSft if chosen_alone else EncodedPair).lengths
    model = _previous_policy(context, base, max(lengths))
    tokenizer = load_tokenizer(base, config.model)
    before, history = trained_weights(model), History(context.progress)
    is_parent = reference.policy == parent.policy
    shared: dict[str, Any] = {
        "number": number, "seed": context.seed, "checkpoint_dir": context.checkpoint_dir,
        "history": history, "tracking": _tracking(context),
    }  # fmt: skip
    trainer: TrlTrainer = (
        sft_trainer(model, tokenizer, EncodedFile(path, EncodedSft), settings, **shared)
        if chosen_alone
        else dpo_trainer(
            model, tokenizer, EncodedFile(path, EncodedPair), settings, **shared,
            reference_name=f"{reference.base_sha} {reference.policy}",
            reference_adapter=None if is_parent else context.inputs["sft"] / "adapter",
        )
    )  # fmt: skip
    train(trainer, history, context.checkpoint_dir)
    lineage = Lineage(
        policy="", base=config.model.base, base_sha=sha, parent=parent.policy,
        reference=None if chosen_alone else reference.policy, round=number,
        method=_METHODS[settings.loss], seed=context.seed, counts=data.counts,
        settings={
            **settings.deciding(),
            "eta": for_round(settings.eta, number),
            "epochs": for_round(settings.round_epochs, number),
            "lora": config.lora.model_dump(),
            "pairs_from": data.policies,
        },
        training=training_record(before, _policy(trainer), history, "dpo"),
        **written_form(config, tokenizer),
    )  # fmt: skip
    on_main(trainer, lambda: _write(context, trainer, history, lineage, {}))
    return data.counts


def train_grpo(context: StageContext) -> dict[str, int]:
    """Train the policy of ``context.round`` on encoded trajectories; every process calls it.

    Raises TrainingError when the base model has too few positions and when nothing is trained.
    """
    config, settings = context.config, context.config.grpo
    assert settings is not None
    data = TrainingData.read(context.checkpoint_dir)
    trajectories = EncodedFile(context.checkpoint_dir / TRAINING, EncodedTrajectory)
    base, sha, parent = _parent(context)
    model = _previous_policy(context, base, max(trajectories.lengths))
    tokenizer = load_tokenizer(base, config.model)
    before, history = trained_weights(model), History(context.progress)
    trainer = grpo_trainer(
        model, tokenizer, trajectories, settings,
        temperature=config.sampling.temperature, seed=context.seed,
        checkpoint_dir=context.checkpoint_dir, history=history,
        tracking=_tracking(context),
    )  # fmt: skip
    train(trainer, history, context.checkpoint_dir)
    lineage = Lineage(
        policy="", base=config.model.base, base_sha=sha, parent=parent.policy,
        reference=parent.policy if settings.beta else None, round=context.round or 1,
        method="grpo", seed=context.seed, counts=data.counts,
        settings={
            **settings.deciding(),
            "temperature": config.sampling.temperature,
            "lora": config.lora.model_dump(),
            "paths_from": data.policies,
        },
        training=training_record(before, _policy(trainer), history, "grpo"),
        **written_form(config, tokenizer),
    )  # fmt: skip
    on_main(trainer, lambda: _write(context, trainer, history, lineage, {}))
    return data.counts


def _tracking(context: StageContext) -> Tracking:
    label = context.stage if context.round is None else f"{context.stage}-{context.round}"
    config = context.config
    return Tracking(config.trackers, config.name, label, config.run_dir / "trackers")


def _policy(trainer: TrlTrainer) -> PeftModel:
    return trainer.accelerator.unwrap_model(trainer.model)


def _parent(context: StageContext) -> tuple[Path, str, Lineage]:
    """The base model's directory and hash, and the lineage of policy n - 1."""
    base = locate_base(context.config.model.base)
    sha, parent = model_hash(base), read_lineage(context.inputs["policy"])
    check_base(parent, sha)
    return base, sha, parent


def _previous_policy(context: StageContext, base: Path, longest: int) -> PeftModel:
    """Policy n - 1 with a trainable adapter; ``longest`` is the length of the longest sequence."""
    config = context.config
    model = load_base(base, config.trainer, config.objective)
    check_positions(model, longest, config.objective)
    adapter = read_policy(context.inputs["policy"]).adapter
    if adapter is None:  # the base model (``start``)
        return new_adapter(model, config.lora, context.seed)
    return continue_adapter(model, adapter, config.lora)


def _write(
    context: StageContext,
    trainer: TrlTrainer,
    history: History,
    lineage: Lineage,
    test: dict[str, float],
) -> None:
    adapter = context.output / "adapter"
    save_adapter(_policy(trainer), adapter)
    policy = policy_fingerprint(adapter, lineage.base_sha)
    replace(lineage, policy=policy).write(context.output)
    history.write(context.output / "log.json", training=lineage.training, test=test)
    print(f"{history.steps:,} steps, mean loss {history.mean_loss():.4f}; {history.line()}")
    print(f"policy {policy}: {lineage.training}; held out: {test or 'nothing'}")
