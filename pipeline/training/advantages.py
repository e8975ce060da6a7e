"""Advantages: a weight per token for policy-gradient training (ProGraph-R1 3.3, eq. 5, 16).

Input: scored trajectories. Output: trajectories with ids, a mask over model-written tokens, the
log-probabilities at sampling time, and an advantage per token. The trajectories are read twice,
once for the rewards and once for the tokens, so that they are never in memory together.

- Per step: the reward R_t is standardized by the mean and the standard deviation over all steps of
  all trajectories of its question. Every model-written token of step t has this advantage.
- Per trajectory (for HiPRAG's reward): the total reward is standardized over the trajectories of
  the question, and every model-written token has this advantage.

Questions with equal rewards give no gradient and are left out. Trajectories without rewards (a
retrieval call failed) or without model-written tokens are left out as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pipeline.core.errors import TrainingError
from pipeline.core.records import Trajectory
from pipeline.llm.tokenizer import Tokenizer
from pipeline.llm.tokens import mismatch
from pipeline.rollout.turns import turns_of
from pipeline.training.checks import check_control_tokens, check_ids, checked_ids, of_record

Per = Literal["step", "trajectory"]
LARGEST_LOGPROB = 1e-3  # nats: above 0 by rounding only
LEAST_SPREAD = 1e-8  # standard deviation of a question's rewards below which they count as equal


@dataclass(frozen=True, slots=True)
class EncodedTrajectory:
    """One trajectory: ``prompt_ids`` [P]; completion ids, mask, log-probabilities, advantages [T].

    ``mask`` is 1 on model-written tokens. ``old_logprobs`` (nats, at sampling time) and
    ``advantages`` are 0 elsewhere. Trajectories of the same ``question`` are shuffled as a unit.
    """

    id: str
    question: str
    prompt_ids: list[int]
    completion_ids: list[int]
    mask: list[int]
    old_logprobs: list[float]
    advantages: list[float]

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)

    @property
    def tokens(self) -> int:
        return self.length

    @property
    def trained_tokens(self) -> int:
        return sum(self.mask)


def standardized_rewards(trajectories: Iterable[Trajectory], per: Per) -> list[list[float]]:
    """The advantages of each trajectory, one per turn or a single one; empty if it is left out.

    Rewards are standardized over the trajectories of each question. Raises TrainingError when a
    trajectory lacks the rewards that ``per`` needs, or one is not finite.
    """
    values: list[list[float]] = []
    questions: dict[str, list[int]] = {}
    for position, trajectory in enumerate(trajectories):
        written = any(writer == "model" for *_, writer in trajectory.token_spans)
        used = trajectory.rewards is not None and written
        with of_record(f"record {position + 1}, trajectory {trajectory.trajectory_id}"):
            values.append(_rewards(trajectory, per) if used else [])
        questions.setdefault(trajectory.question_id, []).append(position)
    for positions in questions.values():
        rewards = np.concatenate([values[position] for position in positions])
        spread = float(rewards.std()) if len(rewards) else 0.0
        mean = float(rewards.mean()) if len(rewards) else 0.0
        for position in positions:
            if spread < LEAST_SPREAD:
                values[position] = []
            else:
                values[position] = [(reward - mean) / spread for reward in values[position]]
    return values


def encode_trajectories(
    tokenizer: Tokenizer,
    trajectories: Iterable[Trajectory],
    advantages: Sequence[Sequence[float]],
    vocabulary: int | None = None,
) -> Iterator[EncodedTrajectory]:
    """The trajectories with advantages, encoded, in order.

    ``advantages`` belong to the same trajectories in the same order, and ``vocabulary`` is the
    number of token ids of the model (None: unknown). Raises TrainingError when a trajectory has an
    id that is not in the vocabulary, lacks the log-probability of a model-written token, or has
    ids, spans and text that disagree.
    """
    for number, (trajectory, turn_advantages) in enumerate(
        zip(trajectories, advantages, strict=True), start=1
    ):
        if turn_advantages:
            with of_record(f"record {number}, trajectory {trajectory.trajectory_id}"):
                encoded = _encoded(tokenizer, trajectory, turn_advantages, vocabulary)
            yield encoded


def _rewards(trajectory: Trajectory, per: Per) -> list[float]:
    """The reward of each turn, or a single reward for all turns.

    Raises TrainingError when the trajectory lacks the rewards that ``per`` needs, or one is not
    finite.
    """
    terms = trajectory.rewards or {}
    if per == "trajectory":
        if not isinstance(terms.get("total"), int | float):
            raise TrainingError("no total reward; score it again")
        rewards = [float(terms["total"])]
    else:
        try:
            rewards = [float(step["total"]) for step in terms.get("steps", [])]
        except (TypeError, KeyError):
            rewards = []
        turns = len(turns_of(trajectory))
        if len(rewards) != turns:
            raise TrainingError(
                f"{len(rewards)} step rewards for {turns} turns; score it with grammar prograph, "
                "or set grpo.per: trajectory"
            )
    if not all(map(math.isfinite, rewards)):
        raise TrainingError(f"expected finite rewards, and found {rewards}; score it again")
    return rewards


def _encoded(
    tokenizer: Tokenizer,
    trajectory: Trajectory,
    turn_advantages: Sequence[float],
    vocabulary: int | None,
) -> EncodedTrajectory:
    ids, remedy = trajectory.token_ids, "sample it again"
    with of_record("prompt"):
        check_ids(trajectory.prompt_ids, vocabulary, remedy)
    check_ids(ids, vocabulary, remedy)
    problem = mismatch(tokenizer, trajectory.output, trajectory.spans, ids, trajectory.token_spans)
    if problem is not None:
        raise TrainingError(f"{problem}; {remedy}")
    if len(trajectory.logprobs) != len(ids):
        raise TrainingError(
            f"{len(trajectory.logprobs)} log-probabilities for {len(ids)} ids; {remedy}"
        )
    mask, old_logprobs, advantages = [0] * len(ids), [0.0] * len(ids), [0.0] * len(ids)
    turns = turns_of(trajectory)
    if len(turn_advantages) == 1:
        turn_advantages = list(turn_advantages) * len(turns)
    for turn, advantage in zip(turns, turn_advantages, strict=True):
        for at in range(*turn.tokens):
            logprob = trajectory.logprobs[at]
            if logprob is None or not -math.inf < logprob <= LARGEST_LOGPROB:
                raise TrainingError(
                    f"token {at} is model-written and has the log-probability {logprob}; expected "
                    f"a finite number of at most 0; {remedy}"
                )
            mask[at], old_logprobs[at], advantages[at] = 1, logprob, advantage
    checked = checked_ids(ids, trajectory.token_spans, sampled=True)
    check_control_tokens(tokenizer, trajectory.prompt_ids, checked)
    return EncodedTrajectory(
        trajectory.trajectory_id, trajectory.question_id, trajectory.prompt_ids, ids,
        mask, old_logprobs, advantages,
    )  # fmt: skip
