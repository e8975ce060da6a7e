"""The rates and amounts of plans and schedules: one set, assumed or measured.

Input: ``docs/gpu.json``, which the GPU check writes. Output: `Rates`. What the check measured on a GPU
replaces what is assumed here; the rest stays as it is. ``docs/scale.md`` lists all of them with their
origin. Estimates of `steep plan` go by earlier runs (`tasks.planning.measured`) and not by these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError
from pipeline.core.input_files import read_json
from pipeline.core.model_shapes import PUBLISHED
from pipeline.llm.memory import engine_memory

FIGURES = Path(__file__).parents[2] / "docs" / "gpu.json"
ASSUMED, GROWTH = "assumed", "measured on a CPU core (growth benchmark)"


def _rate(value: float, meaning: str, origin: str = ASSUMED) -> Any:
    return field(default=value, metadata={"meaning": meaning, "origin": origin})


@dataclass(frozen=True)
class Rates:
    """What one GPU or core does in a second, and what a record takes; ``measured`` says where, by name."""

    memory_gib: float = _rate(78.8, "GiB of a GPU that programs can use (an A100 of 80 GB)")
    training: float = _rate(1.25e14, "operations/s of a GPU in training: 40 % of an A100's")
    reading: float = _rate(1.56e14, "operations/s while prompts are read: 50 %")
    writing: float = _rate(1.2e12, "bytes/s that are read while tokens are written: 60 %")
    embedding_float32: float = _rate(7.8e12, "operations/s of an embedder in float32: 40 %")
    embedding_16bit: float = _rate(1.25e14, "operations/s of an embedder in 16 bit: 40 %")
    reranking_float32: float = _rate(7.8e12, "operations/s of a reranker in float32: 40 %")
    reranking_16bit: float = _rate(1.25e14, "operations/s of a reranker in 16 bit: 40 %")
    corpus: float = _rate(28.3e-6, "seconds of a core for a chunk", GROWTH)
    triplet: float = _rate(
        100e-6,
        "seconds of a core to add a triplet or hyperedge to the graph",
        f"{GROWTH}, continued",
    )
    cells: float = _rate(1e11, "operations/s of a core that sorts vectors into cells", GROWTH)
    linking: float = _rate(1e-3, "seconds of a core to add a vector to an HNSW graph")
    joining: float = _rate(2e8, "bytes/s of records and vectors that are joined from shards")
    other: float = _rate(30.0, "seconds of any other stage, and of the shortest")
    report: float = _rate(120.0, "seconds of the report")
    prompt_tokens: float = _rate(250, "tokens of instruction and question")
    thinking_tokens: float = _rate(
        250, "tokens that a policy writes in a trajectory (TeaRAG fig. 7: 81)"
    )
    retrieved_tokens: float = _rate(
        1_000, "tokens of a trajectory's observations (TeaRAG fig. 7: 803)"
    )
    retrievals: float = _rate(1.5, "retrievals of a trajectory (TeaRAG table 8: 1.4 to 1.8 steps)")
    judge_tokens: float = _rate(200, "tokens that a policy writes when its steps are judged")
    case_tokens: float = _rate(400, "tokens that a judge reads for a retrieval")
    verdict_tokens: float = _rate(50, "tokens that it writes")
    reranked_pairs: float = _rate(60, "pairs that one retrieval reranks")
    rewarded_pairs: float = _rate(25, "pairs that the reward of a trajectory compares")
    pair_tokens: float = _rate(150, "tokens of a query with a text")
    chunk_tokens: float = _rate(140, "tokens of 100 words")
    entity_tokens: float = _rate(8, "tokens of a name")
    triplet_tokens: float = _rate(18, "tokens of a triplet")
    hyperedge_tokens: float = _rate(35, "tokens of an n-ary fact")
    extracted_tokens: float = _rate(200, "tokens that a model writes about a chunk")
    example_tokens: float = _rate(
        1_000, "tokens of a supervised example, or of a trained trajectory"
    )
    helper_tokens: float = _rate(1_500, "tokens that the model of sft_data reads for an example")
    helper_written: float = _rate(150, "tokens that it writes")
    pairs_first: float = _rate(
        0.876, "pairs of a question in round 1 (TeaRAG table 8: 8,760 of 10,000)"
    )
    pairs_later: float = _rate(0.285, "in later rounds (TeaRAG table 9: 1,688 steps in all)")
    continued_states: float = _rate(2.0, "states of a trajectory that ProGraph-R1 continues from")
    measured: Mapping[str, str] = field(default_factory=dict)

    def rows(self) -> Iterator[tuple[str, float, str]]:
        """Meaning, value and origin of each."""
        for each in fields(self):
            if each.name == "measured":
                continue
            origin = self.measured.get(each.name, each.metadata["origin"])
            yield each.metadata["meaning"], float(getattr(self, each.name)), origin


# The models of the GPU check, and the part that measures each rate in training, best first.
_LLAMA, _QWEN = "meta-llama/Meta-Llama-3-8B-Instruct", "Qwen/Qwen2.5-14B-Instruct"
_TRAINING = {"sft-8b": _LLAMA, "sft-14b": _QWEN, "grpo-8b": _LLAMA, "grpo-14b": _QWEN}
_EMBEDDER, _RERANKER = "intfloat/e5-base-v2", "BAAI/bge-reranker-v2-m3"
_PASSAGE, _PAIR = 100, 112  # tokens of the check's texts: a word is a token
_REQUESTS, _PROMPT, _WRITTEN = 256, 256, 128  # of the part vllm-lora


@lru_cache(maxsize=4)
def rates(path: Path = FIGURES) -> Rates:
    """The assumed rates, with those that the GPU check measured in their place.

    Figures of a check on a CPU count for nothing. Raises InputError when the file is not what the check writes.
    """
    if not path.is_file():
        return Rates()
    machine, parts = _read(path)
    if "device" not in machine:
        return Rates()
    values = dict(_values(machine, parts))
    origin = f"measured on {machine['device']}"
    # How long tokens take to write is measured together with reading the prompts.
    speed = _figure(parts, "vllm-lora", "tokens")
    if speed and (written := _writing(speed, Rates().reading)):
        values["writing"] = written
    return replace(Rates(), **values, measured=dict.fromkeys(values, origin))


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The machine and the parts of the check's file, with the types that the rates need."""
    found = read_json(path)
    machine, parts = found.get("machine", {}), found.get("parts", {})
    wrong = None
    if not isinstance(machine, dict) or not isinstance(machine.get("memory_gib", 0), int | float):
        wrong = "machine is not an object with a number memory_gib"
    elif not isinstance(parts, dict):
        wrong = "parts is not an object"
    else:
        for name, part in parts.items():
            rows = part.get("figures", []) if isinstance(part, dict) else None
            if not isinstance(rows, list) or not all(map(_is_figure, rows)):
                wrong = f"part {name!r} is not an object with figures, which have name and value"
                break
    if wrong is not None:
        raise InputError.at(
            path, None, f"{wrong}; move the file away, and run make gpu-check to write it again"
        )
    return machine, parts


def _is_figure(row: Any) -> bool:
    return isinstance(row, dict) and row.keys() >= {"name", "value"}


def _values(machine: Mapping[str, Any], parts: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    if memory := machine.get("memory_gib"):
        yield "memory_gib", float(memory)
    for part, model in _TRAINING.items():
        if speed := _figure(parts, part, "tokens"):
            yield "training", 6 * PUBLISHED[model].parameters * speed
            break
    passage = 2 * PUBLISHED[_EMBEDDER].linear_parameters * _PASSAGE
    for name, figure in (("embedding_float32", "float32"), ("embedding_16bit", "bfloat16")):
        if speed := _figure(parts, "embedder", figure):
            yield name, passage * speed
    pair = 2 * PUBLISHED[_RERANKER].linear_parameters * _PAIR
    for name, part in (
        ("reranking_float32", "reranker-cross"),
        ("reranking_16bit", "reranker-flag"),
    ):
        if speed := _figure(parts, part, "pairs"):
            yield name, pair * speed


def _figure(parts: Mapping[str, Any], part: str, name: str) -> float | None:
    """A figure of a part that was done; None where there is none."""
    result = parts.get(part, {})
    if result.get("state") != "done":
        return None
    rows = {row["name"]: row["value"] for row in result.get("figures", ())}
    value = rows.get(name)
    return float(value) if isinstance(value, int | float) and value > 0 else None


def _writing(speed: float, reading: float) -> float | None:
    """Bytes/s while tokens are written, from the tokens/s of the check's requests.

    None when reading their prompts would have taken all of the time.
    """
    shape = PUBLISHED[_LLAMA]
    memory = engine_memory(shape, "bfloat16")
    seconds = _REQUESTS * _WRITTEN / speed
    seconds -= 2 * shape.parameters * _REQUESTS * _PROMPT / reading
    cache = _REQUESTS * (_PROMPT + _WRITTEN / 2) * memory.token
    return _WRITTEN * (memory.weights + cache) / seconds if seconds > 0 else None
