"""The stages of a run, one module each: its declaration, and ``run(context)``, which does it.

``luigi --module tasks Report --config configs/embedded.yaml --local-scheduler`` runs them as well,
without the checks and the progress of ``make run``, and leaves the report in the store. The stages
are imported in the order of a run, which is the order of `pipeline.engine.stage.STAGES`.
"""

from importlib import import_module
from pkgutil import iter_modules

# isort: off
from pipeline.engine.stage import STAGES as STAGES, StageTask, task_for as task_for
from tasks.world import World as World
from tasks.corpus import Corpus as Corpus
from tasks.graph import Graph as Graph
from tasks.hypergraph import Hypergraph as Hypergraph
from tasks.index import HyperIndex as HyperIndex, Index as Index
from tasks.questions import QuestionsSampling as QuestionsSampling
from tasks.questions import QuestionsSft as QuestionsSft
from tasks.questions import QuestionsTest as QuestionsTest
from tasks.questions import QuestionsValidation as QuestionsValidation
from tasks.coverage import Coverage as Coverage
from tasks.sft_data import SftData as SftData
from tasks.sft import Sft as Sft
from tasks.policy import GivenPolicy as GivenPolicy, Start as Start
from tasks.sample import Sample as Sample, SftSample as SftSample
from tasks.candidates import Candidates as Candidates
from tasks.explore import Explore as Explore
from tasks.passage_index import PassageIndex as PassageIndex
from tasks.evaluate_policy import EvaluatePolicy as EvaluatePolicy
from tasks.judge import Judge as Judge, JudgePolicy as JudgePolicy
from tasks.score import Score as Score
from tasks.pair import Pair as Pair
from tasks.train import Train as Train
from tasks.evaluate import Evaluate as Evaluate
from tasks.evaluate_any import EvaluateAny as EvaluateAny
from tasks.report import Report as Report

# isort: on
# The imports above are in the order of a run. A stage in another file of this folder comes last.
for _module in iter_modules(__path__):
    import_module(f"tasks.{_module.name}")


def _run(task: StageTask) -> None:
    from pipeline.engine.job import run_stage_of  # which only a run needs

    run_stage_of(task)


StageTask.runner = _run
