"""Batches recompute only the layers whose activations do not fit into memory."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from pipeline.config import Lora, Sft
from pipeline.core.gpus import GIB
from pipeline.core.model_shapes import PUBLISHED
from pipeline.training import kept_activations
from pipeline.training.kept_activations import keep_what_fits, kept_layers
from pipeline.training.lora import load_base, new_adapter
from pipeline.training.memory import training_memory
from tests.training.tiny_policy import write_base

SHAPE = PUBLISHED["meta-llama/Meta-Llama-3-8B-Instruct"]
SETTINGS = Sft(learning_rate=1e-3, batch_size=1, gradient_checkpointing=True)


def test_longer_batches_keep_fewer_layers_and_stay_within_the_limit():
    adapter = {"rank": 8, "targets": Lora().targets, "dropout": True}
    peak = partial(training_memory, SHAPE, rows=1, dtype="bfloat16", **adapter)
    limit = 75 * GIB
    lengths = [2_000, 4_000, 8_000, 16_000, 64_000]
    kept = [kept_layers(partial(peak, length=length), SHAPE.layers, limit) for length in lengths]
    assert kept[0] == SHAPE.layers
    assert all(longer <= shorter for shorter, longer in pairwise(kept))
    assert 10 < kept[2] < SHAPE.layers
    assert kept[-1] == 1
    assert kept_layers(partial(peak, length=400_000), SHAPE.layers, limit) == 0
    for length, layers in zip(lengths, kept, strict=True):
        one, every = (peak(length=length, checkpointing=again) for again in (True, False))
        rest = one.total - one.layer_inputs - one.layer
        assert rest + layers / SHAPE.layers * every.layer < limit


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_kept_layers_run_once_and_change_no_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
):
    import torch

    def policy():
        base = load_base(write_base(tmp_path / "base"), SETTINGS, "sft")
        return new_adapter(base, Lora(r=4, dropout=0.2), 0).double().train()

    plain, ours = policy(), policy()
    ours.gradient_checkpointing_enable({"use_reentrant": False})
    monkeypatch.setattr(kept_activations, "kept_layers", lambda *_: kept)
    keep_what_fits(ours, SETTINGS, 0.0)
    runs = []
    for number, layer in enumerate(ours.get_base_model().model.layers):
        layer.mlp.register_forward_pre_hook(lambda *_, number=number: runs.append(number))
    ids_BT = torch.arange(40).view(2, 20)
    for model in (plain, ours):
        torch.manual_seed(0)
        batch = {"input_ids": ids_BT, "attention_mask": torch.ones_like(ids_BT)}
        model(**batch, labels=ids_BT).loss.backward()
    assert sorted(runs) == sorted([0, 1, *range(2 - kept)])
    weights = dict(plain.named_parameters())
    trained = [name for name, weight in ours.named_parameters() if weight.grad is not None]
    assert len(trained) == sum(weight.requires_grad for weight in weights.values())
    for name, weight in ours.named_parameters():
        if weight.requires_grad:
            assert torch.equal(weight.grad, weights[name].grad), name
