"""What the blocks of a configuration share: their base, bounded numbers, and the engine's settings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]


class Block(BaseModel):
    """Base of every block: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class EngineConfig(Block):
    """A language-model engine."""

    kind: Literal["vllm", "transformers", "scripted"] = "vllm"
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    max_model_len: Positive = 4096
    max_num_seqs: Positive = 256
    gpu_memory_utilization: Share = 0.9
    cpu_kv_cache_gib: Positive = 2
    tensor_parallel_size: Positive = 1
    enforce_eager: bool = False
    adapters: Literal["merged", "loaded"] = "merged"
