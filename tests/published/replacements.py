"""Every setting in which a stand-in run differs from its published configuration, and why.

`REPLACEMENTS` is the only place: paths, counts, sizes and devices. All other settings of the published
files are used as they are: prompts, grammars, data sets and their selection, retrieval, rewards,
thresholds of pairs, learning rates, losses and number formats.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from pipeline import config
from pipeline.core.input_files import leaves

PUBLISHED = (
    "tearag-llama3-8b",
    "tearag-qwen2.5-14b",
    "hiprag-qwen2.5-3b",
    "hiprag-qwen2.5-7b",
    "prograph-qwen2.5-3b",
    "prograph-qwen2.5-7b",
)
# The stand-in of each model that a published configuration names. Qwen2.5-3B ties its embeddings.
MODELS = {
    "meta-llama/Meta-Llama-3-8B-Instruct": "llama3",
    "Qwen/Qwen2.5-3B-Instruct": "qwen2.5-tied",
    "Qwen/Qwen2.5-7B-Instruct": "qwen2.5",
    "Qwen/Qwen2.5-14B-Instruct": "qwen2.5",
    "Qwen/Qwen2.5-72B-Instruct": "qwen2.5-72b",
    "intfloat/e5-base-v2": "e5",
    "BAAI/bge-large-en-v1.5": "bge",
    "BAAI/bge-reranker-v2-m3": "reranker",
}


DIVIDED = ("tearag-llama3-8b", "hiprag-qwen2.5-3b", "prograph-qwen2.5-7b")


@dataclass(frozen=True)
class Replacement:
    """The value of the settings whose dotted name matches ``pattern``.

    ``value`` may depend on the `Places` and the name of a run, and on the published value.
    """

    pattern: str
    kind: Literal["path", "count", "size", "device"]
    value: Any
    why: str


@dataclass(frozen=True)
class Places:
    """Where a stand-in run finds its models and its judges, and where it writes."""

    work: Path
    models: Path
    endpoint: str


class Stand:
    """A value that depends on the places: a stand-in for a published model, a directory or an address."""

    def __init__(self, name: str) -> None:
        self.name = name

    def resolve(self, name: str, places: Places, published: Any) -> str:
        if self.name == "model":
            return str(places.models / MODELS[published])
        return places.endpoint if self.name == "endpoint" else str(places.work / self.name)


class Shards:
    """Two in half of the runs; one in the others, as every shard starts the engine of its model."""

    def resolve(self, name: str, places: Places, published: Any) -> int:
        return 2 if name in DIVIDED else 1


REPLACEMENTS = (
    Replacement("runs_dir", "path", Stand("runs"), "a temporary directory"),
    Replacement("cache_dir", "path", Stand("cache"), "a temporary directory"),
    Replacement("model.base", "path", Stand("model"), "two layers, trained in seconds"),
    Replacement("graph.model", "path", Stand("model"), "as model.base"),
    Replacement("hypergraph.model", "path", Stand("model"), "as model.base"),
    Replacement("sft_data.model", "path", Stand("model"), "as model.base"),
    Replacement("index.embedder.model", "path", Stand("model"), "two random layers"),
    Replacement("retrieval.reranker.model", "path", Stand("model"), "two random layers"),
    Replacement("judges.*.endpoint.base_url", "path", Stand("endpoint"), "a server of the test"),
    Replacement("rounds", "count", 1, "the stages of a round are the same in all rounds"),
    Replacement("sft_data.sizes.1", "count", 4, "5 questions have few steps"),
    Replacement("sft_data.sizes.2", "count", 2, "as above"),
    Replacement("sft_data.sizes.3", "count", 1, "as above"),
    Replacement("sft_data.sizes.4", "count", 1, "as above"),
    Replacement("sft_data.test_sizes.*", "count", 1, "as above"),
    Replacement("sft_data.memory.rehearsed", "count", 2, "as above"),
    Replacement("shards", "count", Shards(), "time of CI; each method runs with two and with one"),
    Replacement("*.shards", "count", Shards(), "as above"),
    Replacement(
        "sampling.samples", "count", 6, "enough for right and wrong answers to the same question"
    ),
    Replacement("rewards.prograph.continuations", "count", 1, "each state is sampled from once"),
    Replacement("sampling.max_segment_tokens", "size", 64, "a stand-in may write to the limit"),
    Replacement("sft.batch_size", "count", 4, "several optimizer steps out of few examples"),
    Replacement("dpo.batch_size", "count", 4, "as above"),
    Replacement("grpo.batch_size", "count", 4, "as above"),
    Replacement("*.per_device_batch_size", "size", 2, "as above"),
    Replacement("*engine.cpu_kv_cache_gib", "size", 1, "memory of the machine"),
    Replacement("gpus", "device", 0, "no GPU"),
    Replacement("index.gpu", "device", False, "no GPU"),
    Replacement("*.tensor_parallel_size", "device", 1, "one device: the CPU"),
    Replacement("*.processes", "device", 2, "gloo on two cores; NCCL on eight GPUs"),
    Replacement("*engine.enforce_eager", "device", True, "no C++ compiler to compile kernels with"),
)


def published(name: str) -> dict[str, Any]:
    """All settings of a published configuration, by dotted name."""
    settings = config.load(name, ("data.root=/data",)).model_dump(mode="json")
    return dict(leaves(settings))


def stand_in(name: str, places: Places) -> dict[str, Any]:
    """The settings that a stand-in run changes, by dotted name.

    Settings of blocks that the configuration does not have stay out.
    """
    changed = {}
    for key, value in published(name).items():
        for row in REPLACEMENTS:
            if fnmatchcase(key, row.pattern) and value is not None:
                new = row.value
                if isinstance(new, Stand | Shards):
                    new = new.resolve(name, places, value)
                if new != value:
                    changed[key] = new
    return changed
