"""Concatenated rows give the same log-probabilities as single rows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pipeline.training.lean_forward import FAMILIES, install_lean_forward
from pipeline.training.packed_attention import ATTENTION, register_attention


def small_model(family: str = "llama"):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family,
        vocab_size=50,
        hidden_size=32,
        head_dim=8,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
    )
    return AutoModelForCausalLM.from_config(config)


def log_probabilities_row_by_row(model, ids_BT, lengths, labels_BT):
    """The definition: single rows without padding, with plain attention."""
    import torch

    result = torch.zeros(ids_BT.shape[0], ids_BT.shape[1] - 1, dtype=model.dtype)
    for row, length in enumerate(lengths):
        logp = model(ids_BT[row : row + 1, :length]).logits[0].log_softmax(-1)
        for time in range(length - 1):
            if labels_BT[row, time + 1] != -100:
                result[row, time] = logp[time, ids_BT[row, time + 1]]
    return result


@pytest.fixture(params=["float32", "bfloat16"])
def attention_type(request):
    """The number type in which attention alone computes; the rest computes in float32."""
    import torch
    from transformers import AttentionInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    register_attention()
    plain = ALL_ATTENTION_FUNCTIONS[ATTENTION]

    def attend(*args, **kwargs):
        with torch.autocast("cpu", torch.bfloat16, enabled=request.param == "bfloat16"):
            return plain(*args, **kwargs)

    AttentionInterface.register(ATTENTION, attend)
    yield request.param
    register_attention()


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_batched_log_probabilities_and_gradients_equal_those_of_single_rows(family, attention_type):
    import torch

    exact = attention_type == "float32"
    dtype, tolerance = (torch.float64, 1e-5) if exact else (torch.float32, 0.05)
    plain, ours = (small_model(family).to(dtype) for _ in range(2))
    lengths = [300, 40, 7, 5]  # 300: more than one block of queries, of all and of the labeled
    ids_BT = torch.randint(0, 50, (4, 300))
    mask_BT = torch.arange(300)[None] < torch.tensor(lengths)[:, None]
    labels_BT = torch.where(mask_BT & (ids_BT % 3 > 0), ids_BT, -100)
    labels_BT[3] = -100  # a row without a label
    expected = log_probabilities_row_by_row(plain, ids_BT, lengths, labels_BT)
    assert install_lean_forward(trainer_on("cpu", ours))
    output = ours(
        input_ids=ids_BT, attention_mask=mask_BT.long(), labels=labels_BT, fused_lm_head=True
    )
    assert (output.log_probs - expected).abs().max() < tolerance
    assert (output.log_probs == 0).equal(expected == 0)
    mean = expected[expected != 0].mean()
    assert abs(output.loss + mean) < tolerance
    expected.square().sum().backward()
    output.log_probs.square().sum().backward()
    for (name, weight), other in zip(plain.named_parameters(), ours.parameters(), strict=True):
        assert torch.isfinite(other.grad).all()
        assert not exact or torch.allclose(weight.grad, other.grad, atol=1e-4, rtol=1e-4), name


def test_on_an_accelerator_the_packed_pass_equals_trls_padded_pass():
    """Values and gradients; the trainer says that it is on a GPU, and the tensors are on a CPU."""
    import torch
    from trl.trainer.utils import add_fused_lm_head

    outputs = ("log_probs", "entropy", "is_top1")
    plain, ours = small_model().double(), small_model().double()
    for model in (plain, ours):
        add_fused_lm_head(model, temperature=0.8, outputs=outputs)
    lengths = [60, 300, 59, 7, 300]
    ids_BT = torch.randint(0, 50, (5, 300))
    mask_BT = (torch.arange(300)[None] < torch.tensor(lengths)[:, None]).long()
    labels_BT = torch.where(mask_BT.bool() & (ids_BT % 3 > 0), ids_BT, -100)
    calls = []
    ours.model.register_forward_pre_hook(
        lambda _, args, kwargs: calls.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    assert install_lean_forward(trainer_on("cuda", ours))
    batch = {"input_ids": ids_BT, "attention_mask": mask_BT, "labels": labels_BT}
    expected, found = (model(**batch, fused_lm_head=True) for model in (plain, ours))
    assert calls == [(1, 726)]
    assert found.label_mask.equal(expected.label_mask)
    for name in ("loss", *outputs):
        assert torch.allclose(getattr(found, name), getattr(expected, name), atol=1e-5), name
    assert found.mean_logits is None
    for output in (expected, found):
        output.log_probs.square().sum().backward()
    for (name, weight), other in zip(plain.named_parameters(), ours.parameters(), strict=True):
        close = 1e-6 * float(weight.grad.abs().max())
        assert torch.allclose(weight.grad, other.grad, atol=min(1e-4, close), rtol=1e-4), name
    # Left padding, and calls without the fused head, take TRL's own way.
    flipped = {name: tensor.flip(1) for name, tensor in batch.items()}
    expected, found = (model(**flipped, fused_lm_head=True) for model in (plain, ours))
    assert torch.allclose(found.log_probs, expected.log_probs, atol=1e-5)
    assert ours(input_ids=ids_BT, attention_mask=mask_BT).logits.shape == (5, 300, 50)


def trainer_on(device, model):
    """What `install_lean_forward` reads of a trainer."""
    import torch

    policy = SimpleNamespace(get_base_model=lambda: model, named_parameters=model.named_parameters)
    accelerator = SimpleNamespace(unwrap_model=lambda _: policy)
    args = SimpleNamespace(device=torch.device(device))
    return SimpleNamespace(accelerator=accelerator, model=policy, args=args)
