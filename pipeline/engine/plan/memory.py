"""GPU memory of the parts that a stage opens: engines, encoders, vector indexes and trainings.

Input: the settings of a stage, the sizes of its data, and a GPU. Output: `Parts`, the memory of one
process. The arithmetic is in `pipeline.training.memory`, `pipeline.llm.memory` and
`pipeline.knowledge.index.memory`. Shapes of models that are neither on this machine nor published
are unknown, and their parts are left out and named.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.config import Config
from pipeline.config.machine_choices import processes_on
from pipeline.core.gpus import CONTEXT_BYTES, GIB, Gpu
from pipeline.core.model_shapes import DTYPE_BYTES, shape_of
from pipeline.engine.opened import Encoder, Engine, Opened, Training, Vectors
from pipeline.engine.plan.sizes import Sizes
from pipeline.knowledge.index.memory import (
    SCRATCH_BYTES,
    encoder_activations,
    index_bytes,
    is_on_gpu,
)
from pipeline.llm.memory import engine_memory
from pipeline.training.memory import training_memory


def gib(size: float) -> str:
    """Bytes in GiB with one decimal."""
    return f"{size / GIB:,.1f}"


@dataclass
class Parts:
    """The memory of one process of a stage, while it is collected.

    ``device`` has the bytes of the parts on each GPU, by name, and ``remedies`` the settings that
    lower them.
    """

    device: dict[str, float] = field(default_factory=dict)
    remedies: list[str] = field(default_factory=list)

    @property
    def size(self) -> float:
        """Bytes on each GPU."""
        return sum(self.device.values())

    def add(self, name: str, size: float, *remedies: str) -> None:
        if size:
            self.device[name] = self.device.get(name, 0.0) + size
            self.remedies += remedies

    def text(self) -> str:
        """The parts with their GiB."""
        return ", ".join(f"{name} {gib(size)}" for name, size in self.device.items())


def smallest(gpus: Sequence[Gpu]) -> Gpu | None:
    """The GPU with the least memory, which has to hold every stage; None without GPUs."""
    return min(gpus, key=lambda one: one.memory or 0, default=None)


def peak(settings: Config, opened: Iterable[Opened], sizes: Sizes, gpus: Sequence[Gpu]) -> Parts:
    """The memory of one process of a stage in its largest turn."""
    gpu, turns = smallest(gpus), defaultdict[int, Parts](Parts)
    for one in opened:
        parts = turns[one.turn]
        if isinstance(one, Engine):
            _engine(parts, one, gpu)
        elif isinstance(one, Encoder):
            _encoder(parts, one)
        elif isinstance(one, Vectors):
            _vectors(parts, one, settings, sizes)
        elif isinstance(one, Training):
            _training(parts, one, settings, gpus)
    largest = max(turns.values(), key=lambda parts: parts.size, default=Parts())
    largest.add("CUDA context", CONTEXT_BYTES * bool(largest.device))
    return largest


def _engine(parts: Parts, opened: Engine, gpu: Gpu | None) -> None:
    """An engine in a separate process, whose CUDA context is not in its share of the GPU."""
    share = opened.settings.gpu_memory_utilization
    if opened.settings.kind == "vllm" and gpu is not None and gpu.memory is not None:
        setting = f"{opened.block}.gpu_memory_utilization"
        parts.add(f"vLLM ({share:g} of the GPU)", share * gpu.memory, setting)
        parts.add("CUDA context", CONTEXT_BYTES)


def share_faults(opened: Iterable[Opened], device: int) -> Iterator[str]:
    """A sentence for each engine whose share of ``device`` bytes is too small for its model."""
    for one in opened:
        if not isinstance(one, Engine) or one.settings.kind != "vllm":
            continue
        engine, shape = one.settings, shape_of(one.name)
        share = engine.gpu_memory_utilization * device
        if shape and (least := engine_memory(shape, engine).least(engine.max_model_len)) > share:
            yield (
                f"{one.block}.gpu_memory_utilization is {engine.gpu_memory_utilization:g}, which "
                f"is {gib(share)} GiB of a GPU of {gib(device)} GiB; {one.name} needs {gib(least)} "
                f"GiB for its weights, CUDA graphs and one sequence of {engine.max_model_len} "
                f"tokens; raise it, or {one.block}.tensor_parallel_size, or name a smaller model"
            )


def _encoder(parts: Parts, opened: Encoder) -> None:
    """An embedder or a reranker with one batch of its texts."""
    shape = shape_of(opened.name) if opened.name and opened.needs.gpus else None
    if shape is None:
        return
    name = "reranker" if opened.reranks else "embedder"
    batch = encoder_activations(shape, opened.dtype, opened.settings.batch_size, opened.tokens)
    parts.add(name, shape.parameters * DTYPE_BYTES[opened.dtype])
    parts.add(f"{name} batch", batch, f"{opened.block}.batch_size")


def dimension(settings: Config) -> int:
    """The dimension of the embedder's vectors; 768 for a model of unknown shape."""
    shape = shape_of(settings.index.embedder.model)
    return 768 if shape is None else shape.hidden


def searched(settings: Config, sizes: Sizes, *, on_gpu: bool = False) -> Mapping[str, float]:
    """Bytes of the vector indexes that retrieval opens; ``on_gpu``: only indexes for GPUs."""
    kind, variant = settings.index.faiss, settings.retrieval.variant
    counts: dict[str, float] = {}
    if settings.retrieval.over_hypergraph:
        counts = {"entities": sizes.entities, "hyperedges": sizes.hyperedges}
    elif variant != "none":
        graph = bool(sizes.triplets) and not settings.retrieval.over_passages
        counts = {
            "chunks": sizes.chunks * (variant != "graph"),
            "entities": sizes.entities * graph,
        }
    return {
        table: index_bytes(int(count), dimension(settings), kind)
        for table, count in counts.items()
        if count and (not on_gpu or is_on_gpu(int(count), kind))
    }


def _vectors(parts: Parts, opened: Vectors, settings: Config, sizes: Sizes) -> None:
    """The copies of the indexes on a GPU."""
    indexes = searched(settings, sizes, on_gpu=True) if opened.needs.gpus else {}
    parts.add("FAISS indexes", sum(indexes.values()), "index.gpu (set it to false)")
    parts.add("FAISS scratch", len(indexes) * SCRATCH_BYTES)


def _training(parts: Parts, opened: Training, settings: Config, gpus: Sequence[Gpu]) -> None:
    """One process of a training."""
    shape, trainer, block = shape_of(opened.name), opened.settings, opened.block
    if shape is None:
        return
    length = trainer.max_length
    if block != "sft":  # no trajectory is longer than the engine's limit
        length = min(length, settings.engine.max_model_len)
    memory = training_memory(
        shape,
        rows=trainer.per_device_batch_size * opened.rows,
        length=length,
        rank=settings.lora.r,
        targets=settings.lora.targets,
        dropout=settings.lora.dropout > 0,
        dtype=trainer.dtype,
        quantization=trainer.quantization,
        checkpointing=trainer.gradient_checkpointing,
        processes=processes_on(trainer, settings.gpus or len(gpus)),
    )
    parts.add("base weights", memory.weights)
    parts.add("adapter and Adam", memory.adapter)
    parts.add("layer inputs", memory.layer_inputs)
    parts.add("a layer's activations", memory.layer)
    parts.add("attention mask", memory.mask)
    parts.add("head", memory.head)
    parts.add("fragmentation", memory.overhead - CONTEXT_BYTES)
    parts.remedies += [f"{block}.max_length", f"{block}.per_device_batch_size"]
    if not trainer.gradient_checkpointing:
        parts.remedies.append(f"set {block}.gradient_checkpointing")
    parts.remedies.append(f"{block}.quantization (4bit)")
