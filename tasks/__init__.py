"""Luigi tasks, one module per stage; the computation of a stage is in ``pipeline/``.

``luigi --module tasks Report --config configs/embedded.yaml --local-scheduler`` does the same as
``make run``.
"""

from tasks.corpus import Corpus
from tasks.evaluate import Evaluate, EvaluatePolicy
from tasks.evaluate_any import EvaluateAny
from tasks.graph import Graph
from tasks.hypergraph import Hypergraph, HyperIndex
from tasks.index import Index
from tasks.judge import Judge, JudgePolicy
from tasks.pair import Pair
from tasks.questions import (
    QuestionsSampling,
    QuestionsSft,
    QuestionsTest,
    QuestionsValidation,
)
from tasks.report import Report
from tasks.sample import Sample, SampleShard
from tasks.score import Score, ScoreShard
from tasks.sft import Sft
from tasks.sft_data import SftData
from tasks.train import Train
from tasks.world import World

__all__ = [
    "Corpus",
    "Evaluate",
    "EvaluateAny",
    "EvaluatePolicy",
    "Graph",
    "HyperIndex",
    "Hypergraph",
    "Index",
    "Judge",
    "JudgePolicy",
    "Pair",
    "QuestionsSampling",
    "QuestionsSft",
    "QuestionsTest",
    "QuestionsValidation",
    "Report",
    "Sample",
    "SampleShard",
    "Score",
    "ScoreShard",
    "Sft",
    "SftData",
    "Train",
    "World",
]
