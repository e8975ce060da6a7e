"""GPU memory of the parts that a stage opens: engines, encoders, vector indexes and trainings.

Input: the settings of a stage, the sizes of its data, and a GPU. Output: `Parts`, the memory of one
process. The arithmetic is in `pipeline.training.memory`, `pipeline.llm.memory` and
`pipeline.index.memory`. Shapes of models that are neither on this machine nor published are
unknown, and their parts are left out and named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pipeline.config import Config
from pipeline.config.machine_choices import processes_on
from pipeline.core.gpus import CONTEXT_BYTES, GIB, Gpu
from pipeline.core.model_shapes import PUBLISHED, ModelShape, shape_of
from pipeline.index.memory import (
    encoder_activations,
    encoder_weights,
    index_bytes,
    is_on_gpu,
    scratch_bytes,
)
from pipeline.llm.memory import engine_memory
from pipeline.training.memory import training_memory
from tasks.opened import Encoder, Engine, Opened, Training, Vectors
from tasks.planning.sizes import Sizes

_SMALLEST = PUBLISHED["Qwen/Qwen2.5-0.5B-Instruct"]  # in the place of a model of unknown shape


def gib(size: float) -> str:
    """Bytes in GiB with one decimal."""
    return f"{size / GIB:,.1f}"


@dataclass
class Parts:
    """The memory of one process of a stage, while it is collected.

    Attributes:
        device: bytes of the parts on each GPU, by name.
        remedies: settings that lower them.
        faults: engines whose share of the GPU is too small for their model.
        unknown: models of unknown shape.
    """

    device: dict[str, float] = field(default_factory=dict)
    remedies: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    @property
    def size(self) -> float:
        """Bytes on each GPU."""
        return sum(self.device.values())

    def add(self, name: str, size: float, *remedies: str) -> None:
        if size:
            self.device[name] = self.device.get(name, 0.0) + size
            self.remedies += [setting for setting in remedies if setting not in self.remedies]

    def text(self) -> str:
        """The parts with their GiB."""
        return ", ".join(f"{name} {gib(size)}" for name, size in self.device.items())


def smallest(gpus: Sequence[Gpu]) -> Gpu | None:
    """The GPU with the least memory, which has to hold every stage; None without GPUs."""
    return min(gpus, key=lambda one: one.memory or 0, default=None)


def peak(settings: Config, opened: Iterable[Opened], sizes: Sizes, gpus: Sequence[Gpu]) -> Parts:
    """The memory of one process of a stage in its largest turn, with the faults of all turns."""
    gpu, turns = smallest(gpus), dict[int, Parts]()
    for one in opened:
        parts = turns.setdefault(one.turn, Parts())
        if isinstance(one, Engine):
            _engine(parts, one, gpu)
        elif isinstance(one, Encoder):
            _encoder(parts, one)
        elif isinstance(one, Vectors):
            _vectors(parts, one, settings, sizes, gpu)
        elif isinstance(one, Training):
            _training(parts, one, settings, gpus)
    every = list(turns.values())
    found = replace(
        max(every, key=lambda parts: parts.size, default=Parts()),
        faults=[fault for parts in every for fault in parts.faults],
        unknown=[*dict.fromkeys(model for parts in every for model in parts.unknown)],
    )
    contexts = ("CUDA contexts", "context and fragmentation")
    if found.device and not any(name in contexts for name in found.device):
        found.add("CUDA context", CONTEXT_BYTES)
    return found


def _known(parts: Parts, model: str) -> ModelShape | None:
    """The shape of a model; an unknown shape is noted in ``parts``."""
    shape = shape_of(model)
    if shape is None:
        parts.unknown.append(model)
    return shape


def _engine(parts: Parts, opened: Engine, gpu: Gpu | None) -> None:
    """An engine in a separate process, and the context of the stage's process."""
    shape, engine, block = _known(parts, opened.name), opened.settings, opened.block
    if engine.kind != "vllm" or gpu is None or gpu.memory is None:
        return
    utilization = f"{block}.gpu_memory_utilization"
    share = engine.gpu_memory_utilization * gpu.memory
    parts.add(f"vLLM ({engine.gpu_memory_utilization:g} of the GPU)", share, utilization)
    memory = engine_memory(
        shape or _SMALLEST,
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
            f"{utilization} is {engine.gpu_memory_utilization:g}, which is {gib(share)} GiB of a "
            f"GPU of {gib(gpu.memory)} GiB; {opened.name} needs {gib(least)} GiB for its weights, "
            f"CUDA graphs and one sequence of {engine.max_model_len} tokens; raise it, or "
            f"{block}.tensor_parallel_size, or name a smaller model"
        )


def _encoder(parts: Parts, opened: Encoder) -> None:
    """An embedder or a reranker with one batch of its texts."""
    shape = _known(parts, opened.name) if opened.name else None
    if shape is None or not opened.gpus:
        return
    name = "reranker" if opened.reranks else "embedder"
    batch = encoder_activations(shape, opened.dtype, opened.settings.batch_size, opened.tokens)
    parts.add(name, encoder_weights(shape, opened.dtype))
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


def _vectors(
    parts: Parts, opened: Vectors, settings: Config, sizes: Sizes, gpu: Gpu | None
) -> None:
    """The copies of the indexes on a GPU."""
    indexes = searched(settings, sizes, on_gpu=True) if opened.on_gpu else {}
    if indexes:
        parts.add("FAISS indexes", sum(indexes.values()), "index.gpu (set it to false)")
        memory = None if gpu is None else gpu.memory
        parts.add("FAISS scratch", len(indexes) * scratch_bytes(memory))


def _training(parts: Parts, opened: Training, settings: Config, gpus: Sequence[Gpu]) -> None:
    """One process of a training."""
    shape, trainer, block = _known(parts, opened.name), opened.settings, opened.block
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
    batch, longest = f"{block}.per_device_batch_size", f"{block}.max_length"
    more = [] if trainer.gradient_checkpointing else [f"set {block}.gradient_checkpointing"]
    parts.add("base weights", memory.weights, f"{block}.quantization (4bit)")
    parts.add("adapter and Adam", memory.adapter)
    parts.add("layer inputs", memory.layer_inputs, batch, longest)
    parts.add("a layer's activations", memory.layer, batch, *more)
    parts.add("attention mask", memory.mask, batch, longest)
    parts.add("head", memory.head)
    parts.add("context and fragmentation", memory.overhead)
    parts.remedies.reverse()
