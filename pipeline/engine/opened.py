"""The parts that a stage opens: engines, encoders, vector indexes, trainers and endpoints.

Every stage declares its parts (`StageTask.opens`) and its amount of work. Its GPUs and CPU threads
(`pipeline.engine.needs`), its memory and GPU hours (`pipeline.engine.plan`), the checks before a
run (`pipeline.engine.check`) and the packages to import follow from this list. The functions below
make the parts that several stages have in common.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from pipeline.config import Config, Graph, Hypergraph, JudgeModel, Judges, SftData
from pipeline.config.base import Endpoint, EngineConfig
from pipeline.config.knowledge import Embedder, Index, Reranker
from pipeline.config.policy import Trainer

QUERY_TOKENS = 64  # of a query or an entity; passages are cut at ``max_length``
_VLLM = ("pipeline.llm.vllm_engine:import_vllm", "vllm.v1.engine.llm_engine", "peft")
_TRAINERS = {"sft": "trl.trainer.sft_trainer", "dpo": "trl.trainer.dpo_trainer"}


@dataclass(frozen=True)
class Needs:
    """The GPUs and CPU threads of a stage, or of a part of it.

    Attributes:
        gpus: GPUs that it uses if the stage runs on GPUs; 0 for a stage that loads no model.
        threads: CPU threads that it asks for at least, one for each process that computes.
        setting: the setting that decides ``gpus``, for messages.
    """

    gpus: int = 0
    threads: int = 1
    setting: str = ""


@dataclass(frozen=True, kw_only=True)
class Opened:
    """One thing that a stage opens.

    Attributes:
        key: the setting that names it, such as ``model.base``.
        name: the model, the URL of an endpoint, or the type of a vector index.
        block: the block of its settings, such as ``engine``.
        turn: parts of one turn are open at the same time; the parts of a later turn are opened
            after the earlier ones have been closed.
        needs: its GPUs and threads; those of a training depend on the machine
            (`pipeline.engine.needs`).
        required: the settings that cannot work without GPUs, with the GPUs on each machine.
            ``device: auto`` and an engine on one device work on CPUs too.
        imports: heavy modules that must be imported to open it.
    """

    key: str
    name: str
    block: str
    turn: int = 0
    needs: Needs = Needs()
    required: tuple[tuple[str, int], ...] = ()
    imports: tuple[str, ...] = ()

    on_device: ClassVar[bool] = True  # whether it computes on the machine of the stage
    is_model: ClassVar[bool] = True  # whether ``name`` is a model that the machine needs


@dataclass(frozen=True, kw_only=True)
class Engine(Opened):
    """A language model in an engine."""

    settings: EngineConfig


@dataclass(frozen=True, kw_only=True)
class Encoder(Opened):
    """An embedder or a reranker; ``tokens`` is the limit of a text or a pair."""

    settings: Embedder | Reranker
    tokens: int

    @property
    def reranks(self) -> bool:
        """Whether it reads pairs of a query and a text."""
        return isinstance(self.settings, Reranker)

    @property
    def dtype(self) -> str:
        """The number format of the weights."""
        if isinstance(self.settings, Reranker):
            return "float16" if self.settings.kind == "flag" else "float32"
        return self.settings.dtype


@dataclass(frozen=True, kw_only=True)
class Vectors(Opened):
    """The vector indexes that retrieval searches."""

    is_model: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class Training(Opened):
    """The base model with an adapter that is trained; ``rows`` are the sequences of one example."""

    settings: Trainer
    rows: int


@dataclass(frozen=True, kw_only=True)
class Remote(Opened):
    """A model behind an endpoint."""

    settings: Endpoint
    on_device: ClassVar[bool] = False
    is_model: ClassVar[bool] = False


@dataclass(frozen=True)
class Requests:
    """Requests of a stage to one endpoint; ``read`` and ``written`` are tokens."""

    remote: Remote
    calls: float
    read: float
    written: float
    stage: str = ""

    @property
    def cost(self) -> float | None:
        """In the currency of the prices; None without prices."""
        prices = self.remote.settings.prices
        cost = (self.read * prices.prompt + self.written * prices.completion) / 1e6
        return cost if prices.prompt or prices.completion else None

    @property
    def expected(self) -> float:
        """The cost, or without prices the tokens."""
        return self.read + self.written if self.cost is None else self.cost


@dataclass(frozen=True)
class Work:
    """The work of one stage: seconds of a GPU or CPU core, bytes of output, and requests."""

    seconds: float = 0.0
    disk: float = 0.0
    requests: tuple[Requests, ...] = ()

    def __add__(self, other: Work) -> Work:
        return Work(
            self.seconds + other.seconds,
            self.disk + other.disk,
            self.requests + other.requests,
        )

    def __rmul__(self, times: float) -> Work:
        requests = (
            Requests(one.remote, times * one.calls, times * one.read, times * one.written)
            for one in self.requests
        )
        return Work(times * self.seconds, times * self.disk, tuple(requests))


def policy_engine(settings: Config, turn: int = 0) -> Engine:
    """The engine of a policy."""
    return _engine("model.base", settings.model.base, "engine", settings.engine, turn)


def chat(
    block: str, settings: Graph | Hypergraph | SftData | JudgeModel, turn: int = 0
) -> Iterator[Opened]:
    """The chat model of a block such as ``graph``: in this process, or behind an endpoint."""
    if settings.model is not None:
        yield _engine(f"{block}.model", settings.model, f"{block}.engine", settings.engine, turn)
    if settings.endpoint is not None:
        key, remote = f"{block}.endpoint", settings.endpoint
        yield Remote(key=key, name=remote.base_url, block=key, turn=turn, settings=remote)


def _engine(key: str, model: str, block: str, settings: EngineConfig, turn: int) -> Engine:
    """A divided model needs a GPU for each part."""
    vllm, size = settings.kind == "vllm", settings.tensor_parallel_size
    divided, gpus = f"{block}.tensor_parallel_size", size if vllm else 1
    return Engine(
        key=key, name=model, block=block, turn=turn, settings=settings,
        needs=Needs(gpus, gpus, divided if vllm else f"{block}.kind"),
        required=((f"{divided} is {size}", size),) if size > 1 else (),
        imports=_VLLM if vllm else (),
    )  # fmt: skip


def judges(block: str, settings: Judges) -> Iterator[Opened]:
    """The models that judge, each opened after the policy has ended and after the other."""
    yield from chat(f"{block}.over", settings.over, turn=1)
    yield from chat(f"{block}.under", settings.under, turn=2)


def embedder(settings: Config, tokens: int | None = None) -> Encoder:
    """The embedder with texts of ``tokens`` tokens, by default passages."""
    block = settings.index.embedder
    return _encoder("index.embedder", block.model, block, tokens or block.max_length)


def reranker(settings: Config, block: Reranker, name: str) -> Encoder:
    """The reranker of the block ``name``; a bi-encoder is the embedder, or another one."""
    if block.kind == "biencoder":
        found = embedder(settings)
        other = block.model
        return found if other is None else replace(found, key=f"{name}.model", name=other)
    return _encoder(name, block.model or "", block, block.max_length)


def _encoder(block: str, model: str, settings: Embedder | Reranker, tokens: int) -> Encoder:
    device = settings.device
    return Encoder(
        key=f"{block}.model", name=model, block=block, settings=settings, tokens=tokens,
        needs=Needs() if device == "cpu" else Needs(1, 1, f"{block}.device"),
        required=((f"{block}.device is cuda", 1),) if device == "cuda" else (),
        imports=("sentence_transformers",),  # also before FlagEmbedding
    )  # fmt: skip


def vectors(index: Index) -> Vectors:
    """The vector indexes, on the CPU or on one GPU."""
    return Vectors(
        key="index.faiss", name=index.faiss, block="index",
        needs=Needs(1, 1, "index.gpu") if index.gpu else Needs(),
        required=(("index.gpu is true", 1),) if index.gpu else (),
    )  # fmt: skip


def retrieval(settings: Config, block: str = "retrieval") -> Iterator[Opened]:
    """The parts that retrieval opens in the stage's own process; none if a service retrieves."""
    chosen = settings.retrieval
    if chosen.variant == "none" or chosen.service is not None:
        return
    yield vectors(settings.index)
    scorer = None
    if not chosen.over_hypergraph:
        scorer = reranker(settings, chosen.reranker, f"{block}.reranker")
    if scorer is None or scorer.key != "index.embedder.model":
        yield embedder(settings, QUERY_TOKENS)
    if scorer is not None:
        yield scorer


def training(settings: Config, block: str, trainer: Trainer) -> Training:
    """The base model in the training of a block: ``sft``, ``dpo`` or ``grpo``."""
    # Quantization runs on GPUs alone.
    quantized = f"{block}.quantization is {trainer.quantization}"
    library = _TRAINERS.get(block, "trl.trainer.grpo_trainer")
    return Training(
        key="model.base", name=settings.model.base, block=block, settings=trainer,
        rows=2 if block == "dpo" else 1,
        required=() if trainer.quantization == "none" else ((quantized, 1),),
        imports=("pipeline.training.trainer_args", "peft", "accelerate", library),
    )  # fmt: skip
