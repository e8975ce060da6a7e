"""The chat model that a configuration names: its engine and model, or its endpoint."""

from __future__ import annotations

from pathlib import Path

from pipeline.chat.base import Chat
from pipeline.chat.endpoint import EndpointChat
from pipeline.chat.engine import EngineChat
from pipeline.config import Config, Endpoint, EngineConfig
from pipeline.engines.base import Engine, open_engine
from pipeline.index.cache import ContentCache
from pipeline.store import ContentHashes


def open_chat(
    config: Config,
    block: str,
    *,
    model: str | None,
    engine: EngineConfig,
    endpoint: Endpoint | None,
    window: int = 256,
    seed: int = 0,
) -> Chat:
    """The model of the configuration block ``block``, with the answers of all runs to reuse.

    Nothing is loaded or sent before the first prompt that has no answer yet. Errors are those of
    `open_engine` and `EndpointChat`, at that time.
    """
    cache = ContentCache(Path(config.cache_dir) / "chat.sqlite")
    if endpoint is not None:
        return EndpointChat(endpoint, cache, block=block)
    assert model is not None  # the configuration refuses a block with neither

    def opened() -> Engine:
        return open_engine(engine, model, adapter=None, seed=seed)

    content = model
    if Path(model).is_dir():
        hashes = ContentHashes(config.run_dir / "store" / ".hashes.json")
        content = hashes.of(Path(model))
        hashes.save()
    identity = {
        "model": content,
        **engine.model_dump(include={"kind", "dtype", "max_model_len"}),
        "temperature": 0.0,
    }
    return EngineChat(opened, identity, cache, window=window)
