"""The prices of the endpoints that the stages of a configuration call."""

from __future__ import annotations

from pipeline.config import Config, Judges
from pipeline.config.base import Endpoint
from tasks.base import StageTask
from tasks.planning.estimate import Prices
from tasks.sharding import ShardedTask


def prices(task: StageTask) -> tuple[Prices, ...]:
    """The prices of the endpoints that a stage calls; empty for a stage without endpoints.

    A stage that joins shards calls none.
    """
    if isinstance(task, ShardedTask) and task.divided:
        return ()
    settings, stage = task.settings, task.stage.removesuffix("-shard")
    if stage == "graph":
        return _priced(
            {"chat": settings.graph.endpoint if settings.graph.source == "llm" else None}
        )
    if stage == "hypergraph":
        block = settings.hypergraph
        return _priced({"chat": block.endpoint if block.source == "llm" else None})
    if stage == "sft-data":
        return _priced({"chat": settings.sft_data.endpoint if _chats(settings) else None})
    if stage == "judge":
        return _of_judges(settings.judges)
    if stage == "judge-policy":
        return _of_judges(settings.evaluation_judges)
    return ()


def _chats(settings: Config) -> bool:
    block = settings.sft_data
    return "llm" in (block.triplets, block.selector, block.rewriter)


def _of_judges(judges: Judges | None) -> tuple[Prices, ...]:
    if judges is None:
        return ()
    if judges.over == judges.under:
        return _priced({"judge": judges.over.endpoint})
    return _priced({"over": judges.over.endpoint, "under": judges.under.endpoint})


def _priced(endpoints: dict[str, Endpoint | None]) -> tuple[Prices, ...]:
    return tuple(
        Prices(name, endpoint.prices.prompt, endpoint.prices.completion)
        for name, endpoint in endpoints.items()
        if endpoint is not None
    )
