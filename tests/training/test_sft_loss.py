"""Eq. 4 of TeaRAG computed by hand: the tokens of the loss and their average."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.gpu_check.training import in_file
from pipeline.config import Lora, Sft
from pipeline.core.records import Message, SftExample, Span
from pipeline.training.encode import encode_sft
from pipeline.training.lora import load_base, new_adapter
from pipeline.training.sft import sft_trainer
from pipeline.training.trainer_args import Training, train
from tests.training.tiny_policy import byte_tokenizer, write_base


def write_unigram(directory: Path) -> Path:
    """A Llama that predicts p(a) = 1/2, p(b) = 1/4 and p(end of turn) = 1/8 at every position.

    The other 256 tokens have 1/2048 each. Every embedding is a vector of ones and the layers add zero
    to it, so each logit is the sum of a row of the head.
    """
    import torch
    from transformers import LlamaForCausalLM

    write_base(directory)
    model = LlamaForCausalLM.from_pretrained(directory)
    model.config.tie_word_embeddings = False
    ids = byte_tokenizer().convert_tokens_to_ids(["a", "b", "<|im_end|>"])
    bits_V = torch.full((259,), 11.0)
    bits_V[ids] = torch.tensor([1.0, 2.0, 3.0])
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.fill_(1.0)
        head_VH = -(bits_V * math.log(2) / 32)[:, None].expand(259, 32)
        model.lm_head.weight = torch.nn.Parameter(head_VH.contiguous())
    model.save_pretrained(directory)
    return directory


def sft_example(completion: str, spans: list[Span]) -> SftExample:
    return SftExample("e", "q", 1, [Message("user", "why?")], completion, spans)


@pytest.mark.parametrize("per_device", [1, 2])
def test_the_loss_of_a_step_is_the_mean_over_its_model_written_tokens(tmp_path, per_device):
    """Two examples in one optimizer step, in two micro-batches or in one.

    First example: the model writes "ab", observes "xyz", writes "a" and ends: 1 + 2 + 1 + 3 = 7 bits in
    4 tokens. Second: "b" and the end, 2 + 3 = 5 bits in 2 tokens. Together 12 bits in 6 tokens: 2 bits,
    which is 2 log 2 nats. (The mean of the examples' means would be 2.125 bits and the sum 12; a token
    of the prompt or of the observation would add 11.)
    """
    base = write_unigram(tmp_path / "base")
    micro = {"per_device_batch_size": per_device, "dtype": "float32"}
    settings = Sft(learning_rate=1e-9, batch_size=2, **micro)
    observed = sft_example("abxyza", [(0, 2, "model"), (2, 5, "observation"), (5, 6, "model")])
    examples = encode_sft(byte_tokenizer(), [observed, sft_example("b", [(0, 1, "model")])])
    model = new_adapter(load_base(base, settings, "sft"), Lora(dropout=0.0), 0)
    training = Training(0, tmp_path)
    trainer = sft_trainer(model, byte_tokenizer(), in_file(tmp_path, examples), settings, training)
    train(trainer, training)
    losses = [row["loss"] for row in training.history.rows]
    assert losses == [pytest.approx(2 * math.log(2), abs=1e-4)]
