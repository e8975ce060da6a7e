"""Parts that train: SFT, DPO, GRPO, 4-bit weights, the margin at step one, a resumed run.

Each calls the trainers of `pipeline.training` on random records of a published size.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import Any, Literal
from unittest.mock import patch

import pipeline.training.dpo as dpo_module
from benchmarks.gpu_check.figures import Figures, Place, add_peak, reset_peak, synchronize
from benchmarks.gpu_check.models import (
    BF16_NATS,
    Shape,
    language_model,
    language_model_directory,
    shape_of,
    tokenizer_of,
)
from pipeline.config import Dpo, Grpo, Lora, Sft
from pipeline.core.errors import SteepError
from pipeline.training import trainer_args
from pipeline.training.advantages import EncodedTrajectory
from pipeline.training.dpo import dpo_trainer
from pipeline.training.encode import IGNORED, EncodedPair, EncodedSft
from pipeline.training.grpo import grpo_trainer
from pipeline.training.history import History
from pipeline.training.kept_activations import keep_what_fits
from pipeline.training.lean_forward import install_lean_forward
from pipeline.training.lora import load_base, new_adapter
from pipeline.training.sft import sft_trainer
from pipeline.training.trainer_args import train

LORA = Lora(r=8, alpha=32, dropout=0.1)
STEPS = 3  # the first also compiles and allocates, so times exclude it
PROMPT = 200  # tokens of a prompt at real sizes
_WRITTEN = 3  # of ten tokens of a completion the model wrote as many


def sft(place: Place, figures: Figures) -> None:
    """SFT at TeaRAG's batch of a device: 16 sequences of 2,500 tokens."""
    length, batch = (48, 4) if place.tiny else (2500, 16)
    shape = shape_of(place)
    records = [sft_record(shape, number, length) for number in range(batch * STEPS)]

    def trainer(per_device: int, folder: Path, history: History) -> Any:
        settings = Sft(
            learning_rate=5e-4, batch_size=batch, per_device_batch_size=per_device, **_common(place)
        )
        model = new_adapter(language_model(shape, place), LORA, 0)
        return sft_trainer(
            model, tokenizer_of(shape.vocabulary), records, settings, seed=0, checkpoint_dir=folder,
            history=history,
        )  # fmt: skip

    _measure(trainer, batch, batch * length, figures)


def dpo(place: Place, figures: Figures) -> None:
    """DPO at the longest sequences: 2 pairs of two sequences of 8,192 tokens."""
    length, pairs = (64, 2) if place.tiny else (8192, 2)
    shape = shape_of(place)
    records = [pair_record(shape, number, length) for number in range(pairs * STEPS)]

    def trainer(per_device: int, folder: Path, history: History) -> Any:
        model = new_adapter(language_model(shape, place), LORA, 0)
        return _dpo_trainer(model, shape, records, place, folder, history, pairs, per_device)

    history = _measure(trainer, pairs, 2 * pairs * length, figures)
    _add_start(history, figures)


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
    records = [
        replace(
            pair_record(shape, number, int(chosen)),
            rejected_ids=(other := pair_record(shape, number, int(rejected))).rejected_ids,
            rejected_mask=other.rejected_mask,
        )
        for number, (chosen, rejected) in enumerate(lengths)
    ]
    losses = []
    lora = LORA.model_copy(update={"dropout": 0.0})
    passes = {
        "packed": (install_lean_forward, keep_what_fits),
        "packed, all layers run again": (install_lean_forward, lambda *_: None),
        "padded": (lambda _: False, keep_what_fits),
    }
    for name, (install, keep) in passes.items():
        reset_peak()
        history, seconds, folder = History(), list[float](), _folder()
        model = new_adapter(language_model(shape, place), lora, 0)
        with (
            patch.object(dpo_module, "install_lean_forward", install),
            patch.object(trainer_args, "keep_what_fits", keep),
        ):
            trainer = _dpo_trainer(model, shape, records, place, folder, history, size, 2)
        trainer.add_callback(_clock(seconds))
        train(trainer, history, folder)
        losses.append([row["loss"] for row in history.rows])
        figures.add(f"{name}: real tokens", float(lengths.sum()) / sum(seconds), "tokens/s")
        add_peak(figures, f"{name}: peak memory")
        del model, trainer
    away = max(max(row) - min(row) for row in zip(*losses, strict=True))
    figures.verdict("largest difference of a loss", away, away < 0.05, expected="< .05")


def dpo_4bit(place: Place, figures: Figures) -> None:
    """DPO over base weights in 4 bit, which a 24 GB card can train."""
    length, shape = 8192, shape_of(place)
    directory = language_model_directory(place)
    records = [pair_record(shape, number, length) for number in range(STEPS)]

    def trainer(per_device: int, folder: Path, history: History) -> Any:
        settings = Dpo(learning_rate=1e-4, batch_size=1, quantization="4bit", **_common(place))
        model = new_adapter(load_base(directory, settings, "dpo"), LORA, 0)
        return _dpo_trainer(model, shape, records, place, folder, history, 1, 1, "4bit")

    history = _measure(trainer, 1, 2 * length, figures)
    _add_start(history, figures)


def grpo(place: Place, figures: Figures) -> None:
    """GRPO on a cached batch: 4 trajectories of 4,096 tokens, KL to the reference included."""
    length, batch = (64, 2) if place.tiny else (4096, 4)
    shape = shape_of(place)
    records = [trajectory_record(shape, number, length) for number in range(batch * STEPS)]

    def trainer(per_device: int, folder: Path, history: History) -> Any:
        settings = Grpo(
            learning_rate=1e-5, batch_size=batch, per_device_batch_size=per_device, **_common(place)
        )
        model = new_adapter(language_model(shape, place), LORA, 0)
        return grpo_trainer(
            model, tokenizer_of(shape.vocabulary), records, settings, temperature=1.0, seed=0,
            checkpoint_dir=folder, history=history,
        )  # fmt: skip

    _measure(trainer, batch, batch * length, figures)


def margin(place: Place, figures: Figures, spoil: Callable[[Any], None] | None = None) -> None:
    """DPO's margin with an adapter that is not zero, without dropout and without learning.

    Policy and reference are then the same function of the same weights, so that the margin is 0 and
    the loss ln 2 in both steps. The reference is computed in batches of similar length and the
    steps in shuffled ones, where the same pairs have other padding. ``spoil`` changes the trainer
    before its first step.
    """
    length = 64 if place.tiny else 2048
    shape = shape_of(place, layers=8)
    lengths = [length - (length // 16) * number for number in range(8)]
    records = [pair_record(shape, number, size) for number, size in enumerate(lengths)]
    for dtype in ("float32", "bfloat16"):
        place = replace(place, dtype=dtype)
        model = adapted(language_model(shape, place), dropout=0.0)
        history, size = History(), 2
        trainer = _dpo_trainer(
            model, shape, records, place, _folder(), history, 4, size, learning_rate=1e-30
        )
        order = list(trainer._get_train_sampler())
        batches = [set(order[start : start + size]) for start in range(0, len(order), size)]
        same = sum({at, at + 1} in batches for at in range(0, len(records), size))
        figures.verdict(
            f"{dtype}: batches that the reference had too", same, same < len(batches),
            expected=f"fewer than {len(batches)}",
        )  # fmt: skip
        if spoil is not None:
            spoil(trainer)
        train(trainer, history, Path(trainer.args.output_dir).parent)
        tolerance = 1e-3 if dtype == "float32" else _rounding(records, 4)
        for row in history.rows:
            _check_row(row, figures, tolerance, f"{dtype}, step {row['step']:g}")
        del model, trainer
        reset_peak()


def resume(place: Place, figures: Figures) -> None:
    """A run that is stopped after step 3 of 6 and continued, against two uninterrupted runs.

    Kernels may add in a different order each time, and Adam turns the sign of gradients near zero
    into whole steps, so two uninterrupted runs may differ too. In float32 they hardly differ.
    """
    length = 48 if place.tiny else 512
    place = replace(place, dtype="float32")
    shape = shape_of(place, layers=4)
    records = [sft_record(shape, number, length) for number in range(12)]

    def run(
        folder: Path, stop_at: int | None = None
    ) -> tuple[dict[str, Any], History, list[float]]:
        history, seconds = History(), list[float]()
        settings = Sft(learning_rate=5e-4, batch_size=2, per_device_batch_size=2, **_common(place))
        model = new_adapter(language_model(shape, place), LORA, 0)
        trainer = sft_trainer(
            model, tokenizer_of(shape.vocabulary), records, settings, seed=0, checkpoint_dir=folder,
            history=history,
        )  # fmt: skip
        if stop_at is not None:
            trainer.add_callback(_stopping(stop_at))
        trainer.add_callback(_clock(seconds))
        train(trainer, history, folder)
        return _adapter(trainer), history, seconds

    (whole, history, _), (again, history_again, _) = run(_folder()), run(_folder())
    folder = _folder()
    with contextlib.suppress(_Stopped):
        run(folder, 3)
    continued, history_continued, taken = run(folder)
    figures.verdict("steps taken after the stop", len(taken), len(taken) == 3, expected="3 of 6")
    steps = [int(row["step"]) for row in history_continued.rows]
    figures.verdict("steps in the log", str(steps), steps == [1, 2, 3, 4, 5, 6], expected="1 to 6")
    for name, usual, found in (
        ("adapters, of their norm", _apart(whole, again), _apart(whole, continued)),
        ("losses", _largest(history, history_again), _largest(history, history_continued)),
    ):
        bound = 4 * usual + 1e-4
        figures.add(f"{name}: difference of two uninterrupted runs", usual)
        figures.verdict(
            f"{name}: difference after the stop", found, found <= bound < 0.1,
            expected=f"≤ {bound:.2g}, and that < .1",
        )  # fmt: skip


def _apart(left: dict[str, Any], right: dict[str, Any]) -> float:
    """The norm of the difference of two adapters, relative to the first."""
    away = sum(float((left[name] - right[name]).square().sum()) for name in left)
    norm: float = (away / sum(float(value.square().sum()) for value in left.values())) ** 0.5
    return norm


def _largest(left: History, right: History) -> float:
    """The largest difference of a loss."""
    pairs = zip(left.rows, right.rows, strict=True)
    return max(float(abs(a["loss"] - b["loss"])) for a, b in pairs)


def sft_record(shape: Shape, number: int, length: int) -> EncodedSft:
    """A random sequence of ``length`` tokens of which the model wrote some."""
    ids = _ids(shape, number, length)
    labels = [token if at % 10 < _WRITTEN else IGNORED for at, token in enumerate(ids)]
    return EncodedSft(f"e{number}", ids, labels)


def pair_record(shape: Shape, number: int, length: int) -> EncodedPair:
    """A random pair whose sides have ``length`` tokens each with the prompt."""
    prompt = min(PROMPT, length // 4)
    chosen = _ids(shape, 2 * number, length - prompt)
    rejected = _ids(shape, 2 * number + 1, length - prompt)
    mask = [int(at % 10 < _WRITTEN) for at in range(length - prompt)]
    return EncodedPair(f"p{number}", _ids(shape, number, prompt), chosen, rejected, mask, mask)


def trajectory_record(shape: Shape, number: int, length: int) -> EncodedTrajectory:
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


def adapted(model: Any, *, dropout: float, size: float = 0.01) -> Any:
    """A PEFT model whose adapter changes the base: both of its factors are random."""
    import torch

    policy: Any = new_adapter(model, LORA.model_copy(update={"dropout": dropout}), 0)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, value in policy.named_parameters():
            if "lora_B" in name:
                value.normal_(std=size)
    return policy


def _ids(shape: Shape, seed: int, length: int) -> list[int]:
    import numpy as np

    ids: list[int] = np.random.default_rng(seed).integers(3, shape.vocabulary, length).tolist()
    return ids


def _common(place: Place) -> dict[str, Any]:
    return {
        "dtype": place.dtype,
        "gradient_checkpointing": not place.tiny,
        "max_length": 8192,
    }


def _dpo_trainer(
    model: Any, shape: Shape, records: Sequence[EncodedPair], place: Place, folder: Path,
    history: History, pairs: int, per_device: int, quantization: Literal["none", "4bit"] = "none",
    learning_rate: float = 1e-4,
) -> Any:  # fmt: skip
    settings = Dpo(
        learning_rate=learning_rate, batch_size=pairs, per_device_batch_size=per_device,
        round_epochs=(1,), quantization=quantization, **_common(place),
    )  # fmt: skip
    return dpo_trainer(
        model, tokenizer_of(shape.vocabulary), records, settings, number=1, seed=0,
        checkpoint_dir=folder, history=history, reference_name="random",
    )  # fmt: skip


def _measure(
    trainer: Callable[[int, Path, History], Any], batch: int, tokens: int, figures: Figures
) -> History:
    """Train `STEPS` steps with the largest micro-batch that fits; add time, memory and loss."""
    import torch

    size = batch
    while True:
        reset_peak()
        try:
            history, seconds = _steps(trainer, size)
            break
        except torch.OutOfMemoryError:
            if size == 1:
                raise
        size //= 2  # outside of the handler, whose traceback keeps the tensors of the failed step
    figures.add("sequences or pairs of a forward pass", size, f"of {batch}")
    figures.add("time of a step", median(seconds[1:]), "s")
    figures.add("tokens", tokens / median(seconds[1:]), "tokens/s")
    losses = [row["loss"] for row in history.rows]
    figures.add("loss at the first step", losses[0])
    finite = all(map(math.isfinite, losses)) and len(losses) == STEPS
    figures.verdict(f"losses of {STEPS} steps are finite", str(finite), finite, expected="True")
    add_peak(figures)
    return history


def _steps(trainer: Callable[[int, Path, History], Any], size: int) -> tuple[History, list[float]]:
    history, folder = History(), _folder()
    seconds: list[float] = []
    made = trainer(size, folder, history)
    made.add_callback(_clock(seconds))
    train(made, history, folder)
    return history, seconds


def _add_start(history: History, figures: Figures) -> None:
    """Loss and margin of a new adapter, whose policy is the reference; `margin` checks them."""
    first = history.rows[0]
    figures.add("DPO loss at step one (ln 2 without rounding)", first["loss/dpo"])
    figures.add("reward margin at step one (0 without rounding)", first["rewards/margins"])


def _check_row(row: Mapping[str, float], figures: Figures, tolerance: float, name: str) -> None:
    """DPO's margin is 0 and its loss ln 2 as long as policy and reference are the same."""
    away, found = abs(row["loss/dpo"] - math.log(2)), row["rewards/margins"]
    bound = f"within {tolerance:.2g}"
    figures.verdict(
        f"{name}: DPO loss", row["loss/dpo"], away <= tolerance, expected=f"ln 2 {bound}"
    )
    figures.verdict(
        f"{name}: reward margin", found, abs(found) <= tolerance, expected=f"0 {bound}",
        unit="nats × β",
    )  # fmt: skip


def _rounding(records: Sequence[EncodedPair], pairs: int) -> float:
    """Four standard deviations of the mean margin of ``pairs``, which is 0 except for rounding.

    Two passes in batches of other shapes differ by up to ½ `BF16_NATS` at a token, without a common
    sign.
    """
    written = max(sum(record.chosen_mask) + sum(record.rejected_mask) for record in records)
    beta: float = Dpo.model_fields["beta"].default
    return 4 * beta * 0.5 * BF16_NATS * math.sqrt(written / pairs)


def _clock(seconds: list[float]) -> Any:
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        """Seconds of every optimizer step, the GPU's work included."""

        def on_step_begin(self, *_: object, **__: object) -> None:
            synchronize()
            self.start = time.perf_counter()

        def on_step_end(self, *_: object, **__: object) -> None:
            synchronize()
            seconds.append(time.perf_counter() - self.start)

    return Clock()


class _Stopped(SteepError, RuntimeError):
    """The run was stopped on purpose."""


def _stopping(step: int) -> Any:
    from transformers import TrainerCallback

    class Stop(TrainerCallback):
        """Ends the run at the beginning of the step after ``step``, with its checkpoint written."""

        def on_step_begin(self, args: object, state: Any, *_: object, **__: object) -> None:
            if state.global_step >= step:
                raise _Stopped(f"stopped after step {step}")

    return Stop()


def _adapter(trainer: Any) -> dict[str, Any]:
    model = trainer.accelerator.unwrap_model(trainer.model)
    return {
        name: value.detach().float().cpu()
        for name, value in model.named_parameters()
        if "lora_" in name
    }


def _folder() -> Path:
    return Path(mkdtemp(prefix="gpu-check-"))
