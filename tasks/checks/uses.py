"""What the stages of a run use: models, engines, endpoints and GPUs, by the settings that name them.

Input: a configuration, and names of stages. Output: records of what these stages open. Settings that no
stage reads, such as an engine beside an endpoint, are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from pipeline.config import Config, Judges, Trainer
from pipeline.config.base import Endpoint, EngineConfig
from pipeline.config.knowledge import Reranker
from tasks.base import StageTask

ROLL_OUTS = frozenset({"sample", "evaluate-policy", "evaluate-any"})
JUDGING = frozenset({"judge", "judge-policy"})
TRAINING = frozenset({"sft", "train"})
EVALUATING = frozenset({"evaluate-policy"})


@dataclass(frozen=True)
class UsedModel:
    """A model and the setting that names it. ``engine`` is that of a language model, named ``block``."""

    key: str
    name: str
    kind: Literal["language", "embedder", "reranker"]
    engine: EngineConfig | None = None
    block: str = ""


@dataclass(frozen=True)
class UsedEndpoint:
    """An endpoint and the block that it is in."""

    block: str
    endpoint: Endpoint


def stage_names(task: StageTask) -> list[str]:
    """The stages that ``task`` needs, and its own, inputs first.

    Nothing is hashed or read, unlike for `tasks.run.walk`, which asks whether stages are complete.
    """
    seen: dict[str, None] = {}
    visited: set[str] = set()

    def visit(one: StageTask) -> None:
        if one.task_id in visited:
            return
        visited.add(one.task_id)
        for needed in one.upstream().values():
            visit(needed)
        seen.setdefault(one.stage)

    visit(task)
    return list(seen)


def plain(stages: Collection[str]) -> frozenset[str]:
    """The names of stages without those of their shards."""
    return frozenset(stage.removesuffix("-shard") for stage in stages)


def used_models(settings: Config, stages: Collection[str]) -> Iterator[UsedModel]:
    """Every model that one of the stages loads in its process."""
    names = plain(stages)
    base = settings.model.base
    policy = _rolls_out(settings, names) or bool(names & JUDGING)
    if policy or ("sft-data" in names and settings.sft_data.memory is not None):
        yield UsedModel("model.base", base, "language", settings.engine, "engine")
    elif names & TRAINING:
        yield UsedModel("model.base", base, "language")
    for block in ("graph", "hypergraph"):
        extractor = getattr(settings, block)
        asked = block in names and extractor.source == "llm"
        if block == "graph" and "sft-data" in names:
            asked = asked or (extractor.source == "llm" and settings.sft_data.triplets == "graph")
        if asked and extractor.model is not None:
            engine = extractor.engine
            yield UsedModel(
                f"{block}.model", extractor.model, "language", engine, f"{block}.engine"
            )
    helper = settings.sft_data
    if "sft-data" in names and helper.model is not None and _asks(settings):
        yield UsedModel(
            "sft_data.model", helper.model, "language", helper.engine, "sft_data.engine"
        )
    for key, judges in _judges(settings, names):
        for error, judge in (("over", judges.over), ("under", judges.under)):
            if judge.model is not None:
                name = f"{key}.{error}"
                engine = judge.engine
                yield UsedModel(f"{name}.model", judge.model, "language", engine, f"{name}.engine")
    if embeds(settings, names):
        yield UsedModel("index.embedder.model", settings.index.embedder.model, "embedder")
    for key, reranker in used_rerankers(settings, names):
        if reranker.model is not None:
            kind: Literal["embedder", "reranker"] = (
                "embedder" if reranker.kind == "biencoder" else "reranker"
            )
            yield UsedModel(f"{key}.model", reranker.model, kind)


def used_rerankers(settings: Config, stages: Collection[str]) -> Iterator[tuple[str, Reranker]]:
    """The rerankers that the stages open, with their keys."""
    names, retrieval = plain(stages), settings.retrieval
    reranks = retrieves(settings, names) and not retrieval.over_hypergraph
    compares = "score" in names and settings.method.similarity_rewards
    if reranks or (compares and settings.rewards.reranker is None):
        yield "retrieval.reranker", retrieval.reranker
    evaluated = settings.for_evaluation()
    own = evaluated.retrieval.reranker
    reranks = retrieves(evaluated, names & EVALUATING) and not evaluated.retrieval.over_hypergraph
    if reranks and own != retrieval.reranker:
        yield "evaluation.retrieval.reranker", own
    if compares and settings.rewards.reranker is not None:
        yield "rewards.reranker", settings.rewards.reranker


def used_endpoints(settings: Config, stages: Collection[str]) -> Iterator[UsedEndpoint]:
    """Every endpoint that one of the stages may call."""
    names = plain(stages)
    if "graph" in names and settings.graph.source == "llm" and settings.graph.endpoint:
        yield UsedEndpoint("graph", settings.graph.endpoint)
    if (
        "hypergraph" in names
        and settings.hypergraph.source == "llm"
        and settings.hypergraph.endpoint
    ):
        yield UsedEndpoint("hypergraph", settings.hypergraph.endpoint)
    if "sft-data" in names and settings.sft_data.endpoint and _asks(settings):
        yield UsedEndpoint("sft_data", settings.sft_data.endpoint)
    for key, judges in _judges(settings, names):
        for kind, judge in (("over", judges.over), ("under", judges.under)):
            if judge.endpoint is not None:
                yield UsedEndpoint(f"{key}.{kind}", judge.endpoint)


def retrieves(settings: Config, stages: Collection[str]) -> bool:
    """Whether one of the stages retrieves in its own process."""
    retrieval = settings.retrieval
    here = retrieval.service is None and retrieval.variant != "none"
    return here and _rolls_out(settings, plain(stages))


def embeds(settings: Config, stages: Collection[str]) -> bool:
    """Whether one of the stages opens the embedder."""
    names = plain(stages)
    by_cosine = "score" in names and settings.method.similarity_rewards
    reranker = settings.rewards.reranker or settings.retrieval.reranker
    return (
        bool(names & {"index", "hyper-index"})
        or retrieves(settings, names)
        or (by_cosine and reranker.kind == "biencoder" and reranker.model is None)
    )


def needed_gpus(settings: Config, stages: Collection[str]) -> list[tuple[str, int]]:
    """The settings that cannot work without GPUs, each with the GPUs that it needs on each machine.

    ``device: auto`` and an engine on one device work on CPUs too.
    """
    names = plain(stages)
    needs: list[tuple[str, int]] = []
    models = list(used_models(settings, names))
    on_devices = bool(models) or bool(names & TRAINING)
    if settings.gpus and on_devices:
        needs.append((f"gpus is {settings.gpus}", settings.gpus))
    if settings.index.gpu and retrieves(settings, names):
        needs.append(("index.gpu is true", 1))
    for model in models:
        size = 1 if model.engine is None else model.engine.tensor_parallel_size
        if size > 1:
            needs.append((f"{model.block}.tensor_parallel_size is {size}", size))
    if embeds(settings, names) and settings.index.embedder.device == "cuda":
        needs.append(("index.embedder.device is cuda", 1))
    for key, reranker in used_rerankers(settings, names):
        if reranker.kind != "biencoder" and reranker.device == "cuda":
            needs.append((f"{key}.device is cuda", 1))
    for block, trainer in trainers(settings, names):
        if trainer.device == "cuda":
            needs.append((f"{block}.device is cuda", trainer.processes_per_machine))
        if trainer.quantization != "none":
            needs.append((f"{block}.quantization is {trainer.quantization}", 1))
    return list(dict.fromkeys(needs))


def runs_elsewhere(settings: Config) -> bool:
    """Whether stages run on other machines, whose devices and packages this one does not tell."""
    return settings.execution.kind != "local"


def trainers(settings: Config, stages: Collection[str]) -> Iterator[tuple[str, Trainer]]:
    """The blocks of the trainers that run, with their names."""
    names = plain(stages)
    if "sft" in names:
        yield "sft", settings.sft
    if "train" in names:
        yield settings.objective, settings.trainer


def _rolls_out(settings: Config, names: frozenset[str]) -> bool:
    scores = "score" in names and settings.method.scoring_samples
    return bool(names & ROLL_OUTS) or scores


def _judges(settings: Config, names: frozenset[str]) -> Iterator[tuple[str, Judges]]:
    own = settings.evaluation.judges
    if settings.judges is not None and ("judge" in names or ("judge-policy" in names and not own)):
        yield "judges", settings.judges
    if own is not None and "judge-policy" in names:
        yield "evaluation.judges", own


def _asks(settings: Config) -> bool:
    """Whether the stage ``sft-data`` asks its own model."""
    block = settings.sft_data
    return "llm" in (block.triplets, block.selector, block.rewriter)
