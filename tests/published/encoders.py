"""Random two-layer encoders shaped like E5, bge-large-en-v1.5 and bge-reranker-v2-m3.

Input: texts for the tokenizers. Output: directories as from the hub: sentence-transformers models (a
BERT with mean pooling for E5, with the first token for BGE, normalized), and an XLM-RoBERTa with one logit.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

_SHAPE: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "initializer_range": 0.5,  # with the usual 0.02 all texts would be embedded alike
}


def write_bi_encoder(
    directory: Path, texts: Iterable[str], pooling: Literal["mean", "cls"]
) -> Path:
    """Save a sentence-transformers model of 48 dimensions; returns the directory."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = BertWordPieceTokenizer(lowercase=True)
    words.train_from_iterator(texts, vocab_size=800, show_progress=False)
    bert = directory.with_name(f"{directory.name}-bert")
    bert.mkdir(parents=True)
    words.save_model(str(bert))
    tokenizer = BertTokenizerFast(str(bert / "vocab.txt"), model_max_length=512)
    tokenizer.save_pretrained(bert)
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(tokenizer), **_SHAPE)).save_pretrained(bert)
    modules = [Transformer(str(bert), max_seq_length=512), Pooling(_SHAPE["hidden_size"], pooling)]
    SentenceTransformer(modules=[*modules, Normalize()], device="cpu").save(str(directory))
    return directory


def write_reranker(directory: Path, texts: Iterable[str]) -> Path:
    """Save a cross-encoder whose tokenizer is a unigram model; returns the directory."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast, XLMRobertaConfig
    from transformers import XLMRobertaForSequenceClassification as Classifier

    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    core = Tokenizer(models.Unigram())
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=800, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    core.train_from_iterator(texts, trainer)
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", sep_token="</s>", cls_token="<s>",
        unk_token="<unk>", pad_token="<pad>", mask_token="<mask>", model_max_length=512,
    )  # fmt: skip
    tokenizer.save_pretrained(directory)
    torch.manual_seed(0)
    shape = {**_SHAPE, "vocab_size": len(tokenizer), "max_position_embeddings": 514}
    Classifier(
        XLMRobertaConfig(num_labels=1, pad_token_id=1, bos_token_id=0, eos_token_id=2, **shape)
    ).save_pretrained(directory)
    return directory
