"""The policy's likelihood of the gold answer after every step (IGPO, arXiv 2510.14967).

Input: sampled trajectories with their rewards, and the policy that sampled them. Output: the same
rewards with the mean log-probability of a gold answer's tokens, in nats, as if the policy answered
after a step. IGPO rewards a turn by the increase. Of several gold answers the first is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pipeline.config.policy import Prompt
from pipeline.core.errors import InputError
from pipeline.core.records import Step, Trajectory, Writer
from pipeline.core.spans import common_length
from pipeline.llm.tokenizer import Tokenizer
from pipeline.llm.tokens import observation_ids, prompt_ids
from pipeline.rollout.grammars.base import Grammar

if TYPE_CHECKING:
    from pipeline.llm.transformers_engine import TransformersEngine

Rewarded = list[tuple[Trajectory, dict[str, Any]]]
LIKELIHOOD = "likelihood"


class GoldLikelihood:
    """Gold answers under the policy that ``engine`` holds, which writes in ``grammar``."""

    def __init__(
        self, engine: TransformersEngine, tokenizer: Tokenizer, grammar: Grammar, prompt: Prompt
    ) -> None:
        self._engine, self._tokenizer, self._grammar = engine, tokenizer, grammar
        self._prompt = prompt

    def of(self, cases: Iterable[tuple[Trajectory, Sequence[Step]]]) -> list[float]:
        """Mean log-probability (nats per token) of the gold answer after the steps of each case.

        Raises InputError for a conversation.
        """
        values = self._engine.logprobs([self._encoded(*case) for case in cases])
        return [sum(row) / len(row) for row in values]

    def _encoded(self, trajectory: Trajectory, steps: Sequence[Step]) -> tuple[list[int], int]:
        """Token ids from the prompt to the end of the gold answer, and the number of its tokens."""
        if trajectory.messages:
            raise InputError(
                f"trajectory {trajectory.trajectory_id} is a conversation; the likelihood of the "
                "gold answer is measured in the format tags alone"
            )
        gold = self._grammar.clean(trajectory.answers[0])
        text, spans = self._grammar.render(steps, gold)
        # Not by a search: "a" is in a closing tag too.
        end = common_length(text, self._grammar.render(steps, f"{gold}§")[0])
        ids = prompt_ids(self._tokenizer, self._prompt.messages(trajectory.question))
        for first, last, writer in spans[:-1]:
            ids += self._ids(text[first:last], writer)
        start = spans[-1][0]
        before, whole = (self._ids(text[start:at]) for at in (end - len(gold), end))
        return [*ids, *whole], len(whole) - common_length(before, whole)

    def _ids(self, text: str, writer: Writer = "model") -> list[int]:
        if writer == "observation":
            return observation_ids(self._tokenizer, text)
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])


def add_likelihood(rewarded: Rewarded, likelihood: GoldLikelihood) -> None:
    """Add the likelihood after the last step, and to each step the increase that it brings."""
    cases = [
        (trajectory, trajectory.steps[:count])
        for trajectory, _ in rewarded
        for count in range(len(trajectory.steps) + 1)
    ]
    values = iter(likelihood.of(cases))
    for trajectory, rewards in rewarded:
        own = [next(values) for _ in range(len(trajectory.steps) + 1)]
        rewards[LIKELIHOOD] = own[-1]
        add_to_steps(rewards, LIKELIHOOD, [after - before for before, after in pairwise(own)])


def add_to_steps(rewards: dict[str, Any], term: str, values: Sequence[float | None]) -> None:
    """Add a term of every step to the terms of steps among the rewards; None is not measured."""
    steps = rewards["steps"] = [dict(terms) for terms in rewards.get("steps") or []]
    steps += [{} for _ in range(len(values) - len(steps))]
    for terms, value in zip(steps, values, strict=False):
        terms[term] = value
