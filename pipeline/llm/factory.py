"""Open the chat model that a settings block names: a local engine or an HTTP endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from pipeline.config.base import Endpoint, EngineConfig
from pipeline.core.content_cache import ContentCache
from pipeline.core.content_hashes import ContentHashes
from pipeline.core.shipped import find_model
from pipeline.llm.chat import Chat
from pipeline.llm.endpoint_chat import OUTAGE, EndpointChat
from pipeline.llm.engine import Engine, open_engine
from pipeline.llm.engine_chat import EngineChat


class ChatSettings(Protocol):
    """A settings block that names a chat model: exactly one of ``endpoint`` and ``model`` is set."""

    @property
    def endpoint(self) -> Endpoint | None: ...

    @property
    def model(self) -> str | None: ...

    @property
    def engine(self) -> EngineConfig: ...


def chat_cache(cache_dir: Path | str) -> ContentCache:
    """The cache of chat answers below ``cache_dir``: one for all runs, for its owner alone."""
    return ContentCache(Path(cache_dir) / "chat.sqlite", private=True)


def open_chat(
    settings: ChatSettings,
    *,
    block: str,
    cache_dir: Path | str,
    hashes: Path,
    window: int = 256,
    seed: int = 0,
    outage: int = OUTAGE,
    cache: ContentCache | None = None,
) -> Chat:
    """The chat model of a settings block; answers that are cached below ``cache_dir`` are reused.

    ``cache`` takes the place of that cache.

    ``block`` is the block's name for error messages. ``hashes`` is the file that stores content
    hashes of local models. An engine receives up to ``window`` prompts at once. An endpoint counts
    as down after ``outage`` consecutive prompts without a reply. Nothing is loaded or sent before
    the first prompt without a cached answer, so `open_engine` and `EndpointChat` raise their errors
    then.
    """
    cache = cache or chat_cache(cache_dir)
    if settings.endpoint is not None:
        return EndpointChat(settings.endpoint, cache, block=block, outage=outage)
    model = settings.model
    assert model is not None  # the configuration refuses a block with neither

    def load_engine() -> Engine:
        return open_engine(settings.engine, model, adapter=None, seed=seed, key=f"{block}.model")

    identity = engine_identity(model, settings.engine, hashes)
    return EngineChat(load_engine, identity, cache, window=window)


def engine_identity(model: str, engine: EngineConfig, hashes: Path) -> dict[str, object]:
    """The cache identity of an engine's greedy answers: the model's content and numeric settings.

    ``hashes`` is the file that stores content hashes of local models.
    """
    content = model
    directory = Path(find_model(model))
    if directory.is_dir():
        stored = ContentHashes(hashes)
        content = stored.of(directory)
        stored.save()
    return {
        "model": content,
        **engine.model_dump(include={"kind", "dtype", "max_model_len"}),
        "temperature": 0.0,
    }
