"""Luigi tasks, one module per stage; the computation of a stage is in ``pipeline/``.

``luigi --module tasks Report --config configs/embedded.yaml --local-scheduler`` does the same as
``make run``. The stages are imported in the order of a run, which is the order of
`tasks.base.STAGES`.
"""

# isort: off
from tasks.world import World
from tasks.corpus import Corpus
from tasks.graph import Graph
from tasks.graph import Hypergraph
from tasks.index import HyperIndex, Index
from tasks.questions import QuestionsSampling, QuestionsSft, QuestionsTest, QuestionsValidation
from tasks.sft_data import SftData
from tasks.sft import Sft
from tasks.policy import GivenPolicy, Start
from tasks.sample import Sample
from tasks.evaluate_policy import EvaluatePolicy
from tasks.judge import Judge, JudgePolicy
from tasks.score import Score
from tasks.pair import Pair
from tasks.train import Train
from tasks.evaluate import Evaluate
from tasks.evaluate_any import EvaluateAny
from tasks.report import Report

# isort: on

__all__ = [
    "Corpus",
    "Evaluate",
    "EvaluateAny",
    "EvaluatePolicy",
    "GivenPolicy",
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
    "Score",
    "Sft",
    "SftData",
    "Start",
    "Train",
    "World",
]
