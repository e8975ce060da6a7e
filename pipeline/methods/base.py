"""The interface of a method: every package beside this module defines one `Method`.

Stages get it from `pipeline.methods.method` and do not compare method names. Names, grammars and
the facts that decide fingerprints are in `pipeline.core.methods`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Protocol,
    get_args,
    get_origin,
    get_type_hints,
)

from pipeline.config.policy import Rewards
from pipeline.core.answer_metrics import CoverMatch
from pipeline.core.records import Step, Trajectory
from pipeline.core.verdicts import Verdict
from pipeline.training.sft_data.steps import Fact, Hop, StepOptions

if TYPE_CHECKING:
    from pipeline.core.similarity import Similarity
    from pipeline.methods.prograph.structure import EntitySource
    from pipeline.pairs.candidates import CandidateTerms

Scorer = Callable[
    [Sequence[Trajectory], Sequence[Sequence[Verdict]] | None], Sequence[Mapping[str, Any]]
]
"""Reward terms of every trajectory, in order, from trajectories and verdicts on their steps."""


class ScoreInputs(Protocol):
    """Models and tables that a scorer can request; each is opened by its method.

    ``cem`` is the setting ``evaluation.cem``.
    """

    @property
    def cem(self) -> CoverMatch: ...

    def similarity(self) -> Similarity:
        """The similarity model of the rewards."""
        ...

    def entities(self) -> EntitySource:
        """The entities of texts and retrieved items."""
        ...

    def state_values(
        self, trajectories: Sequence[Trajectory], continuations: int
    ) -> list[list[float]]:
        """Monte Carlo value estimates before every turn of every trajectory and at its end."""
        ...


StepBuilder = Callable[[Hop, Sequence[Fact], random.Random, StepOptions], Step | None]
"""The step of a hop, or None with ``hop.fault`` set to the reason why there is none."""


@dataclass(frozen=True)
class Method:
    """The parts of a method: functions of records, and texts for report and dataset card.

    Attributes:
        scorer: builds the scorer from the block ``rewards``.
        terms: the reward terms of a trajectory, a `TypedDict`, whose keys become columns. A term
            with a title in the report is ``Annotated`` with it. The terms of single steps are the
            `TypedDict` in its list ``steps``.
        candidate_terms: the values by which pairs are selected, from reward terms; None for another
            reward.
        selection: how pairs are selected, the end of a sentence on the dataset card.
        build_step: builds a cold-start step.
        weights: settings in the method's block of ``rewards`` that only combine stored terms.
        combined: all reward terms of a trajectory with other weights, from its terms and its hop.
            Raises InputError for a term that was not measured.
        control: settings with which a run trains with the outcome and format rewards alone.
        turns: the steps of a cold-start example as its grammar renders them.
        whole_shard: whether all trajectories of a shard are scored in one call instead of batch by
            batch.
        record_needs: what ``steep score`` needs of a record besides its answers.
    """

    scorer: Callable[[Rewards, ScoreInputs], Scorer]
    terms: type
    candidate_terms: Callable[[Mapping[str, Any]], CandidateTerms | None]
    selection: str
    build_step: StepBuilder
    weights: tuple[str, ...]
    combined: Callable[[Mapping[str, Any], str, Rewards], Mapping[str, Any]]
    control: Mapping[str, Any] = field(default_factory=dict)
    turns: Callable[[Sequence[Step]], Sequence[Step]] = list
    whole_shard: bool = False
    record_needs: Literal["evidence", "verdicts", "turns", "answer"] = "answer"

    @property
    def reward_titles(self) -> dict[str, str]:
        """Titles in the report of the terms of a trajectory, by term."""
        return _titles(self.terms)

    @property
    def step_titles(self) -> dict[str, str]:
        """Titles in the report of the terms of a single step, by term; empty without any."""
        steps = get_type_hints(self.terms).get("steps")
        return _titles(get_args(steps)[0]) if steps else {}


def _titles(terms: type) -> dict[str, str]:
    hints = get_type_hints(terms, include_extras=True).items()
    return {term: hint.__metadata__[0] for term, hint in hints if get_origin(hint) is Annotated}
