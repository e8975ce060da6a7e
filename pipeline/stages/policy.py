"""Open a policy for a stage: its engine, its grammar, the retriever, and the rollout settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.config import Config
from pipeline.core.model_files import model_hash
from pipeline.grammars.base import Grammar, grammar
from pipeline.grammars.tokenizer import read_template
from pipeline.grammars.tokens import control_tokens
from pipeline.llm.chat import EngineChat, chat_cache
from pipeline.llm.engine import Engine
from pipeline.llm.merged_adapter import merged_models
from pipeline.llm.open_engine import open_engine
from pipeline.rollout.policy import RolloutSettings
from pipeline.run.context import StageContext
from pipeline.stages.resources import open_remote_retriever, open_retriever, policy_identity

if TYPE_CHECKING:
    from pipeline.retrieval.base import Retriever


def rollout_settings(config: Config, *, temperature: float) -> RolloutSettings:
    """The rollout settings of a configuration; sampling and evaluation differ in temperature."""
    sampling = config.sampling
    return RolloutSettings(
        system=config.prompt.system,
        temperature=temperature,
        top_p=sampling.top_p,
        max_steps=sampling.max_steps,
        max_segment_tokens=sampling.max_segment_tokens,
        max_total_tokens=sampling.max_total_tokens,
        max_context_tokens=sampling.max_context_tokens,
        in_flight=sampling.in_flight or 2 * config.engine.max_num_seqs,
        single_retrieval=config.retrieval.rounds == "single",
        prompt_retrieval=config.retrieval.rounds == "prompt",
    )


def open_policy_engine(context: StageContext, adapter: Path | None) -> Engine:
    """The engine of a policy: the base model with ``adapter`` and the configured chat template."""
    model = context.config.model
    template = None if model.chat_template is None else read_template(model.chat_template)
    engine = open_engine(
        context.config.engine,
        model.base,
        adapter=adapter,
        seed=context.seed,
        workspace=merged_models(context.config.cache_dir),
    )
    if template is not None:
        engine.tokenizer.chat_template = template
    return engine


def open_policy_chat(
    context: StageContext, adapter: Path | None, *, window: int = 256
) -> EngineChat:
    """Cached greedy answers of a policy, or of the base model without ``adapter``.

    The engine is opened for the first prompt without a cached answer. ``window`` is the number of
    prompts in the engine at once.
    """
    config = context.config
    template = config.model.chat_template
    identity = {
        **policy_identity(config),
        "adapter": adapter and model_hash(adapter),
        "chat_template": template and read_template(template),
    }
    cache = chat_cache(config.cache_dir)
    return EngineChat(lambda: open_policy_engine(context, adapter), identity, cache, window=window)


@contextmanager
def open_rollout(
    context: StageContext, adapter: Path | None
) -> Iterator[tuple[Engine, Retriever | None, Grammar]]:
    """The engine, the retriever (None for variant ``none``) and the grammar, closed on exit.

    Raises what `open_engine`, `open_retriever` and `open_remote_retriever` raise.
    """
    with ExitStack() as stack:

        def opened_retriever() -> Retriever | None:
            retriever = _open_retriever(context)
            if retriever is not None:
                stack.callback(retriever.close)
            return retriever

        # Connecting to a retrieval service first reports an outage before the engine starts, which
        # takes minutes. A local retriever is opened after the engine.
        remote = context.config.retrieval.service is not None
        retriever = opened_retriever() if remote else None
        engine = open_policy_engine(context, adapter)
        stack.callback(engine.close)
        policy_grammar = grammar(
            context.config.grammar,
            max_steps=context.config.sampling.max_steps,
            special_tokens=control_tokens(engine.tokenizer),
        )
        yield engine, retriever if remote else opened_retriever(), policy_grammar


def _open_retriever(context: StageContext) -> Retriever | None:
    if context.config.retrieval.variant == "none":
        return None
    if context.config.retrieval.service is not None:
        return open_remote_retriever(context.config, context.key)
    corpus, graph, index = (context.inputs[name] for name in ("corpus", "graph", "index"))
    return open_retriever(context.config, corpus, graph, index, work=context.work)
