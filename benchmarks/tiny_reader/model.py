"""The tiny reader's network: a small Llama with packed attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.training.packed_attention import ATTENTION, register_attention

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

INIT_STD = 0.05


def new_model(vocabulary: int, *, eos: int, pad: int, seed: int) -> LlamaForCausalLM:
    """A newly initialized tiny reader in fp32 with packed attention.

    Args:
        vocabulary: number of tokens.
        eos: id of `<|im_end|>`.
        pad: id of `<|pad|>`.
        seed: of the initialization.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    register_attention()
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=160,
        intermediate_size=448,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=4096,
        initializer_range=INIT_STD,
        tie_word_embeddings=True,
        # Biases let a head attend to the previous token regardless of its content. Without them,
        # copying had not emerged after four million tokens.
        attention_bias=True,
        bos_token_id=None,
        eos_token_id=eos,
        pad_token_id=pad,
    )
    config._attn_implementation = ATTENTION
    torch.manual_seed(seed)
    return LlamaForCausalLM(config)
