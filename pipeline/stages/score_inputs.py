"""Models and tables that the stage ``score`` opens for a method's scorer.

`StageInputs` implements `pipeline.methods.ScoreInputs` over the stage's input directories. TeaRAG
asks for the similarity model. ProGraph-R1 asks for the entities of the graph and for value
estimates: they come from continuing trajectories with the policy that sampled them. Continuations
are kept in ``<cache_dir>/progress.sqlite``; ``progress.json`` counts the continued states and their
tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pipeline.core.atomic import write_json
from pipeline.core.columns import Columns
from pipeline.core.content_cache import ContentCache, digest
from pipeline.core.records import Trajectory
from pipeline.core.similarity import Similarity
from pipeline.graph.adjacency import Adjacency
from pipeline.rewards.progress import ValueEstimator
from pipeline.rewards.structure import GraphEntities
from pipeline.rollout.partial import PartialTrajectory
from pipeline.run.context import StageContext
from pipeline.stages.resources import open_similarity, retrieval_identity

COST = "progress.json"
_SAMPLING = {
    "temperature", "top_p", "max_steps", "max_segment_tokens", "max_total_tokens",
    "max_context_tokens",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class StageInputs:
    """`pipeline.methods.ScoreInputs` of one run of the stage."""

    context: StageContext

    def similarity(self) -> Similarity:
        """The similarity model of ``rewards.reranker``, by default the retrieval's model."""
        config = self.context.config
        reranker = config.rewards.reranker or config.retrieval.reranker
        return open_similarity(config, reranker=reranker, work=self.context.work)

    def entities(self) -> GraphEntities:
        """The entities of the graph that retrieval searched."""
        return open_entities(self.context.inputs["graph"])

    def state_values(
        self, trajectories: Sequence[Trajectory], continuations: int
    ) -> list[list[float]]:
        """Monte Carlo value estimates of all states; writes their cost to ``progress.json``.

        Raises the errors of engines and retrievers.
        """
        from pipeline.stages.policy_rollout import PolicyContinuations

        context = self.context
        resume = PolicyContinuations(context, context.inputs["policy"])

        def shown(partial: Iterable[PartialTrajectory]) -> Iterator[Trajectory]:
            for number, trajectory in enumerate(resume(partial), start=1):
                context.progress.show(continuations=number)
                yield trajectory

        estimator = ValueEstimator(
            shown,
            ContentCache(Path(context.config.cache_dir) / "progress.sqlite"),
            continuation_identity(context, resume.policy),
            continuations,
            context.seed,
        )
        values = estimator.values(trajectories)
        cost = estimator.cost
        print(f"{cost.known:,} of {cost.distinct:,} distinct states had been continued before")
        # Cache hits are not recorded, because a rerun would have more.
        counts = {name: n for name, n in dataclasses.asdict(cost).items() if name != "known"}
        write_json(context.output / COST, counts)
        context.work["continuations"] = estimator.cost.continuations
        context.work["generated_tokens"] = estimator.cost.generated_tokens
        return values


def open_entities(graph: Path) -> GraphEntities:
    """V(.) of the directory of a graph or hypergraph."""
    names = Columns(graph / "entities.arrow", ("name",)).column(0)
    if not (graph / "hyperedges.arrow").exists():
        return GraphEntities(names)
    ids = Columns(graph / "hyperedges.arrow", ("id",)).column(0)
    rows = {name: row for row, name in enumerate(ids)}
    return GraphEntities(names, rows, Adjacency.load(graph / "members"))


def continuation_identity(context: StageContext, policy: str) -> str:
    """The digest of all settings that decide a continuation besides its state.

    ``policy`` is the policy's fingerprint.
    """
    config, key = context.config, context.key
    retrieval = "outside a store"
    if key is not None:
        retrieval = retrieval_identity(config, key.inputs, key.files.get("reranker")).fingerprint
    fields = _SAMPLING & config.sampling.deciding().keys()  # as in fingerprints
    sampling = config.sampling.model_dump_json(include=fields)
    engine = config.engine.model_dump_json(include={"kind", "dtype", "max_model_len"})
    grammar = f"{config.grammar} {config.retrieval.rounds}"
    return digest(policy, retrieval, sampling, engine, grammar, str(context.round)).hex()
