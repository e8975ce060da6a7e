"""Rerankers: raw scores of (query, text) pairs, and the similarity that is their sigmoid.

The similarity is sim of TeaRAG (arXiv 2511.05385), 4.2.3, 4.2.4 and 4.3.2. Input: pairs of texts.
Output: raw scores; their sigmoid is a probability. There are three kinds: ``flag`` (FlagEmbedding's
FlagReranker, for the paper's BGE-reranker-v2-m3), ``cross-encoder`` (sentence-transformers), and
``biencoder``: scale * cosine + offset of cached embeddings, which costs one dot product per pair.
Equal pairs of a call are scored once, and the first two kinds cache their scores on disk by
content. On a CPU these two score one pair at a time, because a score would change in its last bits
with the padding and the size of its batch.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline.core.content_cache import ContentCache, LruCache, digest, open_cache
from pipeline.core.errors import ConfigError, DependencyError, RetrievalError
from pipeline.core.model_files import model_hash
from pipeline.knowledge.index.embed import Embedder, open_embedder, passage_text
from pipeline.knowledge.index.faiss_index import DECIMALS
from pipeline.knowledge.retrieval.base import top_positions
from pipeline.knowledge.retrieval.flag_logits import flag_logits
from pipeline.llm.locate import loading, locate, resolve_device

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.config.knowledge import Embedder as EmbedderSettings
    from pipeline.config.knowledge import Reranker as RerankerSettings
    from pipeline.core.similarity import Similarity

T = TypeVar("T")
Pair = tuple[str, str]
Doubles = NDArray[np.float64]
KEY = "reranker.model"
_PAIRS = 16_384  # bi-encoder pairs at once: two gathers of 25 MB at 384 dimensions
_BLOCK = 512  # pairs per cache transaction: the most that an interruption can lose
_IN_MEMORY = 1 << 19  # scores kept in memory


class Reranker(Protocol):
    """Raw scores of (query, text) pairs; safe for threads."""

    def score(self, pairs: Sequence[Pair]) -> Doubles:
        """Raw scores [n], higher is more similar."""
        ...


class PairModel(Protocol):
    """A model that reads both texts of a pair."""

    @property
    def identity(self) -> str:
        """A digest of everything that decides a score except the texts: part of the cache key."""
        ...

    def compute(self, pairs: Sequence[Pair]) -> Sequence[float]:
        """Raw scores [n] of distinct pairs."""
        ...


def score_candidates(
    reranker: Reranker, queries: Sequence[str], candidates: Sequence[Sequence[str]]
) -> list[Doubles]:
    """Raw scores of the candidate texts of each query, from one call of the reranker.

    The scores of query i have the length and order of ``candidates[i]``.
    """
    scores_N = reranker.score(
        [(query, text) for query, texts in zip(queries, candidates, strict=True) for text in texts]
    )
    ends = itertools.accumulate(len(texts) for texts in candidates)
    return [scores_N[end - len(texts) : end] for texts, end in zip(candidates, ends, strict=True)]


def best_rows(
    reranker: Reranker,
    queries: Sequence[str],
    candidates: Sequence[Sequence[tuple[str, ...]]],
    kind: Callable[..., T],
    top_k: int,
    text: slice,
) -> list[list[T]]:
    """At most ``top_k`` candidate rows per query, best first, ties in their order.

    They become records of ``kind``, whose fields are the columns of a row and the raw score.
    ``text`` selects the columns that the reranker reads.
    """
    texts = [[passage_text(*row[text]) for row in rows] for rows in candidates]
    scores = score_candidates(reranker, queries, texts)
    return [
        [kind(*rows[n], float(scores_N[n])) for n in top_positions(scores_N, top_k)]
        for rows, scores_N in zip(candidates, scores, strict=True)
    ]


@dataclass(eq=False)
class BiEncoder:
    """score = scale * cosine(query, text) + offset, with cosines rounded to 6 decimals."""

    embedder: Embedder
    scale: float
    offset: float

    def score(self, pairs: Sequence[Pair]) -> Doubles:
        """Raw scores [n]; every distinct text is embedded once."""
        if not pairs:
            return np.zeros(0)
        queries = {
            query: row for row, query in enumerate(dict.fromkeys(query for query, _ in pairs))
        }
        texts = {text: row for row, text in enumerate(dict.fromkeys(text for _, text in pairs))}
        query_QD = self.embedder.encode(list(queries), "query")
        text_TD = self.embedder.encode(list(texts), "passage")
        query_N = np.array([queries[query] for query, _ in pairs])
        text_N = np.array([texts[text] for _, text in pairs])
        cosine_N = np.empty(len(pairs))
        for start in range(0, len(pairs), _PAIRS):
            part = slice(start, start + _PAIRS)
            cosine_N[part] = np.einsum("nd,nd->n", query_QD[query_N[part]], text_TD[text_N[part]])
        scores_N: Doubles = self.scale * np.round(cosine_N, DECIMALS) + self.offset
        return scores_N


class CachedReranker:
    """A pair model with a cache in memory and on disk; equal pairs reach the model once."""

    def __init__(self, model: PairModel, cache: ContentCache | None = None) -> None:
        self._model = model
        self._cache = cache
        self._recent: LruCache[Pair, float] = LruCache(_IN_MEMORY)
        self._lock = threading.Lock()

    def score(self, pairs: Sequence[Pair]) -> Doubles:
        """Raw scores [n]. Raises RetrievalError when the model gives one that is not finite."""
        scores: dict[Pair, float] = {}
        missing: list[Pair] = []
        with self._lock:
            for pair in dict.fromkeys(pairs):
                value = self._recent.get(pair)
                if value is None:
                    missing.append(pair)
                else:
                    scores[pair] = value
            for start in range(0, len(missing), _BLOCK):
                scores.update(self._load_or_compute(missing[start : start + _BLOCK]))
        return np.array([scores[pair] for pair in pairs], dtype=np.float64)

    def _load_or_compute(self, pairs: list[Pair]) -> dict[Pair, float]:
        keys = {pair: digest(self._model.identity, *pair) for pair in pairs}
        stored = self._cache.get(list(keys.values())) if self._cache else {}
        scores = {
            pair: float(np.frombuffer(stored[key])[0])
            for pair, key in keys.items()
            if key in stored
        }
        new = [pair for pair in pairs if pair not in scores]
        if new:
            computed = np.asarray(self._model.compute(new), dtype=np.float64)
            if not np.isfinite(computed).all():  # would sort last, and stay in the cache
                raise RetrievalError(
                    f"{KEY} gives {computed.min()} as a score; its numbers are too large for 16 "
                    "bit: set reranker.device to cpu, or name another model"
                )
            scores |= zip(new, computed.tolist(), strict=True)
            if self._cache:
                self._cache.put((keys[pair], np.float64(scores[pair]).tobytes()) for pair in new)
        for pair, score in scores.items():
            self._recent.put(pair, score)
        return scores


class CrossEncoderModel:
    """A cross-encoder with one logit, of the kind ``flag`` or ``cross-encoder``.

    The first is FlagEmbedding's FlagReranker, in half precision on a GPU, the second a CrossEncoder
    of sentence-transformers. Raises ConfigError without ``settings.model``, DependencyError when
    the model is missing.
    """

    def __init__(self, settings: RerankerSettings) -> None:
        if settings.model is None:
            raise ConfigError(
                f"reranker.kind is {settings.kind}; it needs reranker.model; name a model"
            )
        self._settings = settings
        self._directory = locate(settings.model, KEY)

    @cached_property
    def identity(self) -> str:
        """A digest of the model's content, the kind, the maximum length and the batching."""
        kind = "flag" if self._settings.kind == "flag" else "cross"
        about = [f"{kind} {self._settings.max_length}"]
        if self._device == "cpu":
            about.append("one pair at a time")
        return digest(model_hash(self._directory), *about).hex()

    def compute(self, pairs: Sequence[Pair]) -> Sequence[float]:
        """Raw logits [n].

        Raises DependencyError without FlagEmbedding, ConfigError when the model is not a reranker.
        """
        import torch

        model, batch_size = self._model, 1 if self._device == "cpu" else self._settings.batch_size
        if self._settings.kind == "flag":
            length = self._settings.max_length
            return flag_logits(
                model.tokenizer, model.model, pairs, batch_size=batch_size, max_length=length
            )
        scores = model.predict(
            list(pairs),
            batch_size=batch_size,
            activation_fn=torch.nn.Identity(),
            show_progress_bar=False,
        )
        return list(np.ravel(scores))

    @cached_property
    def _device(self) -> str:
        return resolve_device(self._settings.device, "reranker.device")

    def _load(self) -> Any:
        """A FlagReranker or a CrossEncoder; both have ``tokenizer`` and ``model``."""
        path, device = str(self._directory), self._device
        if self._settings.kind == "flag":
            try:
                from FlagEmbedding import FlagReranker
            except ImportError as error:
                raise DependencyError(
                    f"reranker.kind is flag, but FlagEmbedding does not import ({error}); "
                    "pip install FlagEmbedding"
                ) from None
            return FlagReranker(path, devices=[device], trust_remote_code=False)
        from sentence_transformers import CrossEncoder

        return CrossEncoder(
            path,
            device=device,
            max_length=self._settings.max_length,
            local_files_only=True,
            trust_remote_code=False,
        )

    @cached_property
    def _model(self) -> Any:
        with loading(KEY, self._directory, "sequence-classification"):
            encoder = self._load()
        model = encoder.model
        saved, outputs = model.config.architectures, model.config.num_labels
        problem = None
        if saved and type(model).__name__ not in saved:  # its last layer would be random
            problem = f"is a {saved[0]}, which has no weights for scores"
        elif outputs != 1:
            problem = f"has {outputs} outputs; expected 1"
        if problem is not None:
            raise ConfigError(f"{KEY}: {self._directory} {problem}; name a reranker")
        if self._settings.kind == "flag":
            # FlagReranker moves and converts its model only inside compute_score.
            (model.half() if self._device == "cuda" else model).to(self._device).eval()
        return encoder


def reranker_similarity(reranker: Reranker) -> Similarity:
    """The sigmoid of a reranker's raw scores, 1 / (1 + exp(-score)), without overflow."""
    return lambda pairs: np.exp(-np.logaddexp(0, -reranker.score(pairs)))


def open_reranker(
    settings: RerankerSettings,
    embedder_settings: EmbedderSettings,
    cache_dir: Path | str,
    *,
    embedder: Embedder | None = None,
) -> Reranker:
    """The reranker of a settings block.

    A bi-encoder without a model in its settings shares ``embedder`` when it is given; otherwise it
    loads one with ``embedder_settings``. Scores are cached below ``cache_dir``. Raises
    DependencyError when the model is missing, ConfigError when the settings name no model.
    """
    if settings.kind == "biencoder":
        if settings.model is not None or embedder is None:
            embedder = open_embedder(embedder_settings, open_cache(cache_dir), settings.model)
        return BiEncoder(embedder, scale=settings.scale, offset=settings.offset)
    return CachedReranker(CrossEncoderModel(settings), open_cache(cache_dir))
