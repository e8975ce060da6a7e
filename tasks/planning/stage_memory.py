"""What one stage holds on a GPU, in RAM and on disk at its peak.

Input: a configuration, the sizes of its data, and a GPU. Output: a `StageMemory` for each stage. The arithmetic
is in `pipeline.training.memory`, `pipeline.llm.memory` and `pipeline.index.memory`; this module applies it to
the settings that each stage reads. Shapes of models that are neither on this machine nor published are
unknown, and their parts are left out and named.

Bytes of records are those of `docs/scale.md`. RAM of a stage is that of all its processes on one host;
files that are mapped into memory are shared and counted once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pipeline.config import Config
from pipeline.config.base import EngineConfig
from pipeline.config.knowledge import Graph, Hypergraph, Reranker
from pipeline.config.policy import Trainer
from pipeline.core.gpus import CONTEXT_BYTES, GIB, Gpu
from pipeline.core.model_shapes import ModelShape, shape_of
from pipeline.index.memory import (
    SCRATCH_BYTES,
    encoder_activations,
    encoder_weights,
    index_bytes,
    is_on_gpu,
)
from pipeline.llm.memory import DTYPE_BYTES, engine_memory, generate_bytes
from pipeline.training.memory import training_memory, weight_bytes
from tasks.planning.sizes import Sizes

# Bytes of a record on disk, and in the pages of mapped files (docs/scale.md).
CHUNK_BYTES, TRIPLET_BYTES, ENTITY_BYTES, HYPEREDGE_BYTES = 650, 102.6, 26.8, 160
ANSWER_BYTES = 3600  # of a cached answer of a model, prompt included
TRAJECTORY_BYTES = 12_000  # of 1,100 tokens: ids, log-probabilities, text and prompt
# RAM of a process: libraries and the state of CUDA; with a reader of mapped files only.
GPU_PROCESS_BYTES, CPU_PROCESS_BYTES = 4 * GIB, GIB
_QUERY_TOKENS = 64  # of a query or an entity; passages are cut at ``max_length``
_GRAPH_BYTES_PER_CHUNK = 34e9 / 21_015_324  # RAM while the graph is built (docs/scale.md)
_TRAINED_VECTORS = 1_000_000  # at most, that an IVF-PQ index is trained on
_ROLL_OUTS = ("sample", "evaluate-policy")


@dataclass(frozen=True)
class Part:
    """One part of a stage's memory, in bytes."""

    name: str
    size: float


@dataclass(frozen=True)
class StageMemory:
    """Memory of one stage.

    ``device`` are the parts on each GPU, ``ram`` and ``disk`` bytes on the host. ``remedies`` are the
    settings that lower the parts on the GPU. ``faults`` are engines whose share is too small for their
    model, and ``unknown`` the models whose shape is not known.
    """

    stage: str
    gpus: int = 0
    device: tuple[Part, ...] = ()
    ram: float = 0.0
    disk: float = 0.0
    remedies: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def device_bytes(self) -> float:
        """The peak on each GPU."""
        return sum(part.size for part in self.device)


def gib(size: float) -> str:
    """Bytes in GiB with one decimal."""
    return f"{size / GIB:,.1f}"


@dataclass
class _Parts:
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


class Planner:
    """Memory of the stages of one configuration."""

    def __init__(self, settings: Config, sizes: Sizes, gpu: Gpu | None) -> None:
        self.settings, self.sizes, self.gpu = settings, sizes, gpu
        self._shapes: dict[str, ModelShape | None] = {}
        embedder = self.shape(settings.index.embedder.model)
        self.dimension = 768 if embedder is None else embedder.hidden

    def shape(self, name: str) -> ModelShape | None:
        if name not in self._shapes:
            self._shapes[name] = shape_of(name)
        return self._shapes[name]

    def stage(self, name: str) -> StageMemory | None:
        """The memory of a stage; None for stages that hold little."""
        rules = {
            "corpus": self._corpus,
            "graph": self._graph,
            "hypergraph": self._hypergraph,
            "index": self._index,
            "hyper-index": self._index,
            "sft-data": self._sft_data,
            "sft": self._sft,
            "sample": self._roll_out,
            "evaluate-policy": self._roll_out,
            "judge": self._judge,
            "judge-policy": self._judge,
            "score": self._score,
            "train": self._train,
        }
        rule = rules.get(name)
        return None if rule is None else rule(name)

    # Stages of the knowledge

    def _corpus(self, name: str) -> StageMemory:
        chunks = self.sizes.chunks
        return StageMemory(name, ram=CPU_PROCESS_BYTES + 116 * chunks, disk=CHUNK_BYTES * chunks)

    def _extraction(self, name: str, block: Graph | Hypergraph) -> tuple[_Parts, int]:
        """Parts and GPUs of each process that extracts with the model of a block."""
        parts = _Parts()
        if block.source != "llm" or block.model is None:
            return parts, 0
        self._chat(parts, name, block.model, block.engine)
        return parts, block.engine.tensor_parallel_size

    def _graph(self, name: str) -> StageMemory:
        block, sizes = self.settings.graph, self.sizes
        parts, gpus = self._extraction(name, block)
        disk = TRIPLET_BYTES * sizes.triplets + ENTITY_BYTES * sizes.entities
        disk += ANSWER_BYTES * sizes.chunks * (block.source == "llm")
        ram = _GRAPH_BYTES_PER_CHUNK * sizes.chunks * (block.source != "none")
        return self._made(name, parts, gpus, ram, disk, shards=block.shards)

    def _hypergraph(self, name: str) -> StageMemory:
        block, sizes = self.settings.hypergraph, self.sizes
        parts, gpus = self._extraction(name, block)
        disk = HYPEREDGE_BYTES * sizes.hyperedges + ENTITY_BYTES * sizes.entities
        disk += ANSWER_BYTES * sizes.chunks * (block.source == "llm")
        ram = _GRAPH_BYTES_PER_CHUNK * sizes.chunks
        return self._made(name, parts, gpus, ram, disk, shards=block.shards)

    def _index(self, name: str) -> StageMemory:
        parts = _Parts()
        embedder = self.settings.index.embedder
        self._embedder(parts, embedder.max_length)
        parts.add("CUDA context", CONTEXT_BYTES)
        texts = sum(self._embedded(name).values())
        vectors = 4.0 * self.dimension * texts
        searched = sum(self._index_sizes().values())
        trained = 4.0 * self.dimension * min(texts, _TRAINED_VECTORS)
        # Checkpoints, or the outputs of shards, hold every vector a second time.
        shards = self.settings.index.shards
        disk = 2 * vectors + searched
        return self._made(name, parts, 1, searched + trained, disk, shards=shards)

    def _embedded(self, stage: str) -> Mapping[str, float]:
        """Vectors of the tables that ``index`` or ``hyper-index`` embeds."""
        sizes = self.sizes
        if stage == "hyper-index":
            return {"entities": sizes.entities, "hyperedges": sizes.hyperedges}
        return {"chunks": sizes.chunks, "entities": sizes.entities, "triplets": sizes.triplets}

    def _index_sizes(self, *, on_gpu: bool = False) -> Mapping[str, float]:
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

    # Stages of the policy

    def _sft_data(self, name: str) -> StageMemory:
        settings, parts = self.settings, _Parts()
        block, graph = settings.sft_data, settings.graph
        gpus = 0
        if block.model is not None and "llm" in (block.triplets, block.selector, block.rewriter):
            self._chat(parts, "sft_data", block.model, block.engine)
            gpus = block.engine.tensor_parallel_size
        elif graph.source == "llm" and graph.model is not None and block.triplets == "graph":
            self._chat(parts, "graph", graph.model, graph.engine)
            gpus = graph.engine.tensor_parallel_size
        if block.memory is not None:  # the policy answers after the other model has ended
            policy = _Parts()
            self._engine(policy, "engine", settings.model.base, settings.engine)
            if sum(p.size for p in policy.device) > sum(p.size for p in parts.device):
                policy.faults += parts.faults
                parts = policy
            gpus = max(gpus, settings.engine.tensor_parallel_size)
        examples = sum(block.sizes.values()) + sum(block.test_sizes.values())
        disk = 10 * ANSWER_BYTES * examples
        return self._made(name, parts, gpus, 0.0, disk, shards=block.shards)

    def _roll_out(self, name: str) -> StageMemory:
        settings, parts = self.settings, _Parts()
        self._engine(parts, "engine", settings.model.base, settings.engine)
        self._retrieval(parts)
        block = settings.sampling if name == "sample" else settings.evaluation
        at_once = self._at_once(block.shards)
        size = settings.engine.tensor_parallel_size
        if name == "sample":
            rows = self.sizes.questions["sampling"] * settings.sampling.samples * settings.rounds
        else:
            rows = self.sizes.questions[settings.evaluation.split] * (settings.rounds + 1)
        plan = self._made(name, parts, size * at_once, 0.0, TRAJECTORY_BYTES * rows)
        process = self._process_bytes + parts.ram
        own = 0.0 if settings.retrieval.service else self._private_ram()
        mapped = 0.0 if settings.retrieval.service else self._mapped()
        return replace(plan, ram=at_once * (process + own) + mapped)

    def _score(self, name: str) -> StageMemory:
        settings, parts = self.settings, _Parts()
        at_once = self._at_once(settings.sampling.shards)
        ram = 0.0
        gpus = 0
        if settings.method.scoring_samples:
            self._engine(parts, "engine", settings.model.base, settings.engine)
            self._retrieval(parts)
            gpus = settings.engine.tensor_parallel_size
            ram = at_once * self._private_ram() + self._mapped()
        elif settings.method.similarity_rewards:
            self._reranker(parts, settings.rewards.reranker or settings.retrieval.reranker)
            parts.add("CUDA context", CONTEXT_BYTES)
            gpus = 1
        rows = self.sizes.questions["sampling"] * settings.sampling.samples * settings.rounds
        plan = self._made(name, parts, gpus * at_once, 0.0, TRAJECTORY_BYTES * rows)
        process = self._process_bytes if gpus else CPU_PROCESS_BYTES
        return replace(plan, ram=at_once * (process + parts.ram) + ram)

    def _judge(self, name: str) -> StageMemory:
        settings, parts = self.settings, _Parts()
        self._engine(parts, "engine", settings.model.base, settings.engine)
        judges = settings.judges if name == "judge" else settings.evaluation_judges
        gpus = settings.engine.tensor_parallel_size
        for kind in ("over", "under") if judges is not None else ():
            judge = getattr(judges, kind)
            if judge.model is not None:  # opened after the policy has ended
                own = _Parts()
                self._chat(own, f"judges.{kind}", judge.model, judge.engine)
                gpus = max(gpus, judge.engine.tensor_parallel_size)
                if sum(p.size for p in own.device) > sum(p.size for p in parts.device):
                    own.faults += parts.faults
                    parts = own
        rows = self.sizes.questions["sampling"] * settings.sampling.samples * settings.rounds
        shards = 1 if judges is None else judges.shards
        return self._made(name, parts, gpus, 0.0, ANSWER_BYTES * rows, shards=shards)

    def _sft(self, name: str) -> StageMemory:
        return self._training(name, "sft", self.settings.sft, rows=1)

    def _train(self, name: str) -> StageMemory:
        objective = self.settings.objective
        return self._training(
            name, objective, self.settings.trainer, 2 if objective == "dpo" else 1
        )

    def _training(self, name: str, block: str, trainer: Trainer, rows: int) -> StageMemory:
        settings, parts = self.settings, _Parts()
        shape = self._known(settings.model.base, parts)
        if shape is None:
            return self._made(name, parts, trainer.processes, 0.0, 0.0)
        length = trainer.max_length
        if name == "train":  # no trajectory is longer than the engine's limit
            length = min(length, settings.engine.max_model_len)
        memory = training_memory(
            shape,
            tokens=trainer.per_device_batch_size * rows * length,
            rank=settings.lora.r,
            targets=settings.lora.targets,
            dropout=settings.lora.dropout > 0,
            dtype=trainer.dtype,
            quantization=trainer.quantization,
            checkpointing=trainer.gradient_checkpointing,
            processes=trainer.processes,
        )
        batch = f"{block}.per_device_batch_size"
        more = [] if trainer.gradient_checkpointing else [f"set {block}.gradient_checkpointing"]
        parts.add("base weights", memory.weights, f"{block}.quantization (4bit)")
        parts.add("adapter and Adam", memory.adapter)
        parts.add("layer inputs", memory.layer_inputs, batch, f"{block}.max_length")
        parts.add("a layer's activations", memory.layer, batch, *more)
        parts.add("head", memory.head)
        parts.add("context and fragmentation", memory.overhead)
        parts.remedies.reverse()
        # Every process reads the weights into RAM before they are moved to its GPU.
        loaded = weight_bytes(shape, trainer.dtype) if trainer.quantization == "none" else GIB
        plan = self._made(name, parts, trainer.processes, 0.0, 0.0)
        return replace(plan, ram=trainer.processes * (self._process_bytes + loaded))

    # Parts of several stages

    def _at_once(self, shards: int | None) -> int:
        """Shards of a stage that run at the same time."""
        workers = self.settings.workers or self.settings.gpus + 1
        return max(1, min(workers, shards or self.settings.shards))

    @property
    def _process_bytes(self) -> float:
        return GPU_PROCESS_BYTES if self.gpu is not None else CPU_PROCESS_BYTES

    def _made(
        self,
        name: str,
        parts: _Parts,
        gpus: int,
        ram: float,
        disk: float,
        *,
        shards: int | None = 1,
    ) -> StageMemory:
        """The memory of a stage whose processes have ``parts`` and ``gpus`` each.

        ``ram`` is that of the process that joins the shards, or of the only one.
        """
        on_gpu = self.gpu is not None and bool(parts.device)
        at_once = self._at_once(shards) if parts.device else 1
        process = parts.ram + (GPU_PROCESS_BYTES if on_gpu else CPU_PROCESS_BYTES)
        return StageMemory(
            name,
            gpus=gpus * at_once if on_gpu else 0,
            device=tuple(parts.device) if on_gpu else (),
            ram=ram + at_once * process,
            disk=disk,
            remedies=tuple(dict.fromkeys(parts.remedies)),
            faults=tuple(parts.faults) if on_gpu else (),
            unknown=tuple(dict.fromkeys(parts.unknown)),
            notes=tuple(parts.notes) if on_gpu else (),
        )

    def _known(self, model: str, parts: _Parts) -> ModelShape | None:
        shape = self.shape(model)
        if shape is None:
            parts.unknown.append(model)
        return shape

    def _chat(self, parts: _Parts, block: str, model: str | None, engine: EngineConfig) -> None:
        if model is not None:
            self._engine(parts, f"{block}.engine", model, engine)

    def _engine(self, parts: _Parts, block: str, model: str, engine: EngineConfig) -> None:
        """The engine of a model, in its own process, and the context of the stage's process."""
        shape = self._known(model, parts)
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
        parts.add("contexts and CUDA graphs", memory.outside + CONTEXT_BYTES)
        if shape is None:
            return
        least = memory.least(engine.max_model_len)
        if least > share:
            parts.faults.append(
                f"{block}.gpu_memory_utilization is {engine.gpu_memory_utilization:g}, which is "
                f"{gib(share)} GiB of a GPU of {gib(self.gpu.memory)} GiB; {model} needs {gib(least)} GiB "
                f"for its weights and one sequence of {engine.max_model_len} tokens; raise it, or "
                f"{block}.tensor_parallel_size, or name a smaller model"
            )
        else:
            tokens = memory.cached_tokens(share)
            parts.notes.append(f"cache of {tokens:,} tokens ({model.rpartition('/')[2]})")

    def _retrieval(self, parts: _Parts) -> None:
        """What retrieval in the stage's process holds on the GPU."""
        settings = self.settings
        retrieval = settings.retrieval
        if retrieval.service is not None or retrieval.variant == "none":
            return
        if settings.index.gpu and (indexes := self._index_sizes(on_gpu=True)):
            parts.add("FAISS indexes", sum(indexes.values()), "index.gpu (set it to false)")
            parts.add("FAISS scratch", SCRATCH_BYTES)
        passages = retrieval.reranker.kind == "biencoder" and not retrieval.over_hypergraph
        self._embedder(parts, settings.index.embedder.max_length if passages else _QUERY_TOKENS)
        if not passages and not retrieval.over_hypergraph:
            self._reranker(parts, retrieval.reranker)

    def _embedder(self, parts: _Parts, length: int) -> None:
        block = self.settings.index.embedder
        shape = self._known(block.model, parts)
        if shape is None or block.device == "cpu" or block.backend != "torch":
            return
        batch = encoder_activations(shape, block.dtype, block.batch_size, length)
        parts.add("embedder", encoder_weights(shape, block.dtype))
        parts.add("embedder batch", batch, "index.embedder.batch_size")

    def _reranker(self, parts: _Parts, block: Reranker) -> None:
        if block.kind == "biencoder":
            self._embedder(parts, self.settings.index.embedder.max_length)
            return
        shape = self._known(block.model, parts) if block.model is not None else None
        if shape is None or block.device == "cpu":
            return
        dtype = "float16" if block.kind == "flag" else "float32"
        batch = encoder_activations(shape, dtype, block.batch_size, block.max_length)
        parts.add("reranker", encoder_weights(shape, dtype))
        parts.add("reranker batch", batch, "retrieval.reranker.batch_size")

    def _private_ram(self) -> float:
        """RAM of the indexes in each process that retrieves; on GPUs they are read once and copied."""
        return sum(self._index_sizes().values())

    def _mapped(self) -> float:
        """Tables that all processes of a host map."""
        sizes = self.sizes
        return (
            CHUNK_BYTES * sizes.chunks
            + TRIPLET_BYTES * sizes.triplets
            + ENTITY_BYTES * sizes.entities
            + HYPEREDGE_BYTES * sizes.hyperedges
        )


def _unreachable() -> ModelShape:
    raise AssertionError("the table of published shapes has this model")
