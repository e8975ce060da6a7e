"""Concatenated rows give the same log-probabilities as single rows."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pipeline.training.cpu_attention import ATTENTION, register_attention
from pipeline.training.cpu_forward import lean_forward


def small_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=50,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            initializer_range=0.2,
        )
    )


def log_probabilities_row_by_row(model, ids_BT, lengths, labels_BT):
    """The definition: single rows without padding, with plain attention."""
    result = torch.zeros(ids_BT.shape[0], ids_BT.shape[1] - 1)
    for row, length in enumerate(lengths):
        logp = model(ids_BT[row : row + 1, :length]).logits[0].log_softmax(-1)
        for time in range(length - 1):
            if labels_BT[row, time + 1] != -100:
                result[row, time] = logp[time, ids_BT[row, time + 1]]
    return result


@pytest.mark.parametrize(("attention", "tolerance"), [("sdpa", 1e-4), (ATTENTION, 0.05)])
def test_batched_log_probabilities_equal_those_of_single_rows(attention, tolerance):
    register_attention()
    model, lengths = small_llama(), [300, 40, 7]  # 300: more than one block of queries
    ids_BT = torch.randint(0, 50, (3, 300))
    mask_BT = torch.arange(300)[None] < torch.tensor(lengths)[:, None]
    labels_BT = torch.where(mask_BT & (ids_BT % 3 > 0), ids_BT, -100)
    expected = log_probabilities_row_by_row(model, ids_BT, lengths, labels_BT)
    model.set_attn_implementation(attention)
    output = lean_forward(model, ids_BT, mask_BT.long(), labels_BT)
    assert (output.log_probs - expected).abs().max() < tolerance
    assert (output.log_probs == 0).equal(expected == 0)
    output.loss.backward()
    assert all(torch.isfinite(weight.grad).all() for weight in model.parameters())
