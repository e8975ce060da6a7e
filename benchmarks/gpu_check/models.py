"""Random models of published shapes: language models, an embedder and a reranker.

Weights are random, so nothing is downloaded; memory and time do not depend on their values. They
are drawn so that activations keep their size at every width, layers change the residual stream
little by little, and the next token's distribution is about as peaked as in a trained model. With
the usual initialization a deep random model multiplies the rounding of bfloat16: its
log-probabilities are off by .22 nats, and by .05 with this one (`BF16_NATS`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from benchmarks.gpu_check.figures import Place
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


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a transformer. ``family`` names the configuration class."""

    family: Literal["llama", "qwen2", "bert", "xlm-roberta"]
    vocabulary: int
    width: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    positions: int


SHAPES = {
    "llama-8b": Shape("llama", 128_256, 4096, 14_336, 32, 32, 8, 8192),
    "qwen-14b": Shape("qwen2", 152_064, 5120, 13_824, 48, 40, 8, 32_768),
    "e5-base": Shape("bert", 30_522, 768, 3072, 12, 12, 12, 512),
    "bge-reranker": Shape("xlm-roberta", 250_002, 1024, 4096, 24, 16, 16, 8194),
}
_TINY: dict[str, Any] = {
    "vocabulary": 6000,
    "width": 64,
    "inner": 128,
    "layers": 2,
    "heads": 2,
    "kv_heads": 2,
    "positions": 1024,
}


def shape_of(place: Place, layers: int | None = None) -> Shape:
    """The shape that the part's model has here; ``layers`` changes its depth."""
    shape = replace(SHAPES[place.model], **_TINY) if place.tiny else SHAPES[place.model]
    return shape if layers is None else replace(shape, layers=layers)


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
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r" ?\S+|\s"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = _TEMPLATE
    return tokenizer


def language_model(shape: Shape, place: Place, dtype: str | None = None) -> Any:
    """A random causal language model in memory, on the device.

    ``dtype`` is the number format of the weights, by default the format of `Place`.
    """
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

    family = {"llama": LlamaConfig, "qwen2": Qwen2Config}[shape.family]
    config = family(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.positions,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=2,
    )
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


def _deviation(name: str, shape: Shape) -> float:
    """The standard deviation of a weight that keeps the deviation from layer input to output."""
    if "embed_tokens" in name:  # as large as the sum of all layers' additions
        return math.sqrt(2 * shape.layers)
    if "lm_head" in name:
        return _LOGITS / math.sqrt(shape.width)
    return 1 / math.sqrt(shape.inner if "down_proj" in name else shape.width)


def language_model_directory(place: Place, layers: int | None = None) -> Path:
    """The same model with its tokenizer in the workspace, written at the first call."""
    import os

    shape = shape_of(place, layers)
    directory = Path(place.workspace) / f"{place.model}-{shape.layers}"
    if not directory.is_dir():
        partial = directory.with_name(f"{directory.name}.{os.getpid()}.tmp")
        language_model(shape, place).save_pretrained(partial)
        tokenizer_of(shape.vocabulary).save_pretrained(partial)
        partial.replace(directory)
    return directory


def embedder_directory(place: Place) -> Path:
    """A random BERT with mean pooling, as sentence-transformers stores E5."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer
    from transformers import BertModel

    shape = shape_of(place)
    body = Path(place.workspace) / f"{place.model}-body"
    torch.manual_seed(0)
    BertModel(_encoder_config(shape)).save_pretrained(body)
    _word_tokenizer(shape, body)
    directory = body.with_name(place.model)
    SentenceTransformer(modules=[Transformer(str(body)), Pooling(shape.width)], device="cpu").save(
        str(directory)
    )
    return directory


def reranker_directory(place: Place) -> Path:
    """A random XLM-RoBERTa with one logit for a pair of texts."""
    import torch
    from transformers import XLMRobertaForSequenceClassification

    shape = shape_of(place)
    directory = Path(place.workspace) / place.model
    if not directory.is_dir():
        torch.manual_seed(0)
        model = XLMRobertaForSequenceClassification(_encoder_config(shape, num_labels=1))
        model.save_pretrained(directory)
        _word_tokenizer(shape, directory)
    return directory


def _encoder_config(shape: Shape, **more: object) -> Any:
    from transformers import BertConfig, XLMRobertaConfig

    family = {"bert": BertConfig, "xlm-roberta": XLMRobertaConfig}[shape.family]
    return family(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        max_position_embeddings=shape.positions,
        **more,
    )


def _word_tokenizer(shape: Shape, directory: Path) -> None:
    """A tokenizer of words ``word5`` to ``wordN``, one id each."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = {"<pad>": 1, "<s>": 0, "</s>": 2, "<unk>": 3}
    words = {f"word{number}": number for number in range(4, shape.vocabulary)}
    core = Tokenizer(models.WordLevel(vocab={**special, **words}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        cls_token="<s>",
        sep_token="</s>",
        unk_token="<unk>",
        model_max_length=min(shape.positions - 2, 512),
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(directory)


def random_texts(shape: Shape, count: int, words: int, seed: int = 0) -> list[str]:
    """Texts of about ``words`` random words, from half to one and a half times as many."""
    import numpy as np

    draw = np.random.default_rng(seed)
    lengths = draw.integers(max(1, words // 2), words + words // 2 + 1, count)
    return [
        " ".join(f"word{number}" for number in draw.integers(4, shape.vocabulary, length))
        for length in lengths
    ]
