"""Which stages retrieval reads: those of the graph, or those of the hypergraph."""

from __future__ import annotations

from tasks.base import StageTask
from tasks.corpus import Corpus
from tasks.graph import Graph
from tasks.hypergraph import Hypergraph, HyperIndex
from tasks.index import Index


def knowledge(task: StageTask) -> dict[str, StageTask]:
    """The tasks called corpus, graph and index by whatever retrieves with this configuration."""
    hyper = task.settings.retrieval.over_hypergraph
    return {
        "corpus": task.clone(Corpus),
        "graph": task.clone(Hypergraph if hyper else Graph),
        "index": task.clone(HyperIndex if hyper else Index),
    }
