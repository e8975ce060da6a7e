"""The configuration: YAML files, checked by frozen models that refuse unknown keys.

`load` reads a file; shipped files are under ``configs/``. Blocks are in stage order (`knowledge`,
then `policy`). Each stage declares the blocks that it reads (``tasks/``), and only those enter its
fingerprint.
"""

from pipeline.config.base import (
    Block,
    Endpoint,
    EngineConfig,
    for_round,
)
from pipeline.config.evaluation import JudgeModel, Judges
from pipeline.config.knowledge import (
    Corpus,
    CorpusFile,
    Data,
    Embedder,
    Graph,
    Hypergraph,
    QuestionFile,
    Reranker,
)
from pipeline.config.policy import (
    Dpo,
    Grpo,
    Lora,
    Rewards,
    Sft,
    SftData,
    TeaRagReward,
    Trainer,
)
from pipeline.config.reading import load
from pipeline.config.run import Config, Executor

__all__ = [
    "Block",
    "Config",
    "Corpus",
    "CorpusFile",
    "Data",
    "Dpo",
    "Embedder",
    "Endpoint",
    "EngineConfig",
    "Executor",
    "Graph",
    "Grpo",
    "Hypergraph",
    "JudgeModel",
    "Judges",
    "Lora",
    "QuestionFile",
    "Reranker",
    "Rewards",
    "Sft",
    "SftData",
    "TeaRagReward",
    "Trainer",
    "for_round",
    "load",
]
