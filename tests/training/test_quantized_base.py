"""Training over base weights in 4 and 8 bit, with bitsandbytes' CPU kernels.

These need widths that are multiples of 64. The trainers see `quantization: none`, because steep refuses
quantization on a CPU: after a pass in evaluation, the CPU kernel for 4 bit gives no gradient to its input
(bitsandbytes 0.50). No test here depends on such a gradient.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_check.training import in_file, trainer_of
from pipeline.config import Dpo, Grpo, Lora, Sft
from pipeline.training.advantages import EncodedTrajectory
from pipeline.training.encode import encode_pairs, encode_sft
from pipeline.training.lora import new_adapter, prepare_quantized, quantization_config
from pipeline.training.trainer_args import Training, train
from tests.training.tiny_policy import byte_tokenizer, example, pair, write_base

COMMON: dict[str, Any] = {
    "dtype": "bfloat16",
    "learning_rate": 1e-5,
    "batch_size": 2,
    "per_device_batch_size": 2,
}
BITS = pytest.mark.parametrize("bits", ["4bit", pytest.param("8bit", marks=pytest.mark.slow)])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("quantized") / "base", width=64)


def policy(base: Path, bits: str) -> Any:
    """A policy over a quantized base; both factors of its adapter are random, no dropout."""
    import torch
    from transformers import AutoModelForCausalLM

    settings = Sft(**COMMON, quantization=bits)  # type: ignore[arg-type]
    quantized = AutoModelForCausalLM.from_pretrained(
        base, dtype=torch.bfloat16, quantization_config=quantization_config(settings)
    )
    assert quantized.is_quantized
    model: Any = new_adapter(prepare_quantized(quantized, settings), Lora(dropout=0.0), 0)
    torch.manual_seed(1)
    with torch.no_grad():
        for value in trained(model).values():
            value.normal_(std=0.05)
    return model


def trajectories() -> list[EncodedTrajectory]:
    """Two of one question; the recorded log-probabilities are of another model than the policy."""
    mask, old = [1, 0, 1], [-5.0, 0.0, -5.0]
    return [
        EncodedTrajectory(str(n), "q", [1, 9 + n], [30, 31 + n, 32], mask, old, [sign, 0.0, sign])
        for n, sign in enumerate((1.0, -1.0))
    ]


def trained(model: Any) -> dict[str, Any]:
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def trainer(kind: str, model: Any, training: Training) -> Any:
    settings: Any
    records: Any
    tokenizer = byte_tokenizer()
    if kind == "sft":
        settings, records = Sft(**COMMON), encode_sft(tokenizer, [example(0), example(1)])
    elif kind == "dpo":
        pairs = [pair(tokenizer, number) for number in range(2)]
        settings, records = Dpo(**COMMON, round_epochs=(1,)), encode_pairs(tokenizer, pairs)
    else:
        beta = 0.0 if kind == "grpo without reference" else 0.001
        settings, records = Grpo(**COMMON, beta=beta), trajectories()
    return trainer_of(model, in_file(training.checkpoint_dir, records), settings, training)


@BITS
@pytest.mark.parametrize("kind", ["sft", "dpo", "grpo"])
def test_the_adapter_of_a_quantized_base_stays_float32(
    base: Path, tmp_path: Path, kind: str, bits: str
) -> None:
    import torch

    model = policy(base, bits)
    before = {name: value.detach().clone() for name, value in trained(model).items()}
    after = trained(trainer(kind, model, Training(0, tmp_path)).model)
    assert len(after) == 16  # 2 layers x 4 projections x 2 factors of LoRA
    for name, value in before.items():
        assert after[name].dtype == torch.float32
        assert torch.equal(after[name], value)


@BITS
def test_a_small_step_moves_every_weight_of_the_adapter(
    base: Path, tmp_path: Path, bits: str
) -> None:
    """AdamW's first step is the learning rate, 1e-5; bfloat16 has units of 2.4e-4 at 0.05."""
    import torch

    model, training = policy(base, bits), Training(0, tmp_path)
    before = {name: value.detach().clone() for name, value in trained(model).items()}
    made = trainer("sft", model, training)
    train(made, training)
    after = trained(made.model)
    moved = torch.cat([(after[name] - value).abs().flatten() for name, value in before.items()])
    assert training.history.steps == 1
    assert float(((moved > 0.5e-5) & (moved < 1.5e-5)).float().mean()) > 0.95


@pytest.mark.parametrize(
    "kind", ["grpo", pytest.param("grpo without reference", marks=pytest.mark.slow)]
)
def test_ratios_of_grpo_start_at_one_over_a_quantized_base(
    base: Path, tmp_path: Path, kind: str
) -> None:
    """The recorded probabilities are those of the base in 16 bit; the old ones are the policy's own."""
    import torch

    training = Training(0, tmp_path)
    made = trainer(kind, policy(base, "4bit"), training)
    batch = made._prepare_inputs(made.data_collator(list(made.train_dataset)))
    with torch.no_grad(), made.accelerator.autocast():
        now = made.token_logps(made.model.eval(), batch)
    mask = batch["tool_mask"]
    assert mask.sum() == 4
    torch.testing.assert_close(batch["old_per_token_logps"] * mask, now * mask, rtol=0, atol=1e-5)
    train(made, training)
    assert training.history.rows[0]["clip_ratio/region_mean"] == 0
    assert training.history.rows[0]["loss"] == pytest.approx(0, abs=1e-5)  # advantages sum to zero


def test_policy_and_reference_agree_over_a_quantized_base(base: Path, tmp_path: Path) -> None:
    """Only in 4 bit: in 8 bit, bitsandbytes has another CPU kernel for a model in training."""
    training = Training(0, tmp_path)
    train(trainer("dpo", policy(base, "4bit"), training), training)
    assert training.history.rows[0]["loss/dpo"] == pytest.approx(math.log(2), abs=1e-5)
