"""The stages that retrieval reads: of the graph, or of the hypergraph."""

from __future__ import annotations

from tasks.base import StageTask
from tasks.corpus import Corpus
from tasks.graph import Graph
from tasks.hypergraph import Hypergraph
from tasks.index import HyperIndex, Index


def knowledge(task: StageTask) -> dict[str, StageTask]:
    """The inputs ``corpus``, ``graph`` and ``index`` of a stage that retrieves."""
    over_hypergraph = task.settings.retrieval.over_hypergraph
    return {
        "corpus": task.clone(Corpus),
        "graph": task.clone(Hypergraph if over_hypergraph else Graph),
        "index": task.clone(HyperIndex if over_hypergraph else Index),
    }


def searched(task: StageTask) -> dict[str, StageTask]:
    """The `knowledge` that roll-outs with the task's settings search; none without retrieval."""
    return {} if task.settings.retrieval.variant == "none" else knowledge(task)
