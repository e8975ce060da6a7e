"""Information gain of a retrieval, against random passages (IG-Search, arXiv 2604.15148).

Input: as for `pipeline.evaluation.gold_likelihood`. Output: the same rewards with, for every step
that retrieved, the likelihood of the gold answer right after its passages minus its mean after the
passages of other questions (nats per token). What the policy wrote after the passages is left out,
since it may state the answer.
"""

from __future__ import annotations

import random
from dataclasses import replace

from pipeline.core.records import ContextItem, Step
from pipeline.evaluation.gold_likelihood import GoldLikelihood, Rewarded, add_to_steps

INFORMATION_GAIN = "information_gain"
DRAWS = 3  # retrievals of other questions in place of one


def add_information_gain(rewarded: Rewarded, likelihood: GoldLikelihood, seed: int) -> None:
    """Add the information gain to every step that retrieved; ``seed`` chooses the passages."""
    rng = random.Random(seed)
    retrieved = [
        (trajectory.question_id, step.context)
        for trajectory, _ in rewarded
        for step in trajectory.steps
        if step.context
    ]
    if len({question for question, _ in retrieved}) < 2:
        return
    cases = []
    for trajectory, _ in rewarded:
        for number, step in enumerate(trajectory.steps):
            if step.context:
                others = _others(retrieved, trajectory.question_id, rng)
                before = trajectory.steps[:number]
                cases += [
                    (trajectory, [*before, _seen(step, items)]) for items in (step.context, *others)
                ]
    values = iter(likelihood.of(cases))
    for trajectory, rewards in rewarded:
        gains = [
            next(values) - sum(next(values) for _ in range(DRAWS)) / DRAWS if step.context else None
            for step in trajectory.steps
        ]
        add_to_steps(rewards, INFORMATION_GAIN, gains)


def _others(
    retrieved: list[tuple[str, list[ContextItem]]], question: str, rng: random.Random
) -> list[list[ContextItem]]:
    found: list[list[ContextItem]] = []
    while len(found) < DRAWS:
        of, items = rng.choice(retrieved)
        if of != question:
            found.append(items)
    return found


def _seen(step: Step, items: list[ContextItem]) -> Step:
    return replace(step, context=items, summary="", conclusion="")
