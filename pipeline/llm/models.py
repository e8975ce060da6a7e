"""Open the language models of a run: its policies, and the chat models that settings blocks name.

Input: the settings blocks ``model`` and ``engine``, and the directories of caches. Output: engines,
and chats with a cache of answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline.config.base import AskedModel, EngineConfig
from pipeline.config.policy import Model
from pipeline.core.content_cache import ContentCache
from pipeline.core.model_files import model_hash
from pipeline.llm.chat import Chat, EngineChat, chat_cache, engine_identity
from pipeline.llm.endpoint import EndpointChat
from pipeline.llm.engine import Engine
from pipeline.llm.merged_adapter import merged_models
from pipeline.llm.open_engine import open_engine
from pipeline.llm.tokenizer import read_template


@dataclass(frozen=True)
class Models:
    """Opens models; ``policy`` and ``engine`` are the settings of the policies.

    ``hashes_file`` stores content hashes of local models. A process that is one of ``shards`` of a
    stage may spend its part of an endpoint's ceilings.
    """

    policy: Model
    engine: EngineConfig
    cache_dir: str
    hashes_file: Path
    seed: int = 0
    shards: int = 1

    def chat(self, block: str, settings: AskedModel, cache: ContentCache | None = None) -> Chat:
        """The chat model of a settings block; ``block`` is its name for error messages.

        Cached answers are reused; ``cache`` takes the place of the cache of all runs. Nothing is
        loaded or sent before the first prompt without a cached answer, so `open_engine` and
        `EndpointChat` raise their errors then.
        """
        cache = cache or chat_cache(self.cache_dir)
        if settings.endpoint is not None:
            return EndpointChat(settings.endpoint, cache, block=block, shards=self.shards)
        model, engine = settings.model, settings.engine
        assert model is not None  # the configuration refuses a block with neither

        def load() -> Engine:
            return open_engine(engine, model, adapter=None, seed=self.seed, key=f"{block}.model")

        return EngineChat(load, engine_identity(model, engine, self.hashes_file), cache)

    def policy_engine(self, adapter: Path | None) -> Engine:
        """The base model with ``adapter`` and the configured chat template."""
        template = self._template()
        engine = open_engine(
            self.engine,
            self.policy.base,
            adapter=adapter,
            seed=self.seed,
            workspace=merged_models(self.cache_dir),
        )
        if template is not None:
            engine.tokenizer.chat_template = template
        return engine

    def policy_chat(self, adapter: Path | None) -> EngineChat:
        """Cached greedy answers of a policy, or of the base model without ``adapter``.

        The engine is opened for the first prompt without a cached answer.
        """
        identity = {
            **engine_identity(self.policy.base, self.engine, self.hashes_file),
            "adapter": adapter and model_hash(adapter),
            "chat_template": self._template(),
        }
        if adapter and self.engine.adapters != "merged":  # the default, which is not named
            identity["adapters"] = self.engine.adapters
        return EngineChat(lambda: self.policy_engine(adapter), identity, chat_cache(self.cache_dir))

    def _template(self) -> str | None:
        template = self.policy.chat_template
        return template and read_template(template)
