"""The configuration: YAML files, checked by frozen models that refuse unknown keys.

`load` reads a file; shipped files are under ``configs/``. Blocks are in stage order (`knowledge`,
then `policy`). Each stage declares the blocks that it reads (``tasks/``), and only those enter its
fingerprint.
"""

from pipeline.config.base import (
    Block,
    Endpoint,
    EngineConfig,
    Positive,
    Prices,
    Share,
    for_round,
)
from pipeline.config.evaluation import Evaluation, JudgeModel, Judges, Noise
from pipeline.config.execution import Executor, Ray, Slurm
from pipeline.config.knowledge import (
    ClosedWorld,
    Corpus,
    CorpusFile,
    Data,
    DatasetName,
    Embedder,
    Graph,
    Hypergraph,
    Index,
    QuestionFile,
    Reranker,
    Retrieval,
)
from pipeline.config.policy import (
    Dpo,
    Grpo,
    HiPragReward,
    Lora,
    MemorySteps,
    Model,
    Pairs,
    ProGraphReward,
    Prompt,
    Rewards,
    Sampling,
    SearchR1Reward,
    Sft,
    SftData,
    TeaRagReward,
    Trainer,
)
from pipeline.config.reading import load
from pipeline.config.run import Config

__all__ = [
    "Block",
    "ClosedWorld",
    "Config",
    "Corpus",
    "CorpusFile",
    "Data",
    "DatasetName",
    "Dpo",
    "Embedder",
    "Endpoint",
    "EngineConfig",
    "Evaluation",
    "Executor",
    "Graph",
    "Grpo",
    "HiPragReward",
    "Hypergraph",
    "Index",
    "JudgeModel",
    "Judges",
    "Lora",
    "MemorySteps",
    "Model",
    "Noise",
    "Pairs",
    "Positive",
    "Prices",
    "ProGraphReward",
    "Prompt",
    "QuestionFile",
    "Ray",
    "Reranker",
    "Retrieval",
    "Rewards",
    "Sampling",
    "SearchR1Reward",
    "Sft",
    "SftData",
    "Share",
    "Slurm",
    "TeaRagReward",
    "Trainer",
    "for_round",
    "load",
]
