"""Open the models and retrievers of a configuration, for all stages.

The packages below ``pipeline.stages`` take plain arguments and settings blocks; this module takes
them from a `Config` or a `StageContext`.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pipeline.config import Config, Endpoint, EngineConfig
from pipeline.core.content_cache import ContentCache
from pipeline.core.errors import DependencyError, StoreError
from pipeline.llm.chat import Chat, EngineChat, Usage, chat_cache, engine_identity
from pipeline.llm.endpoint import EndpointChat
from pipeline.llm.engine import Engine
from pipeline.llm.open_engine import open_engine
from pipeline.retrieval.fingerprint import RetrievalIdentity
from pipeline.run.store import StageKey

if TYPE_CHECKING:
    from pipeline.config import Reranker
    from pipeline.index.embed import Embedder
    from pipeline.retrieval.remote.client import RemoteRetriever
    from pipeline.retrieval.rerank import RerankerSimilarity
    from pipeline.retrieval.retriever import VariantRetriever


class ChatSettings(Protocol):
    """A settings block that names a chat model: either ``endpoint`` or ``model`` is set."""

    @property
    def endpoint(self) -> Endpoint | None: ...

    @property
    def model(self) -> str | None: ...

    @property
    def engine(self) -> EngineConfig: ...


def open_chat(
    config: Config,
    block: str,
    settings: ChatSettings,
    *,
    window: int = 256,
    seed: int = 0,
    cache: ContentCache | None = None,
) -> Chat:
    """The chat model of a settings block; ``block`` is its name for error messages.

    Cached answers are reused; ``cache`` takes the place of the cache of all runs. An engine
    receives up to ``window`` prompts at once. Nothing is loaded or sent before the first prompt
    without a cached answer, so `open_engine` and `EndpointChat` raise their errors then.
    """
    cache = cache or chat_cache(config.cache_dir)
    if settings.endpoint is not None:
        return EndpointChat(settings.endpoint, cache, block=block)
    model = settings.model
    assert model is not None  # the configuration refuses a block with neither

    def load_engine() -> Engine:
        return open_engine(settings.engine, model, adapter=None, seed=seed, key=f"{block}.model")

    identity = engine_identity(model, settings.engine, config.hashes_file)
    return EngineChat(load_engine, identity, cache, window=window)


def policy_identity(config: Config) -> dict[str, Any]:
    """Everything that decides the greedy answers of the base model under the configured engine."""
    return engine_identity(config.model.base, config.engine, config.hashes_file)


def open_retriever(
    config: Config,
    corpus: Path,
    graph: Path,
    index: Path,
    *,
    embedder: Embedder | None = None,
    work: MutableMapping[str, float] | None = None,
) -> VariantRetriever:
    """The configured retriever over complete stage directories (`retrieval.factory`)."""
    from pipeline.retrieval import factory

    return factory.open_retriever(
        config.retrieval,
        config.index.embedder,
        corpus,
        graph,
        index,
        cache_dir=config.cache_dir,
        gpu=config.index.gpu,
        embedder=embedder,
        work=work,
    )


def retrieval_identity(
    config: Config, stages: Mapping[str, str], reranker: str | None
) -> RetrievalIdentity:
    """The identity of the configured retrieval (`RetrievalIdentity.from_settings`)."""
    return RetrievalIdentity.from_settings(config.retrieval, stages, reranker)


def open_remote_retriever(config: Config, key: StageKey | None) -> RemoteRetriever:
    """The client of ``retrieval.service``.

    ``key`` has the fingerprints of the expected corpus, graph and index. Raises
    RetrievalUnavailable when the service is down or its identity differs, StoreError without
    ``key``: a stage outside a store has no fingerprints. Raises DependencyError when a package of
    the client is missing.
    """
    try:
        from pipeline.retrieval.remote.client import RemoteRetriever
    except ImportError as error:
        raise DependencyError(
            f"retrieval.service needs {error.name}; pip install 'steep[serve]'"
        ) from None

    settings = config.retrieval
    if key is None or settings.service is None:
        raise StoreError("retrieval.service needs the fingerprints of a store; use steep run")
    identity = retrieval_identity(config, key.inputs, key.files.get("reranker"))
    return RemoteRetriever(settings.service, identity, patience=settings.service_patience)


def open_similarity(
    config: Config,
    *,
    reranker: Reranker | None = None,
    work: MutableMapping[str, float] | None = None,
) -> RerankerSimilarity:
    """The similarity by a reranker, by default by the retrieval settings' reranker.

    ``work`` gets the number of pairs that it scores.
    """
    from pipeline.retrieval.rerank import RerankerSimilarity, open_reranker

    settings = reranker or config.retrieval.reranker
    return RerankerSimilarity(
        open_reranker(settings, config.index.embedder, config.cache_dir, work=work)
    )


def add_usage(work: MutableMapping[str, float], name: str, usage: Usage) -> None:
    """Add the calls, tokens and cost of a chat model to the work of a stage.

    The totals are ``calls``, ``prompt_tokens``, ``completion_tokens`` and ``cost``. Answers from
    the cache count too, and are ``cached_calls``. Calls and tokens are also there under ``name``,
    because each model has its own prices.
    """
    total = usage.total()
    amounts = {
        "calls": total["answers"],
        "cached_calls": usage.reused,
        "prompt_tokens": total["prompt_tokens"],
        "completion_tokens": total["completion_tokens"],
        "cost": total["cost"],
        f"{name}.calls": total["answers"],
        f"{name}.cached_calls": usage.reused,
        f"{name}.prompt_tokens": total["prompt_tokens"],
        f"{name}.completion_tokens": total["completion_tokens"],
    }
    for key, value in amounts.items():
        work[key] = work.get(key, 0) + value
