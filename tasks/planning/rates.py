"""The rates and amounts of plans: one set, assumed or measured.

Input: ``docs/gpu.json``, which the GPU check writes. Output: `Rates`. The figures that the check
measured on a GPU replace the assumed rates; all other values stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError
from pipeline.core.input_files import read_json
from pipeline.core.model_shapes import PUBLISHED
from pipeline.llm.memory import engine_memory

FIGURES = Path(__file__).parents[2] / "docs" / "gpu.json"


@dataclass(frozen=True)
class Rates:
    """The rates of one GPU, and the amounts of work for a record; all of them assumed."""

    # GiB of a GPU that programs can use (an A100 of 80 GB).
    memory_gib: float = 78.8
    # Operations/s in training (40 % of an A100's) and while prompts are read (50 %).
    training: float = 1.25e14
    reading: float = 1.56e14
    # Bytes/s that are read while tokens are written (60 %).
    writing: float = 1.2e12
    # Operations/s of encoders (40 %).
    embedding_float32: float = 7.8e12
    embedding_16bit: float = 1.25e14
    reranking_float32: float = 7.8e12
    reranking_16bit: float = 1.25e14
    # A trajectory: tokens of instruction and question, tokens that the policy writes (TeaRAG fig.
    # 7: 81), tokens of the observations (fig. 7: 803), and retrievals (table 8: 1.4 to 1.8 steps).
    prompt_tokens: float = 250
    thinking_tokens: float = 250
    retrieved_tokens: float = 1_000
    retrievals: float = 1.5
    # Tokens that a policy writes when its steps are judged; that a judge reads and writes for a
    # retrieval.
    judge_tokens: float = 200
    case_tokens: float = 400
    verdict_tokens: float = 50
    # Pairs of a query and a text: of one retrieval, of a trajectory's reward, and their tokens.
    reranked_pairs: float = 60
    rewarded_pairs: float = 25
    pair_tokens: float = 150
    # Tokens of 100 words, a name, a triplet and an n-ary fact, and of a model's answer about a
    # chunk.
    chunk_tokens: float = 140
    entity_tokens: float = 8
    triplet_tokens: float = 18
    hyperedge_tokens: float = 35
    extracted_tokens: float = 200
    # Tokens of a supervised example or a trained trajectory; read and written for an example of
    # `sft_data`.
    example_tokens: float = 1_000
    helper_tokens: float = 1_500
    helper_written: float = 150
    # Pairs of a question in round 1 (TeaRAG table 8: 8,760 of 10,000) and later (table 9: 1,688
    # steps).
    pairs_first: float = 0.876
    pairs_later: float = 0.285
    # States of a trajectory that ProGraph-R1 continues from.
    continued_states: float = 2.0


# The models of the GPU check, and the part that measures each rate in training, best first.
_LLAMA, _QWEN = "meta-llama/Meta-Llama-3-8B-Instruct", "Qwen/Qwen2.5-14B-Instruct"
_TRAINING = {"sft-8b": _LLAMA, "sft-14b": _QWEN, "grpo-8b": _LLAMA, "grpo-14b": _QWEN}
_EMBEDDER, _RERANKER = "intfloat/e5-base-v2", "BAAI/bge-reranker-v2-m3"
_PASSAGE, _PAIR = 100, 112  # tokens of the check's texts: a word is a token
_REQUESTS, _PROMPT, _WRITTEN = 256, 256, 128  # of the part vllm-lora


@lru_cache(maxsize=4)
def rates(path: Path = FIGURES) -> Rates:
    """The assumed rates, replaced by the GPU check's measurements if it has any.

    Figures of a check on a CPU are ignored. Raises InputError when the file has another form than
    the check writes.
    """
    if not path.is_file():
        return Rates()
    machine, parts = _read(path)
    if "device" not in machine:
        return Rates()
    values = dict(_values(machine, parts))
    # The time for writing tokens is measured together with reading the prompts.
    speed = _figure(parts, "vllm-lora", "tokens")
    if speed and (written := _writing(speed, Rates().reading)):
        values["writing"] = written
    return Rates(**values)


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
    """A figure of a part that was run, or None."""
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
