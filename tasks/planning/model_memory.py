"""Memory of the models and indexes that stages open: engines, embedders, rerankers, FAISS.

Input: a configuration, the sizes of its data, and a GPU. Output: `Parts` of a stage's memory, to which
`ModelMemory` adds what one process holds. `tasks.planning.stage_memory` asks for the parts of every stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pipeline.config import Config
from pipeline.config.base import EngineConfig
from pipeline.config.knowledge import Reranker
from pipeline.core.gpus import CONTEXT_BYTES, GIB, Gpu
from pipeline.core.model_shapes import ModelShape, shape_of
from pipeline.index.memory import (
    encoder_activations,
    encoder_weights,
    index_bytes,
    is_on_gpu,
    scratch_bytes,
)
from pipeline.llm.memory import DTYPE_BYTES, engine_memory, generate_bytes
from tasks.planning.sizes import Sizes

_QUERY_TOKENS = 64  # of a query or an entity; passages are cut at ``max_length``


@dataclass(frozen=True)
class Part:
    """One part of a stage's memory, in bytes."""

    name: str
    size: float


def gib(size: float) -> str:
    """Bytes in GiB with one decimal."""
    return f"{size / GIB:,.1f}"


@dataclass
class Parts:
    """The parts of one stage, while they are collected."""

    device: list[Part] = field(default_factory=list)
    remedies: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ram: float = 0.0  # of an engine on CPUs

    def add(self, name: str, size: float, *remedies: str) -> None:
        if size:
            self.device.append(Part(name, size))
            self.remedies += [setting for setting in remedies if setting not in self.remedies]

    def larger(self, other: Parts) -> Parts:
        """These parts or ``other``, whichever take more of the GPU, with the faults of both.

        A stage that opens two models one after the other holds the larger one at its peak.
        """
        sizes = [sum(part.size for part in parts.device) for parts in (self, other)]
        larger = other if sizes[1] > sizes[0] else self
        return replace(
            larger,
            faults=self.faults + other.faults,
            unknown=self.unknown + other.unknown,
            ram=max(self.ram, other.ram),
        )


class ModelMemory:
    """The models and indexes of one configuration.

    ``dimension`` is that of the embedder's vectors.
    """

    def __init__(self, settings: Config, sizes: Sizes, gpu: Gpu | None) -> None:
        self.settings, self.sizes, self.gpu = settings, sizes, gpu
        self._shapes: dict[str, ModelShape | None] = {}
        embedder = self.shape(settings.index.embedder.model)
        self.dimension = 768 if embedder is None else embedder.hidden

    def shape(self, name: str) -> ModelShape | None:
        """The shape of a model; None where it is neither on this machine nor published."""
        if name not in self._shapes:
            self._shapes[name] = shape_of(name)
        return self._shapes[name]

    def index_sizes(self, *, on_gpu: bool = False) -> Mapping[str, float]:
        """Bytes of the vector indexes that retrieval opens; ``on_gpu``: those that a GPU can hold."""
        settings, sizes = self.settings, self.sizes
        kind, variant = settings.index.faiss, settings.retrieval.variant
        if settings.retrieval.over_hypergraph:
            counts = {"entities": sizes.entities, "hyperedges": sizes.hyperedges}
        elif variant == "none":
            counts = {}
        else:
            counts = {
                **({"chunks": sizes.chunks} if variant != "graph" else {}),
                **({"entities": sizes.entities} if variant != "semantic" else {}),
            }
        return {
            table: index_bytes(int(count), self.dimension, kind)
            for table, count in counts.items()
            if count and (not on_gpu or is_on_gpu(int(count), kind))
        }

    def known(self, model: str, parts: Parts) -> ModelShape | None:
        """The shape of a model; one that is not known is noted in ``parts``."""
        shape = self.shape(model)
        if shape is None:
            parts.unknown.append(model)
        return shape

    def chat(self, parts: Parts, block: str, model: str | None, engine: EngineConfig) -> None:
        """The engine of a block such as ``graph``, unless the block has an endpoint."""
        if model is not None:
            self.engine(parts, f"{block}.engine", model, engine)

    def engine(self, parts: Parts, block: str, model: str, engine: EngineConfig) -> None:
        """The engine of a model, in its own process, and the context of the stage's process."""
        shape = self.known(model, parts)
        if engine.kind == "scripted":
            return
        if self.gpu is None:
            weights = 0.0 if shape is None else shape.parameters * DTYPE_BYTES[engine.dtype]
            cache = engine.cpu_kv_cache_gib * GIB if engine.kind == "vllm" else 0
            parts.ram = max(parts.ram, weights + cache)
            return
        if self.gpu.memory is None:
            return
        if engine.kind == "transformers":
            if shape is not None:
                size = generate_bytes(
                    shape, engine.dtype, engine.max_num_seqs, engine.max_model_len
                )
                parts.add("engine", size, f"{block}.max_num_seqs")
            return
        utilization = f"{block}.gpu_memory_utilization"
        share = engine.gpu_memory_utilization * self.gpu.memory
        parts.add(f"vLLM ({engine.gpu_memory_utilization:g} of the GPU)", share, utilization)
        memory = engine_memory(
            shape or self.shape("Qwen/Qwen2.5-0.5B-Instruct") or _unreachable(),
            engine.dtype,
            tensor_parallel_size=engine.tensor_parallel_size,
            max_num_seqs=engine.max_num_seqs,
            enforce_eager=engine.enforce_eager,
        )
        parts.add("CUDA contexts", memory.outside + CONTEXT_BYTES)
        if shape is None:
            return
        least = memory.least(engine.max_model_len)
        if least > share:
            parts.faults.append(
                f"{block}.gpu_memory_utilization is {engine.gpu_memory_utilization:g}, which is "
                f"{gib(share)} GiB of a GPU of {gib(self.gpu.memory)} GiB; {model} needs {gib(least)} GiB "
                f"for its weights, CUDA graphs and one sequence of {engine.max_model_len} tokens; raise it, or "
                f"{block}.tensor_parallel_size, or name a smaller model"
            )
        else:
            tokens = memory.cached_tokens(share)
            parts.notes.append(f"cache of {tokens:,} tokens ({model.rpartition('/')[2]})")

    def retrieval(self, parts: Parts) -> None:
        """What retrieval in the stage's process holds on the GPU."""
        settings = self.settings
        retrieval = settings.retrieval
        if retrieval.service is not None or retrieval.variant == "none":
            return
        if settings.index.gpu and (indexes := self.index_sizes(on_gpu=True)):
            parts.add("FAISS indexes", sum(indexes.values()), "index.gpu (set it to false)")
            memory = None if self.gpu is None else self.gpu.memory
            parts.add("FAISS scratch", len(indexes) * scratch_bytes(memory))
        passages = retrieval.reranker.kind == "biencoder" and not retrieval.over_hypergraph
        self.embedder(parts, settings.index.embedder.max_length if passages else _QUERY_TOKENS)
        if not passages and not retrieval.over_hypergraph:
            self.reranker(parts, retrieval.reranker)

    def embedder(self, parts: Parts, length: int) -> None:
        """The embedder with a batch of texts of ``length`` tokens."""
        block = self.settings.index.embedder
        shape = self.known(block.model, parts)
        if shape is None or block.device == "cpu" or block.backend != "torch":
            return
        batch = encoder_activations(shape, block.dtype, block.batch_size, length)
        parts.add("embedder", encoder_weights(shape, block.dtype))
        parts.add("embedder batch", batch, "index.embedder.batch_size")

    def reranker(self, parts: Parts, block: Reranker) -> None:
        """The reranker with a batch of pairs; the embedder where it is a bi-encoder."""
        if block.kind == "biencoder":
            self.embedder(parts, self.settings.index.embedder.max_length)
            return
        shape = self.known(block.model, parts) if block.model is not None else None
        if shape is None or block.device == "cpu":
            return
        dtype = "float16" if block.kind == "flag" else "float32"
        batch = encoder_activations(shape, dtype, block.batch_size, block.max_length)
        parts.add("reranker", encoder_weights(shape, dtype))
        parts.add("reranker batch", batch, "retrieval.reranker.batch_size")


def _unreachable() -> ModelShape:
    raise AssertionError("the table of published shapes has this model")
