"""Losses and adapters for one optimizer batch, divided into micro-batches of 1, 2 and 4 records.

There are seven records in steps of four, so the last step of an epoch has three, and their lengths
differ, so that means of means are other numbers.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu_check.training import in_file
from pipeline.config import Dpo, Grpo, Sft
from pipeline.training import kept_activations
from pipeline.training.advantages import EncodedTrajectory
from pipeline.training.checkpoints import last_checkpoint
from pipeline.training.dpo import dpo_trainer
from pipeline.training.encode import encode_pairs, encode_sft
from pipeline.training.grpo import grpo_trainer
from pipeline.training.history import History
from pipeline.training.kept_activations import keep_what_fits
from pipeline.training.lean_forward import install_lean_forward
from pipeline.training.sft import heldout_loss, sft_trainer
from pipeline.training.trainer_args import train
from tests.training.tiny_policy import byte_tokenizer, example, pair, random_adapter

SHARED = {
    "dtype": "float32", "learning_rate": 1e-3, "batch_size": 4,
    "weight_decay": 0.0,
}  # fmt: skip
BOUND = 1e-5


def observation(number: int) -> str:
    return " e" * number**2 + "\n"


def sft(base: Path, folder: Path, history: History, per_device: int) -> Any:
    settings = Sft(**SHARED, per_device_batch_size=per_device, epochs=2)
    written = [
        replace(item, completion=item.completion + "x" * n**2, spans=longer(item.spans, n**2))
        for n, item in enumerate(map(example, range(7)))
    ]
    examples = encode_sft(byte_tokenizer(), written)
    return sft_trainer(
        random_adapter(base, settings, "sft"), byte_tokenizer(), in_file(folder, examples), settings,
        seed=0, checkpoint_dir=folder, history=history,
    )  # fmt: skip


def longer(spans: list[Any], more: int) -> list[Any]:
    start, end, writer = spans[-1]
    return [*spans[:-1], (start, end + more, writer)]


def dpo(base: Path, folder: Path, history: History, per_device: int, eta_of: str = "mean") -> Any:
    eta = 0.5 if eta_of == "mean" else 0.5 / 20  # a pair has about 20 tokens to train on
    settings = Dpo(
        **SHARED, per_device_batch_size=per_device, round_epochs=(2,), eta=(eta,), eta_of=eta_of
    )
    tokenizer = byte_tokenizer()
    records = [pair(tokenizer, number, observation(number)) for number in range(7)]
    pairs = in_file(folder, encode_pairs(tokenizer, records))
    return dpo_trainer(
        random_adapter(base, settings, "sft"), tokenizer, pairs, settings,
        number=1, seed=0, checkpoint_dir=folder, history=history, reference_name="r",
    )  # fmt: skip


def dpo_sum(base: Path, folder: Path, history: History, per_device: int) -> Any:
    return dpo(base, folder, history, per_device, "sum")


def grpo(base: Path, folder: Path, history: History, per_device: int) -> Any:
    settings = Grpo(**SHARED, per_device_batch_size=per_device, epochs=2, beta=0.1, epsilon=0.5)
    trajectories = [
        EncodedTrajectory(
            str(n), "q", [1, 7], list(range(40, 42 + n)), [1] * (2 + n),
            [-5.0] * (2 + n), [n - 3.0] * (2 + n),
        )
        for n in range(7)
    ]  # fmt: skip
    return grpo_trainer(
        random_adapter(base, settings, "sft"), byte_tokenizer(), in_file(folder, trajectories), settings,
        temperature=1.0, seed=0, checkpoint_dir=folder, history=history,
    )  # fmt: skip


@pytest.fixture(scope="module")
def whole(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The training of a kind in micro-batches of 4, once for all tests."""
    folder = tmp_path_factory.mktemp("whole")
    return cache(lambda kind: trained(kind, base, folder / kind.__name__, 4))


def trained(kind: Any, base: Path, folder: Path, per_device: int) -> tuple[History, Any]:
    history = History()
    folder.mkdir()
    trainer = kind(base, folder, history, per_device)
    train(trainer, history, folder)
    return history, trainer


@pytest.mark.parametrize(
    "kind",
    [dpo, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (grpo, sft, dpo_sum))],
)
def test_micro_batches_change_neither_losses_nor_adapters(
    base: Path, tmp_path: Path, kind: Any, whole: Any
) -> None:
    before = {
        name: value.clone()
        for name, value in random_adapter(base, Sft(**SHARED), "sft").named_parameters()
        if "lora_" in name
    }
    _, trainer = whole(kind)
    after = {n: p.detach() for n, p in trainer.model.named_parameters() if p.requires_grad}
    changes = [value - before[name] for name, value in after.items()]
    assert max(float(change.abs().max()) for change in changes) > 1e-3
    for size in (2,) if kind is dpo else (1, 2):  # the killed run below has micro-batches of 1
        assert_equal(trained(kind, base, tmp_path / str(size), size), whole(kind))


def assert_equal(run: tuple[History, Any], other: tuple[History, Any]) -> None:
    """Both runs have equal losses in every step, and equal adapters."""
    import torch

    (history, trainer), (expected, whole) = run, other
    assert [row["step"] for row in history.rows] == [1, 2, 3, 4]
    for row, wanted in zip(history.rows, expected.rows, strict=True):
        for name in ("loss", "grad_norm", "loss/sft", "loss/dpo", "lengths/chosen"):
            if name in wanted:
                assert row[name] == pytest.approx(wanted[name], rel=2e-5), name
    weights = dict(whole.model.named_parameters())
    for name, value in trainer.model.named_parameters():
        if value.requires_grad:
            found, wanted = value.detach(), weights[name].detach()
            torch.testing.assert_close(found, wanted, rtol=0, atol=BOUND)


@pytest.mark.parametrize(
    "kind", [dpo, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (grpo, sft))]
)
def test_the_pass_of_accelerators_changes_neither_losses_nor_adapters(
    base: Path, tmp_path: Path, kind: Any, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer computes on a CPU, by the pass that it would take on a GPU.

    There the first of two layers runs again in the backward pass.
    """
    import torch

    expected = whole(kind)
    on_gpu = SimpleNamespace(device=torch.device("cuda"), bf16=False)

    def install(trainer: Any, **_: object) -> bool:
        trainer.args.gradient_checkpointing = True
        keep_what_fits(trainer.model, Sft(**SHARED), 0.0)
        parts = {"accelerator": trainer.accelerator, "model": trainer.model, "args": on_gpu}
        return install_lean_forward(SimpleNamespace(**parts))  # type: ignore[arg-type]

    module = import_module(f"pipeline.training.{kind.__name__}")
    monkeypatch.setattr(module, "install_lean_forward", install)
    monkeypatch.setattr(kept_activations, "kept_layers", lambda *_: 1)
    assert_equal(trained(kind, base, tmp_path / "gpu", 2), expected)


def test_the_held_out_loss_is_a_mean_over_examples(base: Path, tmp_path: Path):
    records = encode_sft(byte_tokenizer(), [example(1), example(4), example(104)])
    losses = []
    for size in (1, 4):
        folder = tmp_path / str(size)
        folder.mkdir()
        trainer = sft(base, folder, History(), size)
        losses.append(heldout_loss(trainer, in_file(folder, records))["loss"])
        alone = [heldout_loss(trainer, in_file(folder, [one]))["loss"] for one in records]
        assert losses[-1] == pytest.approx(sum(alone) / 3, rel=1e-5)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_killed_training_run_continues_with_smaller_micro_batches(
    base: Path, tmp_path: Path, whole: Any
) -> None:
    """As after memory ran out: the run ends as if it had not been interrupted."""
    import torch
    from transformers import TrainerCallback

    class Kill(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 3:
                raise KeyboardInterrupt

    expected, uninterrupted = whole(dpo)
    folder = tmp_path / "killed"
    folder.mkdir()
    killed = dpo(base, folder, History(), 4)
    killed.add_callback(Kill())
    with pytest.raises(KeyboardInterrupt):
        train(killed, History(), folder)
    assert last_checkpoint(folder).name == "checkpoint-2"
    history = History()
    resumed = dpo(base, folder, history, 1)
    train(resumed, history, folder)
    assert [row["loss"] for row in history.rows] == pytest.approx(
        [row["loss"] for row in expected.rows], rel=1e-4
    )
    values = {n: p.detach() for n, p in uninterrupted.model.named_parameters() if p.requires_grad}
    for name, value in resumed.model.named_parameters():
        if value.requires_grad:
            torch.testing.assert_close(value.detach(), values[name], rtol=0, atol=BOUND)
