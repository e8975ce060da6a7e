"""Luigi tasks, one module per stage; the computation of a stage is in ``pipeline/``.

``luigi --module tasks Report --config configs/embedded.yaml --local-scheduler`` does the same as
``make run``.
"""

from tasks.corpus import Corpus
from tasks.evaluate import Evaluate, EvaluatePolicy, EvaluatePolicyShard
from tasks.evaluate_any import EvaluateAny, EvaluateAnyShard
from tasks.given_policy import GivenPolicy, Start
from tasks.graph import Graph, GraphShard
from tasks.hypergraph import Hypergraph, HypergraphShard, HyperIndex, HyperIndexShard
from tasks.index import Index, IndexShard
from tasks.judge import Judge, JudgePolicy, JudgePolicyShard, JudgeShard
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
from tasks.sft_data import SftData, SftDataShard
from tasks.train import Train
from tasks.world import World

__all__ = [
    "Corpus",
    "Evaluate",
    "EvaluateAny",
    "EvaluateAnyShard",
    "EvaluatePolicy",
    "EvaluatePolicyShard",
    "GivenPolicy",
    "Graph",
    "GraphShard",
    "HyperIndex",
    "HyperIndexShard",
    "Hypergraph",
    "HypergraphShard",
    "Index",
    "IndexShard",
    "Judge",
    "JudgePolicy",
    "JudgePolicyShard",
    "JudgeShard",
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
    "SftDataShard",
    "Start",
    "Train",
    "World",
]
