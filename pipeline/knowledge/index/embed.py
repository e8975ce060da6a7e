"""Embed texts with a bi-encoder, with a cache (TeaRAG, arXiv 2511.05385, 4.2.3).

Input: texts and their role, query or passage, which decides the prefix (E5: ``query: `` and
``passage: ``). Output: L2-normalized float32 vectors, so that the inner product is the cosine.
Embeddings are cached in memory and on disk by model content, prefix and text; the model is loaded
only for new texts.

On a CPU a vector is a function of its text alone. Kernels give other last bits for other shapes,
and padding changes a vector by up to 2e-3 in bfloat16 (2e-7 in float32). BERT models therefore
embed texts in packs (`pipeline.knowledge.index.packed`). Other models embed texts of equal length
in tokens without padding, in batches whose number of rows depends on that length only.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.core.content_cache import ContentCache, LruCache, digest
from pipeline.core.errors import ConfigError
from pipeline.core.model_files import model_hash
from pipeline.core.progress import Progress
from pipeline.core.text import one_line
from pipeline.knowledge.index.packed import PackedTexts, supports_packing
from pipeline.llm.locate import loading, locate, resolve_device

if TYPE_CHECKING:
    from pipeline.config.knowledge import Embedder as EmbedderSettings

Role = Literal["query", "passage"]
Vectors = NDArray[np.float32]
KEY = "index.embedder.model"
_IN_MEMORY = 1 << 16  # vectors kept in memory: 100 MB at 384 dimensions
_BLOCK = 512  # texts per cache transaction: the most that an interruption can lose
_BATCHES = 16  # per transaction on an accelerator, which waits for the tokenizer at its first batch
# Tokens of a forward pass without packs on a CPU. With more, a query waits longer for the rows that
# fill its batch; with fewer, texts of ten tokens take longer (a quarter more than at 512).
_CPU_TOKENS = 128
_BATCH_INVARIANT = "packed where possible, 2"  # part of the cache key of vectors of CPUs


@dataclass(eq=False)
class Embedder:
    """A sentence-transformers bi-encoder with a cache; safe for threads.

    Raises DependencyError when the model is missing, ConfigError when a vector is not finite.
    """

    model: str
    query_prefix: str = ""
    passage_prefix: str = ""
    dtype: Literal["float32", "bfloat16"] = "float32"
    batch_size: int = 64
    device: Literal["auto", "cpu", "cuda"] = "auto"
    max_length: int = 256
    cache: ContentCache | None = None

    def __post_init__(self) -> None:
        self.directory = locate(self.model, KEY)
        self._prefixes = {"query": self.query_prefix, "passage": self.passage_prefix}
        self._recent: LruCache[str, Vectors] = LruCache(_IN_MEMORY)
        self.computed = 0  # texts embedded by the model so far, not from a cache
        self._lock = threading.Lock()  # fast tokenizers raise when two threads use them

    @cached_property
    def identity(self) -> str:
        """A digest of everything that decides a vector except the text: part of the cache key."""
        settings = f"torch {self.dtype} {self.max_length}"
        return digest(model_hash(self.directory), settings).hex()

    def encode(
        self,
        texts: Sequence[str],
        role: Role,
        *,
        store: bool = True,
        progress: Progress | None = None,
    ) -> Vectors:
        """Vectors [n, d] of the texts; ``store=False`` reads the disk cache without adding to it.

        ``progress`` counts the texts.
        Raises DependencyError when the device is missing.
        """
        prefix = self._prefixes[role]
        prefixed = [prefix + text for text in texts]
        with self._lock:
            distinct = list(dict.fromkeys(prefixed))
            vectors = self._vectors(distinct, store, progress or Progress())
        if progress is not None:
            progress.advance(len(prefixed) - len(distinct))
        if not prefixed:
            return np.zeros((0, self._dimension), dtype=np.float32)
        return np.stack([vectors[text] for text in prefixed])

    def _vectors(self, texts: list[str], store: bool, progress: Progress) -> dict[str, Vectors]:
        """Vectors of distinct texts, from memory, disk or the model."""
        vectors: dict[str, Vectors] = {}
        for text in texts:
            vector = self._recent.get(text)
            if vector is not None:
                vectors[text] = vector
        missing = [text for text in texts if text not in vectors]
        progress.advance(len(vectors))
        missing.sort(key=len)  # a block of similar lengths fills its batches
        size = _BLOCK if self._computation else _BATCHES * self.batch_size
        for start in range(0, len(missing), size):
            block = missing[start : start + size]
            loaded = self._load_or_compute(block, store) if self.cache else self._compute(block)
            for text, vector in loaded.items():
                if not np.isfinite(vector).all():  # an index would never return it
                    raise ConfigError(
                        f"{KEY}: {self.directory} gives no numbers for {one_line(text, 60)!r}; its "
                        "files may be damaged; download them again, or name another model"
                    )
                self._recent.put(text, vector)
            vectors.update(loaded)
            progress.advance(len(block))
        return vectors

    def _load_or_compute(self, texts: list[str], store: bool) -> dict[str, Vectors]:
        assert self.cache is not None
        keys = {text: self.cache_key(text) for text in texts}
        stored = self.cache.get(list(keys.values()))
        new = self._compute([text for text in texts if keys[text] not in stored])
        if store:
            self.cache.put((keys[text], vector.tobytes()) for text, vector in new.items())
        return {
            text: new[text] if text in new else np.frombuffer(stored[key], dtype=np.float32)
            for text, key in keys.items()
        }

    def cache_key(self, prefixed: str) -> bytes:
        """The key of a text with its prefix; vectors from GPUs have separate keys."""
        return digest(self.identity, *self._computation, prefixed)

    def _compute(self, texts: list[str]) -> dict[str, Vectors]:
        """Vectors by the model."""
        if not texts:
            return {}
        self.computed += len(texts)
        if not self._computation:
            return self._encode_ahead(texts)
        if self._packed is not None:
            return dict(zip(texts, self._packed.encode(texts), strict=True))
        vectors: dict[str, Vectors] = {}
        for length, group in self._by_length(texts).items():
            rows = batch_rows(length)
            filling = [group[-1]] * (-len(group) % rows)
            vectors |= self._encode([*group, *filling], rows)
        return vectors

    def _by_length(self, texts: list[str]) -> dict[int, list[str]]:
        """The texts by their number of tokens after truncation."""
        mask_NT = self._model.preprocess(texts)["attention_mask"]
        groups: dict[int, list[str]] = {}
        for text, length in zip(texts, mask_NT.sum(dim=1).tolist(), strict=True):
            groups.setdefault(length, []).append(text)
        return groups

    def _encode(self, texts: list[str], batch_size: int) -> dict[str, Vectors]:
        vectors_ND = self._model.encode(
            texts,
            batch_size=batch_size,
            normalize_embeddings=True,
            convert_to_numpy=True,
            show_progress_bar=False,
        )
        return dict(zip(texts, np.asarray(vectors_ND, dtype=np.float32), strict=True))

    def _encode_ahead(self, texts: list[str]) -> dict[str, Vectors]:
        """Vectors by an accelerator; a thread tokenizes the next batches while it computes."""
        import torch
        from sentence_transformers.util import batch_to_device
        from torch.nn.functional import normalize

        ordered = sorted(texts, key=len, reverse=True)
        starts = range(0, len(ordered), self.batch_size)
        batches = [ordered[start : start + self.batch_size] for start in starts]
        with ThreadPoolExecutor(max_workers=1) as tokenizer, torch.inference_mode():
            parts = [
                self._model(batch_to_device(features, self._model.device))["sentence_embedding"]
                for features in tokenizer.map(self._model.preprocess, batches)
            ]
            vectors_ND = normalize(torch.cat(parts).float()).cpu().numpy()
        return dict(zip(ordered, vectors_ND, strict=True))

    @cached_property
    def _computation(self) -> tuple[str, ...]:
        """The part of the cache key for the kind of computation: batch-invariant on a CPU."""
        device = resolve_device(self.device, "index.embedder.device")
        return (_BATCH_INVARIANT,) if device == "cpu" else ()

    @cached_property
    def _dimension(self) -> int:
        return int(self._model.get_embedding_dimension())

    @cached_property
    def _packed(self) -> PackedTexts | None:
        return PackedTexts(self._model) if supports_packing(self._model) else None

    @cached_property
    def _model(self) -> Any:
        import torch
        from sentence_transformers import SentenceTransformer

        with loading(KEY, self.directory, "sentence-transformers"):
            model = SentenceTransformer(
                str(self.directory),
                device=resolve_device(self.device, "index.embedder.device"),
                model_kwargs={"dtype": getattr(torch, self.dtype)},
                local_files_only=True,
                trust_remote_code=False,
            )
        model.max_seq_length = self.max_length
        return model


def batch_rows(length: int) -> int:
    """Rows of a CPU batch of texts of ``length`` tokens: as many as fit, and at least one."""
    return max(1, _CPU_TOKENS // length)


def passage_text(*parts: str) -> str:
    """The text to embed for a row: title and text, or head, relation and tail, joined by spaces."""
    return " ".join(part for part in parts if part)


def open_embedder(
    settings: EmbedderSettings, cache: ContentCache, model: str | None = None
) -> Embedder:
    """The embedder of a settings block; ``model`` replaces the model of the settings."""
    assert settings.dtype != "auto"  # `pipeline.config.machine_choices` has replaced it
    return Embedder(
        model or settings.model,
        query_prefix=settings.query_prefix,
        passage_prefix=settings.passage_prefix,
        dtype=settings.dtype,
        batch_size=settings.batch_size,
        device=settings.device,
        max_length=settings.max_length,
        cache=cache,
    )
