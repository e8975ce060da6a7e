"""Random two-layer models on disk, and a bag-of-words embedder without a model."""

import zlib
from pathlib import Path

import numpy as np

_WORDS = ("alba", "bruno", "city", "crossed", "directed", "film", "mother", "river", "the", "who")

_SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 320,
    "initializer_range": 0.5,
}


def _tokenizer(directory: Path) -> int:
    from transformers import BertTokenizerFast

    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_WORDS, ":", "?", "."]
    vocabulary += letters + [f"##{letter}" for letter in letters]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    BertTokenizerFast(str(directory / "vocab.txt"), model_max_length=64).save_pretrained(directory)
    return len(vocabulary)


def _config(directory: Path, **more):
    from transformers import BertConfig

    return BertConfig(vocab_size=_tokenizer(directory), **_SIZES | more)


def write_bi_encoder(directory: Path, seed: int = 0, kind: str = "bert") -> Path:
    """A sentence-transformers model: BERT or ELECTRA of 32 dimensions, mean pooling."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer
    from transformers import BertModel, ElectraConfig, ElectraModel

    torch.manual_seed(seed)
    bert = directory.with_name(directory.name + "-bert")
    settings = _config(bert)
    if kind == "electra":
        ElectraModel(ElectraConfig(**_SIZES, vocab_size=settings.vocab_size)).save_pretrained(bert)
    else:
        BertModel(settings).save_pretrained(bert)
    body = Transformer(str(bert))
    SentenceTransformer(modules=[body, Pooling(32)], device="cpu").save(str(directory))
    return directory


def write_cross_encoder(directory: Path, seed: int = 0, labels: int = 1, **more: int) -> Path:
    """A BERT that gives one logit, or ``labels``, for a pair of texts."""
    import torch
    from transformers import BertForSequenceClassification

    torch.manual_seed(seed)
    model = BertForSequenceClassification(_config(directory, num_labels=labels, **more))
    model.save_pretrained(directory)
    return directory


class BagOfWords:
    """An embedder whose cosine is the overlap of words, in 512 hashed dimensions."""

    identity = "bag of words"

    def encode(self, texts, role, *, store=True):
        vectors = np.zeros((len(texts), 512), dtype=np.float32)
        for row, text in enumerate(texts):
            for word in text.lower().replace("?", " ").replace(".", " ").split():
                vectors[row, zlib.crc32(word.encode()) % 512] = 1
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
