"""Row ``dpo``: one epoch of preference training, against plain TRL.

Work: pairs of round 1 of a finished run. Ours is the trainer of the stage. It computes the
log-probabilities of the reference once, batches records of similar length, and uses the lean
forward pass (`pipeline.training.lean_forward`). The peer is TRL's ``DPOTrainer`` with its defaults.
Its reference is a copy of the adapter, whose forward pass every step repeats, and it reads records
in the order of the data. It gets our ids and masks, because it would train on retrieved text
otherwise, and the same pairs in every optimizer step.

The losses of all steps must agree to a relative error of 1e-4. They do if a step is one
micro-batch, as in the timed work. TRL's term "sft" is a mean over the tokens of a micro-batch, and
Trainer averages the micro-batches of a step, so a token of a short micro-batch counts more. Our
term is the mean over the tokens of the step, as in the equation (`pipeline.training.step_weights`).
With several micro-batches in a step the two therefore report different losses for the same
log-probabilities; `divided_losses` measures the difference.

Row ``ranks``: the share of real tokens among those that all GPUs of a training could compute until
the last is done with a step. Work: the batches of TeaRAG's training (5.1.3), by count, without
computing them. The peer pads micro-batches of the shuffled order, as TRL does.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.training import in_file
from benchmarks.timing import Row, alternate
from pipeline.api import Run
from pipeline.config import Dpo, Lora, for_round, load
from pipeline.training.collate import StepSortedSampler, padding_id
from pipeline.training.dpo import COLUMNS, dpo_trainer
from pipeline.training.encode import EncodedPair, encode_pairs
from pipeline.training.lora import continue_adapter, load_base, load_tokenizer, locate_base
from pipeline.training.trainer_args import Training, shared_arguments, train

CLOSE = 1e-4  # of a loss
_STEP, _PER_DEVICE, _RANKS = 16, 2, 8  # TeaRAG's DPO, 5.1.3


@dataclass(frozen=True)
class Work:
    """Pairs, the policy that sampled them, and the settings of the training."""

    base: Path
    adapter: Path
    tokenizer: Any
    pairs: Sequence[EncodedPair]
    settings: Dpo
    lora: Lora

    def divided(self, per_device: int) -> Work:
        """The same with micro-batches of ``per_device`` pairs."""
        settings = self.settings.model_copy(update={"per_device_batch_size": per_device})
        return Work(self.base, self.adapter, self.tokenizer, self.pairs, settings, self.lora)


def ours(work: Work) -> list[float]:
    """Train as the stage does; returns the loss of every optimizer step."""
    with tempfile.TemporaryDirectory(prefix="dpo-") as name:
        training = Training(0, Path(name))
        trainer = dpo_trainer(
            continue_adapter(load_base(work.base, work.settings, "dpo"), work.adapter, work.lora),
            work.tokenizer, in_file(Path(name), work.pairs), work.settings, training,
            number=1, reference_name="r",
        )  # fmt: skip
        train(trainer, training)
        return [row["loss"] for row in training.history.rows]


def plain_trl(work: Work) -> list[float]:
    """Train with TRL's own trainer; returns the loss of every optimizer step."""
    from torch.utils.data import SequentialSampler
    from transformers.trainer_callback import PrinterCallback
    from trl import DPOConfig

    from pipeline.training.recorded_ids import RecordedIdsCollator, RecordedIdsTrainer

    class RecordedIds(RecordedIdsTrainer):
        def _get_train_sampler(self, dataset: Any = None) -> Any:
            return SequentialSampler(self.train_dataset)

    settings, folder = work.settings, Path(tempfile.mkdtemp(prefix="dpo-"))
    try:
        training = Training(0, folder)
        arguments = shared_arguments(settings, "dpo", training, epochs=1, records=len(work.pairs))
        trainer = RecordedIds(
            model=continue_adapter(load_base(work.base, settings, "dpo"), work.adapter, work.lora),
            args=DPOConfig(
                **{**arguments, "save_strategy": "no"},
                max_length=None,
                beta=settings.beta,
                loss_type=["sigmoid", "sft"],
                loss_weights=[1.0, for_round(settings.eta, 1)],
            ),
            train_dataset=in_file(folder, in_step_order(work)).dataset.select_columns(COLUMNS),
            data_collator=RecordedIdsCollator(pad_token_id=padding_id(work.tokenizer)),
            processing_class=work.tokenizer,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    finally:
        shutil.rmtree(folder)
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def in_step_order(work: Work) -> list[EncodedPair]:
    """The pairs in the order of our trainer's optimizer steps, but not sorted by length."""
    lengths = [pair.length for pair in work.pairs]
    step = work.settings.batch_size
    order = list(StepSortedSampler(lengths, step, 0, per_device=step))
    steps = [sorted(order[start : start + step]) for start in range(0, len(order), step)]
    return [work.pairs[number] for numbers in steps for number in numbers]


def compared(work: Work, repeats: int) -> list[Row]:
    """The row for steps of one micro-batch. Raises AssertionError when losses differ."""
    whole = work.divided(work.settings.batch_size)
    losses: dict[str, list[float]] = {}

    def contender(name: str, train_with: Callable[[Work], list[float]]) -> Callable[[], None]:
        return lambda: losses.update({name: train_with(whole)})

    seconds = alternate(
        {"ours": contender("ours", ours), "plain": contender("plain", plain_trl)}, repeats
    )
    difference = relative_difference(losses["ours"], losses["plain"])
    assert difference < CLOSE, f"losses differ by {difference:.1e} of them: {losses}"
    tokens = sum(pair.tokens for pair in work.pairs)
    mean = sum(losses["ours"]) / len(losses["ours"])
    return [
        Row(
            "dpo",
            f"{len(work.pairs)} pairs, {tokens:,} tokens, {len(losses['ours'])} steps, "
            f"{work.settings.dtype}; mean loss {mean:.4f}, equal to {difference:.0e}",
            "plain TRL DPOTrainer",
            [tokens / value for value in seconds["ours"]],
            [tokens / value for value in seconds["plain"]],
            "tokens per CPU s",
            "≥ 3",
            ours_over_peer=True,
            details={"losses": losses, **divided_losses(work)},
        )
    ]


def divided_losses(work: Work) -> dict[str, Any]:
    """The losses of both trainers; with several micro-batches in a step they differ."""
    size = work.settings.per_device_batch_size
    return {
        f"losses_in_micro_batches_of_{size}": {"ours": ours(work), "plain": plain_trl(work)},
        "why_they_differ": "TRL averages the means over the tokens of each micro-batch",
    }


def ranks(lengths: Sequence[tuple[int, int]], repeats: int) -> Row:
    """The share of real tokens, for pairs with sides of these ``lengths``; one seed a repeat."""

    def share(seed: int, *, ours: bool) -> float:
        longest, tokens = [max(pair) for pair in lengths], [sum(pair) for pair in lengths]
        if ours:
            sampler = StepSortedSampler(
                longest, _STEP, seed, per_device=_PER_DEVICE, processes=_RANKS, tokens=tokens
            )
        else:
            sampler = StepSortedSampler([0] * len(lengths), _STEP, seed)
        order, real, waited = list(sampler), 0, 0
        for first in range(0, len(order) - _STEP + 1, _STEP):
            step = order[first : first + _STEP]
            computed = []  # by each GPU, whose share is one micro-batch
            for start in range(0, _STEP, _PER_DEVICE):
                rows = [side for at in step[start : start + _PER_DEVICE] for side in lengths[at]]
                computed.append(sum(rows) if ours else len(rows) * max(rows))
            real += sum(tokens[at] for at in step)
            waited += _RANKS * max(computed)
        return real / waited

    return Row(
        "ranks",
        f"{len(lengths)} pairs; steps of {_STEP} on {_RANKS} GPUs, {_PER_DEVICE} each at once",
        "padded, in shuffled order",
        [share(seed, ours=True) for seed in range(repeats)],
        [share(seed, ours=False) for seed in range(repeats)],
        "real tokens / (ranks × slowest rank)",
        "≥ .85",
        ours_over_peer=True,
    )


def relative_difference(left: Sequence[float], right: Sequence[float]) -> float:
    """The largest difference between the two losses of a step, as a share of the loss."""
    return max(abs(a - b) / abs(a) for a, b in zip(left, right, strict=True))


def rows(directory: Path, count: int, repeats: int) -> list[Row]:
    """The first ``count`` pairs of round 1 of the finished run in ``directory``, for one epoch.

    Raises StoreError when the round is not complete.
    """
    run, config = Run.from_directory(directory), load(directory / "config.yaml")
    base = locate_base(config.model.base)
    tokenizer = load_tokenizer(base, config.model)
    pairs = encode_pairs(tokenizer, list(run.pairs(1)))
    # TRL has no SFT term that is a sum.
    update = {"round_epochs": (1.0,), "processes": 1, "dtype": "float32", "eta_of": "mean"}
    work = Work(
        base,
        run.policies()[0].directory / "adapter",
        tokenizer,
        pairs[:count],
        config.dpo.model_copy(update=update),
        config.lora,
    )
    sides = [
        (len(pair.prompt_ids) + len(pair.chosen_ids), len(pair.prompt_ids) + len(pair.rejected_ids))
        for pair in pairs
    ]
    return [*compared(work, repeats), ranks(sides, repeats)]
