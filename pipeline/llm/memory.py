"""Memory of a language-model engine on one GPU.

Input: the shape of the model and the settings of the engine. Output: bytes on each of the GPUs that
share the model. With P parameters of b bytes over n GPUs, L layers, kv the width of all keys of a
token and V the vocabulary::

    weights     = P b / n
    KV of one token = 2 L kv b / n                      (keys and values)
    activations = T (2 i + 6 h) b + 3 S V 4 / n         (T tokens of a batch; for S sequences logits
                                                         and log-probabilities in float32)

vLLM takes ``gpu_memory_utilization`` of the device: the part of this share that weights,
activations and CUDA graphs leave free becomes its cache. It measures the graphs before it sizes the
cache, unless ``VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS`` is 0. Its CUDA context exists before it
starts to count, so the context is outside the share (vLLM 0.32, ``v1/worker/gpu_worker.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.config.base import EngineConfig
from pipeline.core.gpus import GIB
from pipeline.core.model_shapes import DTYPE_BYTES, ModelShape

BATCH_TOKENS = 8192  # tokens of a step of vLLM on GPUs (`pipeline.llm.vllm_engine` sets them)
GRAPH_BYTES = GIB  # of CUDA graphs, which no formula here gives


@dataclass(frozen=True)
class EngineMemory:
    """Bytes of an engine on each of its GPUs.

    ``fixed`` is what its share holds besides the cache: weights, activations and CUDA graphs.
    ``token`` are the keys and values of one token.
    """

    weights: float
    fixed: float
    token: float

    def least(self, tokens: int) -> float:
        """The smallest share of an engine whose cache holds one sequence of ``tokens``."""
        return self.fixed + tokens * self.token

    def cached_tokens(self, share: float) -> int:
        """The tokens that the cache of a share of ``share`` bytes holds; 0 when nothing is left."""
        return max(0, int((share - self.fixed) / self.token))


def engine_memory(shape: ModelShape, engine: EngineConfig) -> EngineMemory:
    """The memory of a vLLM engine whose dtype is not auto."""
    size, n = DTYPE_BYTES[engine.dtype], engine.tensor_parallel_size
    weights = shape.parameters * size / n
    batch = BATCH_TOKENS * (2 * shape.intermediate / n + 6 * shape.hidden) * size
    logits = 3 * engine.max_num_seqs * shape.vocabulary * 4 / n
    graphs = 0 if engine.enforce_eager else GRAPH_BYTES
    token = 2 * shape.layers * shape.kv_width * size / n
    return EngineMemory(weights, weights + batch + logits + graphs, token)
