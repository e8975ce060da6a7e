"""What a stage asks for: GPUs and CPU threads, from the configuration alone.

Input: the task of a stage. Output: `Needs`. `tasks.execution.leases` gives a stage what it asks for, and
`tasks.planning` counts with the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from pipeline.config import Config, EngineConfig, Judges, Trainer
from pipeline.config.machine_choices import on_gpus, processes_on
from tasks.base import StageTask
from tasks.sharding import ShardedTask

_SHARD = "-shard"  # ends the names of stages that are parts of another


@dataclass(frozen=True)
class Needs:
    """What a stage asks for.

    Attributes:
        gpus: GPUs that the stage uses where it runs on GPUs; 0 for a stage that loads no model.
        threads: CPU threads that it asks for at least, one for each process that computes.
        setting: the setting that decides ``gpus``, for messages.
        vllm: whether the stage opens an engine of vLLM.
    """

    gpus: int = 0
    threads: int = 1
    setting: str = ""
    vllm: bool = False


NOTHING = Needs()


def shards_of(task: StageTask) -> dict[str, StageTask]:
    """The shards that the stage of ``task`` is divided into; none when it is not divided."""
    return task.shards() if isinstance(task, ShardedTask) else {}


def needs(task: StageTask, gpus: int | None = None) -> Needs:
    """What the stage of ``task`` asks for.

    ``gpus`` are those that it can have, and decide in how many processes it trains
    (`pipeline.config.machine_choices`); None: as many as it asks for. A stage that is divided only joins the outputs
    of its shards, and loads no model.
    """
    if shards_of(task):
        return NOTHING
    stage = task.stage.removesuffix(_SHARD)
    if stage in TRAINERS:
        return _trainer(*TRAINERS[stage](task.settings), gpus)
    rule = RULES.get(stage)
    return NOTHING if rule is None else rule(task.settings)


def _most(candidates: Iterable[Needs]) -> Needs:
    """The largest of the needs of models that share one process: they use the same GPUs."""
    found = list(candidates)
    largest = max(found, key=lambda one: (one.gpus, one.threads), default=NOTHING)
    return replace(largest, vllm=any(one.vllm for one in found))


def _engine(settings: EngineConfig, block: str) -> Needs:
    if settings.kind != "vllm":
        gpus = 0 if settings.kind == "scripted" else 1
        return Needs(gpus, 1, f"{block}.kind")
    size = settings.tensor_parallel_size
    return Needs(size, size, f"{block}.tensor_parallel_size", vllm=True)


def _device(device: str, setting: str) -> Needs:
    return NOTHING if device == "cpu" else Needs(1, 1, setting)


def _trainer(settings: Trainer, block: str, gpus: int | None) -> Needs:
    here = settings.processes if gpus is None else gpus
    count = processes_on(settings, here)
    return Needs(count if on_gpus(settings, here) else 0, count, f"{block}.processes")


def _graph(settings: Config) -> Needs:
    block = settings.graph
    by_model = block.source == "llm" and block.model is not None
    return _engine(block.engine, "graph.engine") if by_model else NOTHING


def _hypergraph(settings: Config) -> Needs:
    block = settings.hypergraph
    by_model = block.source == "llm" and block.model is not None
    return _engine(block.engine, "hypergraph.engine") if by_model else NOTHING


def _index(settings: Config) -> Needs:
    return _device(settings.index.embedder.device, "index.embedder.device")


def _sft_data(settings: Config) -> Needs:
    block, found = settings.sft_data, []
    if "llm" in (block.triplets, block.selector, block.rewriter) and block.model is not None:
        found.append(_engine(block.engine, "sft_data.engine"))
    if block.triplets == "graph" and not settings.teaches_hyperedges:
        found.append(_graph(settings))  # extracts from paragraphs that the corpus does not hold
    if block.memory is not None:
        found.append(_engine(settings.engine, "engine"))
    return _most(found)


def _retrieval(settings: Config) -> Iterable[Needs]:
    """Embedder, reranker and index of a stage that retrieves in its own process."""
    retrieval = settings.retrieval
    if retrieval.variant == "none" or retrieval.service is not None:
        return []
    found = [_device(settings.index.embedder.device, "index.embedder.device")]
    if retrieval.reranker.kind != "biencoder":
        found.append(_device(retrieval.reranker.device, "retrieval.reranker.device"))
    if settings.index.gpu:
        found.append(Needs(1, 1, "index.gpu"))
    return found


def _roll_out(settings: Config) -> Needs:
    return _most([_engine(settings.engine, "engine"), *_retrieval(settings)])


def _score(settings: Config) -> Needs:
    if settings.method.scoring_samples:
        return _roll_out(settings)
    if not settings.method.similarity_rewards:
        return NOTHING
    reranker, block = settings.rewards.reranker, "rewards.reranker"
    if reranker is None:
        reranker, block = settings.retrieval.reranker, "retrieval.reranker"
    if reranker.kind == "biencoder":
        return _index(settings)
    return _device(reranker.device, f"{block}.device")


def _judges(judges: Judges | None, settings: Config, block: str) -> Needs:
    """The policy answers closed-book questions before the judges are asked, in the same process."""
    found = [_engine(settings.engine, "engine")]
    if judges is not None:
        for name, judge in (("over", judges.over), ("under", judges.under)):
            if judge.backend == "vllm":
                found.append(_engine(judge.engine, f"{block}.{name}.engine"))
    return _most(found)


def _evaluation_judges(settings: Config) -> Needs:
    return _judges(settings.evaluation_judges, settings, settings.evaluation_judges_block)


RULES: Mapping[str, Callable[[Config], Needs]] = {
    "graph": _graph,
    "hypergraph": _hypergraph,
    "index": _index,
    "hyper-index": _index,
    "sft-data": _sft_data,
    "sample": _roll_out,
    "judge": lambda settings: _judges(settings.judges, settings, "judges"),
    "judge-policy": _evaluation_judges,
    "score": _score,
    "evaluate-policy": _roll_out,
    "evaluate-any": _roll_out,
}
TRAINERS: Mapping[str, Callable[[Config], tuple[Trainer, str]]] = {
    "sft": lambda settings: (settings.sft, "sft"),
    "train": lambda settings: (settings.trainer, settings.objective),
}
