"""Assumed durations of stages on GPUs that have not been measured: only for simulated schedules.

Input: the task of a stage. Output: seconds of the undivided stage on one GPU, from the amounts of its
configuration and the rates below. No estimate of `steep plan` and nothing in a run goes by them. The
rates for sampling, rewards and training are those of TeaRAG's 681 minutes on 8 A100s for 8 B
parameters (arXiv 2511.05385, table 9: 376, 220 and 85 minutes); other sizes scale them by parameters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from pipeline.config import Config, JudgeModel, for_round
from pipeline.config.knowledge import QuestionFile
from tasks.base import StageTask
from tasks.planning.questions import records_before_filters

_TRAJECTORIES = 3 * 10_000 * 8  # of the paper: rounds, questions, samples
_SEQUENCES = 7_357 + 2 * 8_000 * (2 + 2 + 1)  # SFT examples, and both sides of 8,000 pairs a round
_PARAMETERS = 8.0  # billions, of the paper's model; also of a model whose name does not tell

# Seconds of one GPU (A100, 80 GB) for one item; a model of 8 B parameters where one is asked.
RATES: Mapping[str, float] = {
    "trajectory": 376 * 60 * 8 / _TRAJECTORIES,
    "reward": 220 * 60 * 8 / _TRAJECTORIES,
    "trained sequence": 85 * 60 * 8 / _SEQUENCES,
    "extracted chunk": 0.06,
    "embedded text": 24 * 3600 / 203e6,  # a day for TeaRAG's 203 M texts
    "request for SFT data": 0.11,
    "closed-book answer": 0.05,
    "judged case": 0.05,
}
# Seconds of stages that load no model, and of joining shards.
SECONDS: Mapping[str, float] = {"corpus": 3600.0, "report": 120.0}
JOINING = 60.0
OTHER = 30.0

_TEXTS_PER_CHUNK = {"llm": 203 / 21, "none": 1.0}  # chunks, entities and triplets (TeaRAG, table 4)
_CHUNKS = {"psgs_w100.tsv": 21_015_324}
_CHUNKS_OF_QUESTIONS = 250_000  # of one file of questions, each with its paragraphs
_PAIRS_PER_QUESTION = 0.8
_STEPS = 3  # of a trajectory; a continuation is half a trajectory on average
_QUESTIONS = {  # of whole test or development files
    "nq": 3_610, "popqa": 14_267, "triviaqa": 11_313, "hotpotqa": 7_405, "2wiki": 12_576,
    "musique": 2_417, "bamboogle": 125,
}  # fmt: skip


def assumed_seconds(task: StageTask) -> float:
    """Seconds of the undivided stage of ``task``, times the GPUs that it uses."""
    rule = _RULES.get(task.stage.removesuffix("-shard"))
    if rule is None:
        return SECONDS.get(task.stage, OTHER)
    return max(rule(task.settings, task.round_number or 1), OTHER)


def parameters(model: str | None) -> float:
    """Billions of parameters by a model's name, such as 14 for ``Qwen/Qwen2.5-14B-Instruct``."""
    found = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)B\b", model or "", re.IGNORECASE)
    return float(found[1]) if found else _PARAMETERS


def _rate(name: str, model: str | None) -> float:
    return RATES[name] * parameters(model) / _PARAMETERS


def _count(files: tuple[QuestionFile, ...], settings: Config) -> float:
    total = 0.0
    closed_world = settings.data.closed_world
    world = None if closed_world is None else closed_world.model_dump(mode="json")
    for file in files:
        known = records_before_filters([file.model_dump(mode="json")], world, None)
        total += _QUESTIONS.get(file.dataset, 0) if known is None else known
    return total


def _sampled(settings: Config) -> float:
    """Trajectories of a round."""
    return _count(settings.data.sampling, settings) * settings.sampling.samples


def _evaluated(settings: Config) -> float:
    return _count(getattr(settings.data, settings.evaluation.split), settings)


def _chunks(settings: Config) -> float:
    if settings.data.closed_world is not None:
        return settings.data.closed_world.documents
    return float(
        sum(_CHUNKS.get(file.path, _CHUNKS_OF_QUESTIONS) for file in settings.corpus.files)
    )


def _graph(settings: Config, number: int) -> float:
    block = settings.graph
    by_model = block.source == "llm" and block.model is not None
    return _chunks(settings) * _rate("extracted chunk", block.model) if by_model else OTHER


def _hypergraph(settings: Config, number: int) -> float:
    block = settings.hypergraph
    by_model = block.source == "llm" and block.model is not None
    return _chunks(settings) * _rate("extracted chunk", block.model) if by_model else OTHER


def _index(settings: Config, number: int) -> float:
    source = settings.graph.source
    if settings.retrieval.over_hypergraph:
        source = "llm"
    texts = _chunks(settings) * _TEXTS_PER_CHUNK.get(source, _TEXTS_PER_CHUNK["llm"])
    return texts * RATES["embedded text"]


def _sft_data(settings: Config, number: int) -> float:
    block = settings.sft_data
    kinds = (block.triplets, block.selector, block.rewriter).count("llm")
    hops = sum(hops * size for hops, size in block.sizes.items())
    return kinds * hops * _rate("request for SFT data", block.model)


def _sft(settings: Config, number: int) -> float:
    examples = sum(settings.sft_data.sizes.values()) * settings.sft.epochs
    return examples * _rate("trained sequence", settings.model.base)


def _train(settings: Config, number: int) -> float:
    rate = _rate("trained sequence", settings.model.base)
    if settings.objective == "grpo":
        return _sampled(settings) * settings.trainer.epochs * rate
    pairs = _count(settings.data.sampling, settings) * _PAIRS_PER_QUESTION
    return 2 * pairs * for_round(settings.dpo.round_epochs, number) * rate


def _sample(settings: Config, number: int) -> float:
    return _sampled(settings) * _rate("trajectory", settings.model.base)


def _score(settings: Config, number: int) -> float:
    if settings.method.scoring_samples:
        continued = settings.rewards.prograph.continuations * _STEPS / 2
        return continued * _sample(settings, number)
    return _sampled(settings) * RATES["reward"] if settings.method.similarity_rewards else OTHER


def _evaluate(settings: Config, number: int) -> float:
    return _evaluated(settings) * _rate("trajectory", settings.model.base)


def _judging(trajectories: float, settings: Config, judges: tuple[JudgeModel, ...]) -> float:
    seconds = _rate("closed-book answer", settings.model.base)
    for judge in judges:
        if judge.backend == "vllm":
            seconds += _rate("judged case", judge.model)
    return trajectories * _STEPS * seconds


def _judge(settings: Config, number: int) -> float:
    judges = settings.judges
    models = () if judges is None else (judges.over, judges.under)
    return _judging(_sampled(settings), settings, models)


def _judge_policy(settings: Config, number: int) -> float:
    judges = settings.evaluation_judges
    models = () if judges is None else (judges.over, judges.under)
    return _judging(_evaluated(settings), settings, models)


_RULES: Mapping[str, Callable[[Config, int], float]] = {
    "graph": _graph,
    "hypergraph": _hypergraph,
    "index": _index,
    "hyper-index": _index,
    "sft-data": _sft_data,
    "sft": _sft,
    "sample": _sample,
    "score": _score,
    "judge": _judge,
    "judge-policy": _judge_policy,
    "train": _train,
    "evaluate-policy": _evaluate,
}
