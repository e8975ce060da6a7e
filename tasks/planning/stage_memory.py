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
from dataclasses import dataclass, replace

from pipeline.config import Config
from pipeline.config.knowledge import Graph, Hypergraph
from pipeline.config.policy import Trainer
from pipeline.core.gpus import CONTEXT_BYTES, GIB, Gpu
from pipeline.training.memory import training_memory, weight_bytes
from tasks.planning.model_memory import ModelMemory, Part, Parts
from tasks.planning.sizes import Sizes

# Bytes of a record on disk, and in the pages of mapped files (docs/scale.md).
CHUNK_BYTES, TRIPLET_BYTES, ENTITY_BYTES, HYPEREDGE_BYTES = 650, 102.6, 26.8, 160
ANSWER_BYTES = 3600  # of a cached answer of a model, prompt included
TRAJECTORY_BYTES = 12_000  # of 1,100 tokens: ids, log-probabilities, text and prompt
# RAM of a process: libraries and the state of CUDA; with a reader of mapped files only.
GPU_PROCESS_BYTES, CPU_PROCESS_BYTES = 4 * GIB, GIB
_GRAPH_BYTES_PER_CHUNK = 34e9 / 21_015_324  # RAM while the graph is built (docs/scale.md)
_WEIGHT_FILE_BYTES = 5e9  # of the largest file of a checkpoint; published models have 4 to 5 GB
_TRAINED_VECTORS = 1_000_000  # at most, that an IVF-PQ index is trained on


@dataclass(frozen=True)
class StageMemory:
    """Memory of one stage.

    ``gpus`` are those on each machine, ``device`` the parts on each of them, ``ram`` and ``disk`` bytes on the host. ``remedies`` are the
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


class Planner:
    """Memory of the stages of one configuration."""

    def __init__(self, settings: Config, sizes: Sizes, gpu: Gpu | None) -> None:
        self.settings, self.sizes, self.gpu = settings, sizes, gpu
        self.models = ModelMemory(settings, sizes, gpu)
        self.evaluation_models = ModelMemory(settings.for_evaluation(), sizes, gpu)

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

    def _extraction(self, name: str, block: Graph | Hypergraph) -> tuple[Parts, int]:
        """Parts and GPUs of each process that extracts with the model of a block."""
        parts = Parts()
        if block.source != "llm" or block.model is None:
            return parts, 0
        self.models.chat(parts, name, block.model, block.engine)
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
        parts = Parts()
        embedder = self.settings.index.embedder
        self.models.embedder(parts, embedder.max_length)
        parts.add("CUDA context", CONTEXT_BYTES)
        texts = sum(self._embedded(name).values())
        vectors = 4.0 * self.models.dimension * texts
        found = {**self.models.index_sizes(), **self.evaluation_models.index_sizes()}
        searched = sum(found.values())
        trained = 4.0 * self.models.dimension * min(texts, _TRAINED_VECTORS)
        # Checkpoints, or the outputs of shards, hold every vector and the codes of indexes a second time.
        shards = self.settings.index.shards
        disk = 2 * (vectors + searched)
        return self._made(name, parts, 1, searched + trained, disk, shards=shards)

    def _embedded(self, stage: str) -> Mapping[str, float]:
        """Vectors of the tables that ``index`` or ``hyper-index`` embeds."""
        sizes = self.sizes
        if stage == "hyper-index":
            return {"entities": sizes.entities, "hyperedges": sizes.hyperedges}
        return {"chunks": sizes.chunks, "entities": sizes.entities, "triplets": sizes.triplets}

    # Stages of the policy

    def _sft_data(self, name: str) -> StageMemory:
        settings, parts = self.settings, Parts()
        block, graph = settings.sft_data, settings.graph
        gpus = 0
        if block.model is not None and "llm" in (block.triplets, block.selector, block.rewriter):
            self.models.chat(parts, "sft_data", block.model, block.engine)
            gpus = block.engine.tensor_parallel_size
        elif graph.source == "llm" and graph.model is not None and block.triplets == "graph":
            self.models.chat(parts, "graph", graph.model, graph.engine)
            gpus = graph.engine.tensor_parallel_size
        if block.memory is not None:  # the policy answers after the other model has ended
            policy = Parts()
            self.models.engine(policy, "engine", settings.model.base, settings.engine)
            parts = parts.larger(policy)
            gpus = max(gpus, settings.engine.tensor_parallel_size)
        examples = sum(block.sizes.values()) + sum(block.test_sizes.values())
        disk = 10 * ANSWER_BYTES * examples
        return self._made(name, parts, gpus, 0.0, disk, shards=block.shards)

    def _roll_out(self, name: str) -> StageMemory:
        settings, parts = self.settings, Parts()
        models = self.models if name == "sample" else self.evaluation_models
        models.engine(parts, "engine", settings.model.base, settings.engine)
        models.retrieval(parts)
        block = settings.sampling if name == "sample" else settings.evaluation
        size = settings.engine.tensor_parallel_size
        at_once = self._at_once(block.shards, size)
        if name == "sample":
            rows = self.sizes.questions["sampling"] * settings.sampling.samples * settings.rounds
        else:
            rows = self.sizes.questions[settings.evaluation.split] * (settings.rounds + 1)
        plan = self._made(name, parts, size * at_once, 0.0, TRAJECTORY_BYTES * rows)
        process = self._process_bytes + parts.ram
        if models.settings.retrieval.service:
            return replace(plan, ram=at_once * process)
        return replace(plan, ram=at_once * (process + _private_ram(models)) + self._mapped())

    def _score(self, name: str) -> StageMemory:
        settings, parts = self.settings, Parts()
        gpus, private, mapped = 0, 0.0, 0.0
        if settings.method.scoring_samples:
            self.models.engine(parts, "engine", settings.model.base, settings.engine)
            self.models.retrieval(parts)
            gpus = settings.engine.tensor_parallel_size
            private, mapped = _private_ram(self.models), self._mapped()
        elif settings.method.similarity_rewards:
            self.models.reranker(parts, settings.rewards.reranker or settings.retrieval.reranker)
            parts.add("CUDA context", CONTEXT_BYTES)
            gpus = 1
        at_once = self._at_once(settings.sampling.shards, gpus)
        rows = self.sizes.questions["sampling"] * settings.sampling.samples * settings.rounds
        plan = self._made(name, parts, gpus * at_once, 0.0, TRAJECTORY_BYTES * rows)
        process = self._process_bytes if gpus else CPU_PROCESS_BYTES
        return replace(plan, ram=at_once * (process + parts.ram + private) + mapped)

    def _judge(self, name: str) -> StageMemory:
        settings, parts = self.settings, Parts()
        self.models.engine(parts, "engine", settings.model.base, settings.engine)
        judges, block = settings.judges, "judges"
        if name == "judge-policy":
            judges, block = settings.evaluation_judges, settings.evaluation_judges_block
        gpus = settings.engine.tensor_parallel_size
        for kind in ("over", "under") if judges is not None else ():
            judge = getattr(judges, kind)
            if judge.model is not None:  # opened after the policy has ended
                own = Parts()
                self.models.chat(own, f"{block}.{kind}", judge.model, judge.engine)
                gpus = max(gpus, judge.engine.tensor_parallel_size)
                parts = parts.larger(own)
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
        settings, parts = self.settings, Parts()
        shape = self.models.known(settings.model.base, parts)
        if shape is None:
            return self._made(name, parts, trainer.processes_per_machine, 0.0, 0.0)
        length = trainer.max_length
        if name == "train":  # no trajectory is longer than the engine's limit
            length = min(length, settings.engine.max_model_len)
        here = trainer.processes_per_machine
        memory = training_memory(
            shape,
            rows=trainer.per_device_batch_size * rows,
            length=length,
            rank=settings.lora.r,
            targets=settings.lora.targets,
            dropout=settings.lora.dropout > 0,
            dtype=trainer.dtype,
            quantization=trainer.quantization,
            checkpointing=trainer.gradient_checkpointing,
            processes=trainer.processes,
            parts=here if trainer.shard_base else 1,
        )
        batch = f"{block}.per_device_batch_size"
        more = [] if trainer.gradient_checkpointing else [f"set {block}.gradient_checkpointing"]
        smaller = [f"{block}.quantization (4bit)"]
        if here > 1 and not trainer.shard_base:
            smaller.append(f"set {block}.shard_base")
        parts.add("base weights", memory.weights, *smaller)
        parts.add("adapter and Adam", memory.adapter)
        parts.add("layer inputs", memory.layer_inputs, batch, f"{block}.max_length")
        parts.add("a layer's activations", memory.layer, batch, *more)
        parts.add("attention mask", memory.mask, batch, f"{block}.max_length")
        parts.add("head", memory.head)
        parts.add("context and fragmentation", memory.overhead)
        parts.remedies.reverse()
        loaded = weight_bytes(shape, trainer.dtype)
        if self.gpu is not None:  # a file of the weights is read at a time, and moved to the GPU
            loaded = min(loaded, _WEIGHT_FILE_BYTES)
        plan = self._made(name, parts, here, 0.0, 0.0)
        if trainer.shard_base:  # one process after the other holds the whole base
            whole = weight_bytes(shape, trainer.dtype)
            return replace(plan, ram=here * self._process_bytes + whole)
        return replace(plan, ram=here * (self._process_bytes + loaded))

    # Parts of several stages

    def _at_once(self, shards: int | None, gpus: int) -> int:
        """How many shards of a stage run at the same time on a machine, with ``gpus`` GPUs each."""
        run = self.settings
        processes = min(run.workers or run.gpus + 1, shards or run.shards)
        if run.gpus and gpus:
            processes = min(processes, run.gpus // gpus)
        return max(1, processes)

    @property
    def _process_bytes(self) -> float:
        return GPU_PROCESS_BYTES if self.gpu is not None else CPU_PROCESS_BYTES

    def _made(
        self,
        name: str,
        parts: Parts,
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
        at_once = self._at_once(shards, gpus) if parts.device else 1
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

    def _mapped(self) -> float:
        """Tables that all processes of a host map."""
        sizes = self.sizes
        return (
            CHUNK_BYTES * sizes.chunks
            + TRIPLET_BYTES * sizes.triplets
            + ENTITY_BYTES * sizes.entities
            + HYPEREDGE_BYTES * sizes.hyperedges
        )


def _private_ram(models: ModelMemory) -> float:
    """RAM of the indexes in each process that retrieves; on GPUs they are read once and copied."""
    return sum(models.index_sizes().values())
