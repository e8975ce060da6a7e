"""The configuration: YAML under ``configs/``, checked by frozen models that refuse unknown keys.

A file may name another with ``base:`` and then holds only what differs (mappings are merged, lists
and scalars replaced). ``--set a.b=value`` overrides one key. Blocks are in stage order; each stage
declares which of them it reads (``tasks/``), and only those enter its fingerprint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pipeline.errors import ConfigError

Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]


class Block(BaseModel):
    """Base of every block: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ClosedWorld(Block):
    """Size of the generated world (``pipeline.testbed``); its truth is known."""

    seed: int = 0
    documents: Positive = 1500
    musique_train: int = Field(1200, ge=0)
    musique_sampling: int = Field(300, ge=0)
    musique_dev: int = Field(150, ge=0)
    musique_test: int = Field(200, ge=0)
    hotpotqa_sampling: int = Field(200, ge=0)
    hotpotqa_dev: int = Field(0, ge=0)
    hotpotqa_test: int = Field(100, ge=0)
    wiki2_test: int = Field(100, ge=0)
    nq_sampling: int = Field(150, ge=0)
    nq_dev: int = Field(50, ge=0)
    nq_test: int = Field(100, ge=0)


DatasetName = Literal[
    "musique", "hotpotqa", "2wiki", "nq", "popqa", "triviaqa", "bamboogle", "questions"
]


class QuestionFile(Block):
    """One file of questions in a data set's own format; paths are relative to ``data.root``."""

    dataset: DatasetName
    path: str
    limit: Positive | None = None
    filter: dict[str, str | int] = Field(
        default_factory=dict, description="keep questions whose field has this value"
    )
    select: Literal["first", "random", "most-evidence", "even-hops"] = "first"


class CorpusFile(Block):
    """One file of documents; ``auto`` looks at the content."""

    path: str
    format: Literal["auto", "jsonl", "json", "titles", "dpr-tsv", "questions"] = "auto"
    dataset: DatasetName | None = Field(None, description="for format questions: whose contexts")


class Data(Block):
    """Where documents and questions come from; with ``closed_world`` the root is the world."""

    closed_world: ClosedWorld | None = None
    root: str | None = Field(None, description="directory of the files; DATA=DIR sets it")
    sft: tuple[QuestionFile, ...] = ()
    sampling: tuple[QuestionFile, ...] = ()
    validation: tuple[QuestionFile, ...] = ()
    test: tuple[QuestionFile, ...] = ()


class Corpus(Block):
    """Documents cut into chunks."""

    files: tuple[CorpusFile, ...]
    chunk_words: Positive = 100


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


class Graph(Block):
    """Triplets from one of three sources."""

    source: Literal["annotated", "openie", "llm"]
    path: str | None = None
    model: str | None = Field(None, description="llm: model that extracts")
    engine: EngineConfig = EngineConfig()
    batch: Positive = 256

    @model_validator(mode="after")
    def _complete(self) -> Graph:
        if self.source == "llm" and self.model is None:
            raise ValueError("source llm needs graph.model")
        if self.source != "llm" and self.path is None:
            raise ValueError(f"source {self.source} needs graph.path")
        return self


class Embedder(Block):
    """A sentence-transformers bi-encoder."""

    model: str
    query_prefix: str = ""
    passage_prefix: str = ""
    backend: Literal["torch", "onnx", "openvino"] = "torch"
    dtype: Literal["float32", "bfloat16"] = "float32"
    batch_size: Positive = 64
    device: Literal["auto", "cpu", "cuda"] = "auto"
    max_length: Positive = 256


class Index(Block):
    """Embeddings and FAISS indexes."""

    embedder: Embedder
    faiss: Literal["flat", "ivf-pq", "hnsw", "auto"] = "auto"
    gpu: bool = False


class Reranker(Block):
    """What gives sim(text, query): a FlagReranker, a cross-encoder, or the bi-encoder calibrated.

    ``biencoder``: raw score = scale * cosine + offset, so that its sigmoid is a probability.
    """

    kind: Literal["flag", "cross-encoder", "biencoder"] = "flag"
    model: str | None = None
    scale: float = 1.0
    offset: float = 0.0
    batch_size: Positive = 64
    device: Literal["auto", "cpu", "cuda"] = "auto"
    max_length: Positive = 512


class Retrieval(Block):
    """TeaRAG 4.2.3 to 4.2.5; the defaults are the paper's."""

    variant: Literal["semantic", "graph", "concat", "ppr", "none"] = "ppr"
    rounds: Literal["iterative", "single"] = "iterative"
    reranker: Reranker
    chunks_recall: Positive = 20
    chunks: Positive = Field(5, description="k_d")
    entities_recall: Positive = 10
    entities: Positive = 5
    triplets_recall: Positive = 20
    triplets: Positive = Field(10, description="k_t")
    keep: Positive = Field(5, description="k_f")
    tau: Share = 0.2
    alpha: float = Field(0.5, gt=0, lt=1)


class Model(Block):
    """The base model, played by ``data/tiny_reader`` in the embedded setting."""

    base: str
    chat_template: str | None = None


class Prompt(Block):
    """The instruction: one system message over the question."""

    system: str


class SftData(Block):
    """TeaRAG 4.3.1."""

    triplets: Literal["graph", "llm"] = "graph"
    selector: Literal["answer", "llm"] = "answer"
    rewriter: Literal["fill", "llm"] = "fill"
    model: str | None = None
    engine: EngineConfig = EngineConfig()
    sizes: dict[int, int] = Field(description="examples per number of hops (1: single steps)")
    test_sizes: dict[int, int] = Field(default_factory=dict)


class Lora(Block):
    """PEFT LoRA; the paper's values."""

    r: Positive = 8
    alpha: Positive = 32
    dropout: Share = 0.1
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")


class Trainer(Block):
    """What SFT and DPO share."""

    learning_rate: float = Field(gt=0)
    batch_size: Positive = Field(description="examples per optimiser step, over all devices")
    per_device_batch_size: Positive = 8
    epochs: float = Field(1, gt=0)
    weight_decay: float = Field(0.001, ge=0)
    warmup_ratio: Share = 0.03
    scheduler: Literal["linear", "cosine", "constant"] = "cosine"
    max_length: Positive = 4096
    over_long: Literal["refuse", "drop"] = "refuse"
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    quantization: Literal["none", "4bit", "8bit"] = "none"
    processes: Positive = Field(1, description="GPUs; above 1 through accelerate launch")
    gradient_checkpointing: bool = False
    device: Literal["auto", "cpu", "cuda"] = "auto"


class Sft(Trainer):
    """TeaRAG eq. 4."""


class Dpo(Trainer):
    """TeaRAG eq. 15-17. Lists hold one value a round; the last serves all later rounds."""

    beta: float = Field(0.5, gt=0)
    eta: tuple[float, ...] = (1.0, 0.5, 0.25)
    round_epochs: tuple[float, ...] = (2, 2, 1)
    reference: Literal["previous", "sft"] = "previous"
    max_chosen_drop: float = Field(
        20.0, gt=0, description="stop when log p(chosen) falls this many nats below the reference"
    )


class Sampling(Block):
    """R paths per question; also what evaluation rolls out with (temperature apart)."""

    samples: Positive = Field(8, description="R")
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    max_steps: Positive = 5
    max_segment_tokens: Positive = 512
    max_total_tokens: Positive = 4096
    in_flight: Positive = Field(256, description="paths open at once")
    shards: Positive = 1
    batch: Positive = Field(64, description="questions per checkpoint")

    @model_validator(mode="after")
    def _pairs_need_two(self) -> Sampling:
        if self.samples < 2:
            raise ValueError("pairs need at least 2 samples per question; raise it")
        return self


class TeaRagReward(Block):
    """TeaRAG eq. 13 weights; ablations set terms to 0 or drop them."""

    consistency: float = 0.1
    subquery: float = 0.3
    context: float = 0.3
    summary: float = 0.3


class Rewards(Block):
    """How trajectories are scored."""

    kind: Literal["tearag"] = "tearag"
    tearag: TeaRagReward = TeaRagReward()
    reranker: Reranker | None = Field(None, description="default: the retrieval reranker")
    batch: Positive = 512


class Pairs(Block):
    """TeaRAG eq. 14 thresholds."""

    single_outcome: Share = 1.0
    multi_outcome: Share = 1.0
    multi_process: float = 0.7
    multi_outcome_relaxed: Share = 0.8
    multi_process_relaxed: float = 0.8
    easy_outcome: Share = 0.3
    hard_margin: Share = 0.3
    limit: Positive | None = Field(None, description="at most so many pairs a round, shuffled")


class Evaluation(Block):
    """Greedy roll-outs of every policy over the test questions."""

    temperature: float = Field(0.0, ge=0)
    bootstrap: Positive = 1000
    split: Literal["test", "validation"] = "test"
    unknown_ceiling: Share = 0.02


class Config(Block):
    """One run. ``name`` is also the run's directory under ``runs_dir``."""

    name: str = Field(pattern=r"^[A-Za-z0-9._-]+$")
    seed: int = 0
    rounds: int = Field(3, ge=0)
    until: Literal["report", "pair"] = Field("report", description="pair: stop before training")
    gpus: int = Field(0, ge=0, description="GPUs that shards are spread over; 0: leave as is")
    workers: Positive = Field(1, description="stages run at once")
    runs_dir: str = "runs"
    cache_dir: str = Field("runs/cache", description="embeddings and scores, by content")
    data: Data
    corpus: Corpus
    graph: Graph
    index: Index
    retrieval: Retrieval
    model: Model
    engine: EngineConfig = EngineConfig()
    prompt: Prompt
    grammar: Literal["tearag"] = "tearag"
    sft_data: SftData
    lora: Lora = Lora()
    sft: Sft
    sampling: Sampling = Sampling()
    rewards: Rewards = Rewards()
    pairs: Pairs = Pairs()
    dpo: Dpo
    evaluation: Evaluation = Evaluation()

    @property
    def run_dir(self) -> Path:
        return Path(self.runs_dir) / self.name


def load(path: Path | str, overrides: tuple[str, ...] = (), data: str | None = None) -> Config:
    """Read, merge and check a configuration file.

    ``overrides`` are ``key.key=value`` with YAML values; ``data`` sets ``data.root``.
    Raises ConfigError with file, key, value, bound and remedy.
    """
    values = _read_with_base(Path(path), ())
    for override in overrides:
        _apply(values, override)
    if data is not None:
        values.setdefault("data", {})["root"] = data
    values.setdefault("name", Path(path).stem)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_explain(Path(path), error)) from None


def _read_with_base(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    if path.resolve() in seen:
        raise ConfigError(f"{path}: base: names itself through {' -> '.join(map(str, seen))}")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such configuration file; see configs/") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a directory; name a YAML file in it") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a mapping of settings, got {type(values).__name__}")
    base = values.pop("base", None)
    if base is None:
        return values
    below = _read_with_base(path.parent / str(base), (*seen, path.resolve()))
    below.pop("name", None)
    return _merge(below, values)


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        both = isinstance(under, dict) and isinstance(value, dict)
        merged[key] = _merge(under, value) if both else value  # type: ignore[arg-type]
    return merged


def _apply(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {override}: expected key.key=value")
    *parents, last = key.strip().split(".")
    node = values
    for parent in parents:
        child = node.get(parent)
        node[parent] = child if isinstance(child, dict) else {}
        node = node[parent]
    try:
        node[last] = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"--set {override}: {text!r} is not a YAML value") from None


def _explain(path: Path, error: ValidationError) -> str:
    lines = []
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            parent, known = _known_keys(item["loc"])
            lines.append(f"{path}: {key}: unknown key; {parent} has {', '.join(known)}")
        elif item["type"] == "missing":
            lines.append(f"{path}: {key}: missing; add it")
        else:
            reason = item["msg"].removeprefix("Value error, ")
            if item["type"] == "value_error":
                lines.append(f"{path}: {key}: {reason}")
            else:
                lines.append(f"{path}: {key} is {item['input']!r}; {reason}")
    return "\n".join(lines)


def _known_keys(location: tuple[int | str, ...]) -> tuple[str, list[str]]:
    block: Any = Config
    for part in location[:-1]:
        if isinstance(part, str) and isinstance(block, type) and issubclass(block, BaseModel):
            field = block.model_fields.get(part)
            block = _block_of(field.annotation) if field is not None else None
    if isinstance(block, type) and issubclass(block, BaseModel):
        return ".".join(map(str, location[:-1])) or "the top level", sorted(block.model_fields)
    return "it", ["no such key"]


def _block_of(annotation: Any) -> Any:
    import typing

    for kind in (annotation, *typing.get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def for_round(values: tuple[float, ...], number: int) -> float:
    """The value of round ``number`` (from 1) in a list whose last item serves all later rounds."""
    return values[min(number, len(values)) - 1]
