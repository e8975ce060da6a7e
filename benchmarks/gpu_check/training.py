"""Parts that train: SFT, DPO, GRPO, 4-bit weights, and the margin at step one.

Each calls the trainers of `pipeline.training` on random records of a published size.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import Any
from unittest.mock import patch

from benchmarks.gpu_check.figures import Figures, Place, add_peak, reset_peak, synchronize
from benchmarks.gpu_check.models import (
    BF16_NATS,
    language_model,
    language_model_directory,
    shape_of,
    tokenizer_of,
)
from pipeline.config import Dpo, Grpo, Lora, Sft
from pipeline.core.model_shapes import ModelShape
from pipeline.training import trainer_args
from pipeline.training.advantages import EncodedTrajectory
from pipeline.training.dpo import dpo_trainer
from pipeline.training.encode import IGNORED, EncodedPair, EncodedSft
from pipeline.training.encoded_file import EncodedFile, write_encoded
from pipeline.training.grpo import grpo_trainer
from pipeline.training.history import History
from pipeline.training.kept_activations import keep_what_fits
from pipeline.training.lean_forward import install_lean_forward
from pipeline.training.lora import load_base, new_adapter
from pipeline.training.sft import sft_trainer
from pipeline.training.trainer_args import Training, train

LORA = Lora(r=8, alpha=32, dropout=0.1)
STEPS = 3  # the first also compiles and allocates, so times exclude it
PROMPT = 200  # tokens of a prompt at real sizes
_WRITTEN = 3  # of ten tokens of a completion the model wrote as many


def sft(place: Place, figures: Figures) -> None:
    """SFT at TeaRAG's batch of a device: 16 sequences of 2,500 tokens."""
    length, batch = (48, 4) if place.tiny else (2500, 16)
    shape = shape_of(place)
    records = [sft_record(shape, number, length) for number in range(batch * STEPS)]
    settings = Sft(learning_rate=5e-4, **_common(place, batch))
    _measure(new_policy(shape, place), records, settings, batch * length, figures)


def dpo(place: Place, figures: Figures) -> None:
    """DPO at the longest sequences: 2 pairs of two sequences of 8,192 tokens."""
    length, pairs = (64, 2) if place.tiny else (8192, 2)
    shape = shape_of(place)
    records = [pair_record(shape, number, length) for number in range(pairs * STEPS)]
    settings = Dpo(learning_rate=1e-4, round_epochs=(1,), **_common(place, pairs))
    _measure(new_policy(shape, place), records, settings, 2 * pairs * length, figures)


def dpo_4bit(place: Place, figures: Figures) -> None:
    """DPO over base weights in 4 bit, which a 24 GB card can train."""
    length, shape = 8192, shape_of(place)
    records = [pair_record(shape, number, length) for number in range(STEPS)]
    settings = Dpo(
        learning_rate=1e-4, round_epochs=(1,), quantization="4bit", **_common(place, 1)
    )  # fmt: skip
    base = load_base(language_model_directory(place), settings, "dpo")
    _measure(new_adapter(base, LORA, 0), records, settings, 2 * length, figures)


def grpo(place: Place, figures: Figures) -> None:
    """GRPO on a cached batch: 4 trajectories of 4,096 tokens, KL to the reference included."""
    length, batch = (64, 2) if place.tiny else (4096, 4)
    shape = shape_of(place)
    records = [trajectory_record(shape, number, length) for number in range(batch * STEPS)]
    settings = Grpo(learning_rate=1e-5, **_common(place, batch))
    _measure(new_policy(shape, place), records, settings, batch * length, figures)


def dpo_mixed(place: Place, figures: Figures) -> None:
    """DPO on pairs of different lengths, in our pass and in TRL's padded one.

    Our pass is also timed with all layers run again in the backward pass. Sides have log-normal
    lengths with a median of 1,000 tokens. The reference is not timed.
    """
    import numpy as np

    steps, size = (1, 4) if place.tiny else (STEPS, 16)
    median_, least, most = (30, 16, 64) if place.tiny else (1000, 300, 4000)
    drawn = np.random.default_rng(0).lognormal(math.log(median_), 0.5, (steps * size, 2))
    shape, lengths = shape_of(place), drawn.clip(least, most).astype(int)
    records = []
    for number, (chosen, rejected) in enumerate(lengths.tolist()):
        record, other = (pair_record(shape, number, length) for length in (chosen, rejected))
        ids, mask = other.rejected_ids, other.rejected_mask
        records.append(replace(record, rejected_ids=ids, rejected_mask=mask))
    common = {**_common(place, size), "per_device_batch_size": 2}
    settings = Dpo(learning_rate=1e-4, round_epochs=(1,), **common)
    losses = []
    passes = {
        "packed": (install_lean_forward, keep_what_fits),
        "packed, all layers run again": (install_lean_forward, lambda *_: None),
        "padded": (lambda *_: False, keep_what_fits),
    }
    for name, (install, keep) in passes.items():
        reset_peak()
        with (
            patch.object(trainer_args, "install_lean_forward", install),
            patch.object(trainer_args, "keep_what_fits", keep),
        ):
            history, seconds = _trained(new_policy(shape, place, 0.0), records, settings)
        losses.append([row["loss"] for row in history.rows])
        figures.add(f"{name}: real tokens", float(lengths.sum()) / sum(seconds), "tokens/s")
        add_peak(figures, f"{name}: peak memory")
    away = max(max(row) - min(row) for row in zip(*losses, strict=True))
    figures.add("largest difference of a loss", away, expected="< .05", holds=away < 0.05)


def margin(place: Place, figures: Figures, spoil: Callable[[Any], None] | None = None) -> None:
    """DPO's margin with an adapter that is not zero, without dropout and without learning.

    Policy and reference are then the same function of the same weights, so that the margin is 0 and
    the loss ln 2 in both steps. The reference is computed in batches of similar length and the
    steps in shuffled ones, where the same pairs have other padding. ``spoil`` changes the trainer
    before its first step. The bound in bfloat16 is four standard deviations of the mean margin of
    four pairs: two passes in batches of other shapes differ by up to ½ `BF16_NATS` at a token,
    without a common sign.
    """
    length = 64 if place.tiny else 2048
    shape = shape_of(place, layers=8)
    records = [pair_record(shape, n, length - (length // 16) * n) for n in range(8)]
    written = max(sum(record.chosen_mask) + sum(record.rejected_mask) for record in records)
    for dtype in ("float32", "bfloat16"):
        reset_peak()
        place = replace(place, dtype=dtype)
        common = {**_common(place, 4), "per_device_batch_size": 2}
        settings = Dpo(learning_rate=1e-30, round_epochs=(1,), **common)
        policy = adapted(language_model(shape, place))
        history, _ = _trained(policy, records, settings, spoil or (lambda _: None))
        rounding = 4 * settings.beta * 0.5 * BF16_NATS * math.sqrt(written / 4)
        bound = 1e-3 if dtype == "float32" else rounding
        for row in history.rows:
            step = f"{dtype}, step {row['step']:g}"
            for name, found, exact in (
                ("DPO loss", row["loss/dpo"], math.log(2)),
                ("reward margin, nats × β", row["rewards/margins"], 0.0),
            ):
                expected, holds = f"{exact:.4g} within {bound:.2g}", abs(found - exact) <= bound
                figures.add(f"{step}: {name}", found, expected=expected, holds=holds)


def new_policy(shape: ModelShape, place: Place, dropout: float = LORA.dropout) -> Any:
    """A random model with a new adapter, which does not change it."""
    lora = LORA.model_copy(update={"dropout": dropout})
    return new_adapter(language_model(shape, place), lora, 0)


def adapted(model: Any, size: float = 0.01) -> Any:
    """A PEFT model whose adapter changes the base: both of its factors are random; no dropout."""
    import torch

    policy: Any = new_adapter(model, LORA.model_copy(update={"dropout": 0.0}), 0)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, value in policy.named_parameters():
            if "lora_B" in name:
                value.normal_(std=size)
    return policy


def in_file(folder: Path, records: Sequence[Any]) -> EncodedFile[Any]:
    """Encoded records of one type as a trainer reads them: from a file in ``folder``."""
    path, kind = folder / "training.arrow", type(records[0])
    write_encoded(path, kind, records)
    return EncodedFile(path, kind)


def trainer_of(
    policy: Any, records: EncodedFile[Any], settings: Sft | Dpo | Grpo, training: Training
) -> Any:
    """The trainer of the stage with these settings."""
    tokenizer = tokenizer_of(policy.config.vocab_size)
    if isinstance(settings, Sft):
        return sft_trainer(policy, tokenizer, records, settings, training)
    if isinstance(settings, Grpo):
        return grpo_trainer(policy, tokenizer, records, settings, training, temperature=1.0)
    return dpo_trainer(
        policy, tokenizer, records, settings, training, number=1, reference_name="random"
    )


def sft_record(shape: ModelShape, number: int, length: int) -> EncodedSft:
    """A random sequence of ``length`` tokens of which the model wrote some."""
    ids = _ids(shape, number, length)
    labels = [token if at % 10 < _WRITTEN else IGNORED for at, token in enumerate(ids)]
    return EncodedSft(f"e{number}", ids, labels)


def pair_record(shape: ModelShape, number: int, length: int) -> EncodedPair:
    """A random pair whose sides have ``length`` tokens each with the prompt."""
    prompt = min(PROMPT, length // 4)
    chosen = _ids(shape, 2 * number, length - prompt)
    rejected = _ids(shape, 2 * number + 1, length - prompt)
    mask = [int(at % 10 < _WRITTEN) for at in range(length - prompt)]
    return EncodedPair(f"p{number}", _ids(shape, number, prompt), chosen, rejected, mask, mask)


def trajectory_record(shape: ModelShape, number: int, length: int) -> EncodedTrajectory:
    """A random trajectory of ``length`` tokens.

    Its recorded log-probabilities come from a uniform distribution, and its advantage alternates.
    """
    prompt = min(PROMPT, length // 4)
    mask = [int(at % 10 < _WRITTEN) for at in range(length - prompt)]
    uniform, sign = -math.log(shape.vocabulary), 1.0 - 2 * (number % 2)
    return EncodedTrajectory(
        f"t{number}", f"q{number // 2}", _ids(shape, number + 1000, prompt),
        _ids(shape, number, length - prompt), mask, [uniform * written for written in mask],
        [sign * written for written in mask],
    )  # fmt: skip


def _ids(shape: ModelShape, seed: int, length: int) -> list[int]:
    import numpy as np

    ids: list[int] = np.random.default_rng(seed).integers(3, shape.vocabulary, length).tolist()
    return ids


def _common(place: Place, batch: int) -> dict[str, Any]:
    """Settings of all parts, with the whole batch in one forward pass."""
    return {
        "batch_size": batch,
        "per_device_batch_size": batch,
        "dtype": place.dtype,
        "gradient_checkpointing": not place.tiny,
        "max_length": 8192,
    }


def _measure(
    policy: Any, records: Sequence[Any], settings: Sft | Dpo | Grpo, tokens: int, figures: Figures
) -> None:
    """Train `STEPS` steps of ``tokens`` each; add time, memory and loss.

    A batch that does not fit ends the part: smaller ones would hide that the plan was wrong.
    """
    history, seconds = _trained(policy, records, settings)
    figures.add("time of a step", median(seconds[1:]), "s")
    figures.add("tokens", tokens / median(seconds[1:]), "tokens/s")
    losses = [row["loss"] for row in history.rows]
    figures.add("loss at the first step", losses[0])
    finite = all(map(math.isfinite, losses)) and len(losses) == STEPS
    figures.add(f"losses of {STEPS} steps are finite", str(finite), expected="True", holds=finite)
    add_peak(figures)
    first = history.rows[0]
    if "loss/dpo" in first:  # the policy of a new adapter is the reference; `margin` checks them
        figures.add("DPO loss at step one (ln 2 without rounding)", first["loss/dpo"])
        figures.add("reward margin at step one (0 without rounding)", first["rewards/margins"])


def _trained(
    policy: Any, records: Sequence[Any], settings: Sft | Dpo | Grpo,
    change: Callable[[Any], None] = lambda _: None,
) -> tuple[History, list[float]]:  # fmt: skip
    """Train on the records; returns the history, and the seconds of every optimizer step."""
    from transformers import TrainerCallback

    seconds: list[float] = []

    class Clock(TrainerCallback):
        """Seconds of every optimizer step, the GPU's work included."""

        def on_step_begin(self, *_: object, **__: object) -> None:
            synchronize()
            self.start = time.perf_counter()

        def on_step_end(self, *_: object, **__: object) -> None:
            synchronize()
            seconds.append(time.perf_counter() - self.start)

    folder = Path(mkdtemp(prefix="gpu-check-"))
    training = Training(0, folder)
    trainer = trainer_of(policy, in_file(folder, records), settings, training)
    change(trainer)
    trainer.add_callback(Clock())
    train(trainer, training)
    return training.history, seconds
