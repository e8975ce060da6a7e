"""Losses and adapters for one optimizer batch, divided into micro-batches of 1, 2 and 4 records.

There are seven records in steps of four, so the last step of an epoch has three, and their lengths
differ, so that means of means are other numbers.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu_check.training import in_file, trainer_of
from pipeline.config import Dpo, Grpo, Sft
from pipeline.training import kept_activations, trainer_args
from pipeline.training.advantages import EncodedTrajectory
from pipeline.training.checkpoints import last_checkpoint
from pipeline.training.encode import encode_pairs, encode_sft
from pipeline.training.history import History
from pipeline.training.kept_activations import keep_what_fits
from pipeline.training.lean_forward import install_lean_forward
from pipeline.training.sft import heldout_loss
from pipeline.training.trainer_args import Training, train
from tests.training.tiny_policy import byte_tokenizer, example, pair, random_adapter

SHARED = {
    "dtype": "float32", "learning_rate": 1e-3, "batch_size": 4,
    "weight_decay": 0.0,
}  # fmt: skip
BOUND = 1e-5


def observation(number: int) -> str:
    return " e" * number**2 + "\n"


def settings_and_records(kind: str) -> tuple[Any, list[Any]]:
    tokenizer = byte_tokenizer()
    if kind == "sft":
        written = [
            replace(item, completion=item.completion + "x" * n**2, spans=longer(item.spans, n**2))
            for n, item in enumerate(map(example, range(7)))
        ]
        return Sft(**SHARED, epochs=2), encode_sft(tokenizer, written)
    if kind == "grpo":
        return Grpo(**SHARED, epochs=2, beta=0.1, epsilon=0.5), [
            EncodedTrajectory(
                str(n), "q", [1, 7], list(range(40, 42 + n)), [1] * (2 + n),
                [-5.0] * (2 + n), [n - 3.0] * (2 + n),
            )
            for n in range(7)
        ]  # fmt: skip
    # A pair has about 20 tokens to train on.
    weight: Any = {"eta": (0.5 / 20,), "eta_of": "sum"} if kind == "dpo sum" else {"eta": (0.5,)}
    records = [pair(tokenizer, number, observation(number)) for number in range(7)]
    return Dpo(**SHARED, round_epochs=(2,), **weight), encode_pairs(tokenizer, records)


def longer(spans: list[Any], more: int) -> list[Any]:
    start, end, writer = spans[-1]
    return [*spans[:-1], (start, end + more, writer)]


def trainer(kind: str, base: Path, training: Training, per_device: int) -> Any:
    settings, records = settings_and_records(kind)
    settings = settings.model_copy(update={"per_device_batch_size": per_device})
    model = random_adapter(base, settings, "sft")
    return trainer_of(model, in_file(training.checkpoint_dir, records), settings, training)


@pytest.fixture(scope="module")
def whole(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The training of a kind in micro-batches of 4, once for all tests."""
    folder = tmp_path_factory.mktemp("whole")
    return cache(lambda kind: trained(kind, base, folder / kind, 4))


def trained(kind: str, base: Path, folder: Path, per_device: int) -> tuple[History, Any]:
    folder.mkdir()
    training = Training(0, folder)
    made = trainer(kind, base, training, per_device)
    train(made, training)
    return training.history, made


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("grpo", "sft", "dpo sum")]


@pytest.mark.parametrize("kind", ["dpo", *SLOW])
def test_micro_batches_change_neither_losses_nor_adapters(
    base: Path, tmp_path: Path, kind: str, whole: Any
) -> None:
    before = {
        name: value.clone()
        for name, value in random_adapter(base, Sft(**SHARED), "sft").named_parameters()
        if "lora_" in name
    }
    _, made = whole(kind)
    after = {n: p.detach() for n, p in made.model.named_parameters() if p.requires_grad}
    changes = [value - before[name] for name, value in after.items()]
    assert max(float(change.abs().max()) for change in changes) > 1e-3
    for size in (2,) if kind == "dpo" else (1, 2):  # the killed run below has micro-batches of 1
        assert_equal(trained(kind, base, tmp_path / str(size), size), whole(kind))


def assert_equal(run: tuple[History, Any], other: tuple[History, Any]) -> None:
    """Both runs have equal losses in every step, and equal adapters."""
    import torch

    (history, made), (expected, whole) = run, other
    assert [row["step"] for row in history.rows] == [1, 2, 3, 4]
    for row, wanted in zip(history.rows, expected.rows, strict=True):
        for name in ("loss", "grad_norm", "loss/sft", "loss/dpo", "lengths/chosen"):
            if name in wanted:
                assert row[name] == pytest.approx(wanted[name], rel=2e-5), name
    weights = dict(whole.model.named_parameters())
    for name, value in made.model.named_parameters():
        if value.requires_grad:
            found, wanted = value.detach(), weights[name].detach()
            torch.testing.assert_close(found, wanted, rtol=0, atol=BOUND)


@pytest.mark.parametrize("kind", ["dpo", *SLOW[:2]])
def test_the_pass_of_accelerators_changes_neither_losses_nor_adapters(
    base: Path, tmp_path: Path, kind: str, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer computes on a CPU, by the pass that it would take on a GPU.

    There the first of two layers runs again in the backward pass.
    """
    import torch

    expected = whole(kind)
    on_gpu = SimpleNamespace(device=torch.device("cuda"), bf16=False)

    def install(trainer: Any, _: float) -> bool:
        trainer.args.gradient_checkpointing = True
        keep_what_fits(trainer.model, Sft(**SHARED), 0.0)
        parts = {"accelerator": trainer.accelerator, "model": trainer.model, "args": on_gpu}
        return install_lean_forward(SimpleNamespace(**parts))  # type: ignore[arg-type]

    monkeypatch.setattr(trainer_args, "install_lean_forward", install)
    monkeypatch.setattr(kept_activations, "kept_layers", lambda *_: 1)
    assert_equal(trained(kind, base, tmp_path / "gpu", 2), expected)


def test_the_held_out_loss_is_a_mean_over_examples(base: Path, tmp_path: Path):
    records = encode_sft(byte_tokenizer(), [example(1), example(4), example(104)])
    losses = []
    for size in (1, 4):
        folder = tmp_path / str(size)
        folder.mkdir()
        made = trainer("sft", base, Training(0, folder), size)
        losses.append(heldout_loss(made, in_file(folder, records))["loss"])
        alone = [heldout_loss(made, in_file(folder, [one]))["loss"] for one in records]
        assert losses[-1] == pytest.approx(sum(alone) / 3, rel=1e-5)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_killed_training_run_continues_with_smaller_micro_batches(
    base: Path, tmp_path: Path, whole: Any
) -> None:
    """As after memory ran out: the run ends as if it had not been interrupted."""
    from transformers import TrainerCallback

    class Kill(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 3:
                raise KeyboardInterrupt

    folder = tmp_path / "killed"
    folder.mkdir()
    killed = trainer("dpo", base, Training(0, folder), 4)
    killed.add_callback(Kill())
    with pytest.raises(KeyboardInterrupt):
        train(killed, Training(0, folder))
    assert last_checkpoint(folder).name == "checkpoint-2"
    training = Training(0, folder)
    resumed = trainer("dpo", base, training, 1)
    train(resumed, training)
    assert_equal((training.history, resumed), whole("dpo"))
