"""Random models of published shapes: language models, an embedder and a reranker.

Weights are random, so nothing is downloaded; memory and time do not depend on their values. They
are drawn so that activations keep their size at every width, layers change the residual stream
little by little, and the next token's distribution is about as peaked as in a trained model. With
the usual initialization a deep random model multiplies the rounding of bfloat16: its
log-probabilities are off by .22 nats, and by .05 with this one (`BF16_NATS`). `steep plan` computes
with the same shapes.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.figures import Place
from pipeline.core.model_shapes import PUBLISHED, ModelShape
from pipeline.methods.tearag.grammar import OPEN

_LOGITS = 4.0  # standard deviation of logits
# Bound on the mean |Δ log p| of a bfloat16 pass from float32, twice the value measured on a CPU:
# .047 to .051 nats in models of 32 layers and 128 to 512 dimensions, .061 to .064 with 48 layers.
# One pass, decoding with a cache, and both implementations of attention differ by at most 15 %.
BF16_NATS = 0.12
# Steps of 25 tokens, so that three are as long as a trajectory of TeaRAG (fig. 7: 81).
_STOP_EVERY = 24
_CONTROL = ("<|pad|>", "<|im_start|>", "<|im_end|>")
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def shape_of(place: Place, layers: int | None = None) -> ModelShape:
    """The shape that the part's model has here; ``layers`` changes its depth."""
    shape = PUBLISHED[place.model]
    if place.tiny:
        shape = replace(
            shape, vocabulary=6000, hidden=64, intermediate=128, layers=2, heads=2, kv_heads=2,
            positions=1024,
        )  # fmt: skip
    return replace(shape, layers=layers or shape.layers)


def tokenizer_of(size: int) -> Any:
    """A tokenizer with ``size`` ids: one per byte, three control tokens, and words after a space.

    Every 24th word ends in the stop string of TeaRAG's grammar, so that a random model ends its
    steps too.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = [*_CONTROL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    for number in range(size - len(pieces)):  # Ġ and Ċ are a space and a new line
        pieces.append(f"Ġword{number}" + (f"Ċ{OPEN}" if number % _STOP_EVERY == 0 else ""))
    vocabulary = {piece: at for at, piece in enumerate(pieces)}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    core.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r" ?\S+|\s"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|pad|>",
        additional_special_tokens=["<|im_start|>"], clean_up_tokenization_spaces=False,
    )  # fmt: skip
    tokenizer.chat_template = _TEMPLATE
    return tokenizer


def language_model(shape: ModelShape, place: Place, dtype: str | None = None) -> Any:
    """A random causal language model in memory, on the device.

    ``dtype`` is the number format of the weights, by default the format of `Place`.
    """
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

    family = Qwen2Config if shape.attention_bias else LlamaConfig
    config = family(
        **_sizes(shape), num_key_value_heads=shape.kv_heads, tie_word_embeddings=False,
        pad_token_id=0, bos_token_id=None, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(place.device):
        model = AutoModelForCausalLM.from_config(
            config, dtype=getattr(torch, dtype or place.dtype), trust_remote_code=False
        )
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.ndim == 2:
                value.normal_(std=_deviation(name, shape))
    return model


def _sizes(shape: ModelShape) -> dict[str, int]:
    return {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "max_position_embeddings": shape.positions,
    }


def _deviation(name: str, shape: ModelShape) -> float:
    """The standard deviation of a weight that keeps the deviation from layer input to output."""
    if "embed_tokens" in name:  # as large as the sum of all layers' additions
        return math.sqrt(2 * shape.layers)
    if "lm_head" in name:
        return _LOGITS / math.sqrt(shape.hidden)
    return 1 / math.sqrt(shape.intermediate if "down_proj" in name else shape.hidden)


def language_model_directory(place: Place, layers: int | None = None) -> Path:
    """The same model with its tokenizer in the workspace, written at the first call."""
    shape = shape_of(place, layers)
    directory = Path(place.workspace) / f"{Path(place.model).name}-{shape.layers}"
    if not directory.is_dir():
        partial = directory.with_name(f"{directory.name}.{os.getpid()}.tmp")
        language_model(shape, place).save_pretrained(partial)
        tokenizer_of(shape.vocabulary).save_pretrained(partial)
        partial.replace(directory)
    return directory


def embedder_directory(place: Place) -> Path:
    """A random BERT with mean pooling, as sentence-transformers stores E5."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer
    from transformers import BertConfig, BertModel

    shape = shape_of(place)
    body = _saved_encoder(BertModel, BertConfig(**_sizes(shape)), place, "body")
    directory = body.with_name(f"{body.name}-pooled")
    SentenceTransformer(modules=[Transformer(str(body)), Pooling(shape.hidden)], device="cpu").save(
        str(directory)
    )
    return directory


def reranker_directory(place: Place) -> Path:
    """A random XLM-RoBERTa with one logit for a pair of texts."""
    from transformers import XLMRobertaConfig, XLMRobertaForSequenceClassification

    config = XLMRobertaConfig(**_sizes(shape_of(place)), num_labels=1)
    return _saved_encoder(XLMRobertaForSequenceClassification, config, place, "reranker")


def _saved_encoder(model: Any, config: Any, place: Place, name: str) -> Path:
    """A random encoder, and a tokenizer of words ``word4`` to ``wordN``, one id each."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    directory = Path(place.workspace) / name
    torch.manual_seed(0)
    model(config).save_pretrained(directory)
    special = {"<pad>": 1, "<s>": 0, "</s>": 2, "<unk>": 3}
    words = {f"word{number}": number for number in range(4, config.vocab_size)}
    core = Tokenizer(models.WordLevel(vocab={**special, **words}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
        cls_token="<s>", sep_token="</s>", unk_token="<unk>", model_max_length=512,
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(directory)  # fmt: skip
    return directory


def random_texts(shape: ModelShape, count: int, words: int, seed: int = 0) -> list[str]:
    """Texts of about ``words`` random words, from half to one and a half times as many."""
    import numpy as np

    draw = np.random.default_rng(seed)
    lengths = draw.integers(max(1, words // 2), words + words // 2 + 1, count)
    return [
        " ".join(f"word{number}" for number in draw.integers(4, shape.vocabulary, length))
        for length in lengths
    ]
