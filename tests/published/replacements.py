"""Every setting in which a stand-in run differs from its published configuration, and why.

`REPLACEMENTS` is the only place: paths, counts, sizes and devices. All other settings of the published
files are used as they are: prompts, grammars, data sets and their selection, retrieval, rewards,
thresholds of pairs, learning rates, losses and number formats.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pipeline import config
from pipeline.core.input_files import leaves

PUBLISHED = (
    "tearag-llama3-8b",
    "tearag-qwen2.5-14b",
    "tearag-qwen3-4b-tools",
    "tearag-qwen3-4b-one-gpu",
    "hiprag-qwen2.5-3b",
    "hiprag-qwen2.5-7b",
    "prograph-qwen2.5-3b",
    "prograph-qwen2.5-7b",
    *(f"baseline-{one}-qwen2.5-3b" for one in ("tearag", "hiprag", "dpo-sft", "rft", "search-r1")),
)
# The stand-in of each model that a published configuration names. Qwen2.5-3B ties its embeddings.
MODELS = {
    "meta-llama/Meta-Llama-3-8B-Instruct": "llama3",
    "Qwen/Qwen2.5-3B-Instruct": "qwen2.5-tied",
    "Qwen/Qwen2.5-7B-Instruct": "qwen2.5",
    "Qwen/Qwen2.5-14B-Instruct": "qwen2.5",
    "Qwen/Qwen2.5-72B-Instruct": "qwen2.5-72b",
    "Qwen/Qwen3-4B": "qwen3",
    "intfloat/e5-base-v2": "e5",
    "BAAI/bge-large-en-v1.5": "bge",
    "BAAI/bge-reranker-v2-m3": "reranker",
}
HELPER = "qwen2.5-72b"  # the stand-in that can rewrite the questions of the cold start
JUDGE = "qwen2.5-judge"  # the stand-in that judges steps on the GPU of the policy

DIVIDED = ("tearag-llama3-8b", "hiprag-qwen2.5-3b", "prograph-qwen2.5-7b")


@dataclass(frozen=True)
class Places:
    """Where a stand-in run finds its models and its judges, and where it writes."""

    work: Path
    models: Path
    endpoint: str


MODEL, ENDPOINT = "model", "endpoint"  # values that depend on the places

# Pattern of the dotted names, value, and why. Other texts are directories below the work.
REPLACEMENTS: dict[str, tuple[Any, str]] = {
    "runs_dir": ("runs", "a temporary directory"),
    "cache_dir": ("cache", "a temporary directory"),
    "model.base": (MODEL, "two layers, trained in seconds"),
    "graph.model": (MODEL, "as model.base"),
    "hypergraph.model": (MODEL, "as model.base"),
    "sft_data.model": (MODEL, "as model.base"),
    "judges.*.model": (MODEL, "as model.base"),
    "graph.candidates": (2, "40 articles, of which ten for each question are all"),
    "index.embedder.model": (MODEL, "two random layers"),
    "retrieval.reranker.model": (MODEL, "two random layers"),
    "judges.*.endpoint.base_url": (ENDPOINT, "a server of the test"),
    "rounds": (1, "the stages of a round are the same in all rounds"),
    "sft_data.sizes.1": (4, "5 questions have few steps"),
    "sft_data.sizes.2": (2, "as above"),
    "sft_data.sizes.[34]": (1, "as above"),
    "sft_data.test_sizes.*": (1, "as above"),
    "sft_data.memory.rehearsed": (2, "as above"),
    "shards": (1, "time of CI; each method runs with two and with one"),
    "*.shards": (1, "as above"),
    "sampling.samples": (6, "enough for right and wrong answers to the same question"),
    "rewards.prograph.continuations": (1, "each state is sampled from once"),
    "sampling.max_segment_tokens": (96, "a stand-in may write to the limit"),
    "*.per_device_batch_size": (2, "several optimizer steps out of few examples"),
    "sft.batch_size": (4, "as above"),
    "dpo.batch_size": (4, "as above"),
    "grpo.batch_size": (4, "as above"),
    "*engine.cpu_kv_cache_gib": (1, "memory of the machine"),
    "gpus": (0, "no GPU"),
    "index.gpu": (False, "no GPU"),
    "*.tensor_parallel_size": (1, "one device: the CPU"),
    "*.processes": (2, "gloo on two cores; NCCL on eight GPUs"),
    "*engine.enforce_eager": (True, "no C++ compiler to compile kernels with"),
}


def published(name: str) -> dict[str, Any]:
    """All settings of a published configuration, by dotted name."""
    settings = config.load(name, ("data.root=/data",)).model_dump(mode="json")
    return dict(leaves(settings))


def models_of(name: str) -> dict[str, str]:
    """The stand-in of each model of a published configuration, by dotted name of its setting."""
    settings = published(name)
    rewrites = settings["sft_data.rewriter"] == "llm"
    return {
        key: HELPER
        if key == "sft_data.model" and rewrites
        else JUDGE
        if key.startswith("judges.")
        else MODELS[value]
        for key, value in settings.items()
        if isinstance(value, str) and value in MODELS
    }


def stand_in(name: str, places: Places) -> dict[str, Any]:
    """The settings that a stand-in run changes, by dotted name.

    Settings of blocks that the configuration does not have stay out.
    """
    changed, models = {}, models_of(name)
    for key, value in published(name).items():
        for pattern, (new, _) in REPLACEMENTS.items():
            if fnmatchcase(key, pattern) and value is not None:
                new = _resolved(new, pattern, name, places, models.get(key, ""))
                if new != value:
                    changed[key] = new
    return changed


def _resolved(new: Any, pattern: str, name: str, places: Places, model: str) -> Any:
    if new == MODEL:
        return str(places.models / model)
    if new == ENDPOINT:
        return places.endpoint
    if pattern.endswith("shards") and name in DIVIDED:
        return 2
    return str(places.work / new) if isinstance(new, str) else new
