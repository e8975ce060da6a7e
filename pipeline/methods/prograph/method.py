"""The parts of ProGraph-R1, which has a reward for every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.config.policy import Rewards
from pipeline.core.errors import InputError
from pipeline.core.records import Trajectory
from pipeline.core.verdicts import Verdict
from pipeline.methods.base import Method, ScoreInputs, Scorer
from pipeline.methods.prograph.cold_start import build_step, turns
from pipeline.methods.prograph.reward import ProGraphRewards, combined, step_rewards
from pipeline.methods.prograph.structure import structure
from pipeline.pairs.candidates import by_total
from pipeline.rollout.turns import turns_of


def _combined(terms: Mapping[str, Any], _: str, settings: Rewards) -> Mapping[str, Any]:
    weights = settings.prograph
    if weights.progress and any(step["progress"] is None for step in terms["steps"]):
        raise InputError(
            "step progress was not measured with weight 0; run the stage score instead"
        )
    return combined(terms["format"], terms["answer"], terms["steps"], weights)


def _scorer(settings: Rewards, inputs: ScoreInputs) -> Scorer:
    weights = settings.prograph

    def scorer(
        trajectories: Sequence[Trajectory], verdicts: Sequence[Sequence[Verdict]] | None
    ) -> list[ProGraphRewards]:
        values: Sequence[list[float] | None] = [None] * len(trajectories)
        if weights.progress:
            values = inputs.state_values(trajectories, weights.continuations)
        entities = inputs.entities()
        return [
            step_rewards(one, structure(one, turns_of(one), entities), of_states, weights)
            for one, of_states in zip(trajectories, values, strict=True)
        ]

    return scorer


METHOD = Method(
    scorer=_scorer,
    terms=ProGraphRewards,
    candidate_terms=by_total,
    selection="by a margin of\nProGraph-R1's mean step reward (eq. 15)",
    build_step=build_step,
    weights=("progress", "structure"),
    combined=_combined,
    control=dict.fromkeys(("rewards.prograph.progress", "rewards.prograph.structure"), 0)
    | {"grpo.per": "trajectory"},
    turns=turns,
    whole_shard=True,
    record_needs="turns",
)
