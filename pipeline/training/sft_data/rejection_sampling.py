"""Supervised examples by rejection sampling: sampled trajectories that reach a right answer.

Input: trajectories of one policy, several for each question. Output: training and test examples
with the ids and spans as sampled, and counts of the kept and rejected trajectories. A trajectory is
kept if its answer is right and its format holds. As in rejection-sampling fine-tuning (Yuan et al.,
arXiv 2308.01825), trajectories of a question with the same path (the sequence of their queries)
count once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipeline.config.policy import RejectionSampling
from pipeline.core.answer_metrics import f1
from pipeline.core.errors import InputError
from pipeline.core.record_io import iterate_records
from pipeline.core.records import Message, Question, SftExample, Trajectory
from pipeline.core.text import tokenize
from pipeline.rollout.conversations.messages import prompt_and_turns, recorded

KEPT = "kept"
TEST_SHARE = 0.05  # of the questions, held out for the loss
TEACHER = "sft_data.rejection_sampling.teacher"
OUTCOMES = (
    KEPT, "wrong answer", "malformed", "no end", "retrieval failed", "repeated path",
    "beyond limit",
)  # fmt: skip


@dataclass
class Kept:
    """Kept trajectories in order, and for each data set the number of each outcome.

    ``answered`` counts for each data set the questions with a kept trajectory.
    """

    trajectories: list[Trajectory] = field(default_factory=list)
    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    answered: Counter[str] = field(default_factory=Counter)
    policies: set[str] = field(default_factory=set)

    def table(self) -> list[dict[str, str | int | float]]:
        """A row of counts for each data set; ``rate`` is the share of kept trajectories."""
        return [
            {
                "dataset": name,
                "trajectories": outcomes.total(),
                **{outcome: outcomes[outcome] for outcome in OUTCOMES},
                "rate": outcomes[KEPT] / outcomes.total(),
                "answered questions": self.answered[name],
            }
            for name, outcomes in self.outcomes.items()
        ]


def of_file(
    path: Path, questions: Sequence[Question], grammar: str, form: str, others: Counter[str]
) -> Iterator[Trajectory]:
    """The trajectories of a file with a question of ``questions``, by its words.

    They get the question's id, data set and gold answers, and lose their token ids, which may be
    of another tokenizer. ``others`` counts other questions. Raises InputError for a malformed
    record, and for another grammar or format than the configured ones.
    """
    by_words = {tuple(tokenize(question.question)): question for question in questions}
    for number, one in enumerate(iterate_records(path, Trajectory), start=1):
        if (one.grammar, one.format) != (grammar, form):
            problem = (
                f"a trajectory of grammar {one.grammar} in format {one.format}; grammar is "
                f"{grammar} and format is {form}; correct them, or {TEACHER}"
            )
            raise InputError.at(path, problem, number)
        question = by_words.get(tuple(tokenize(one.question)))
        if question is None:
            others["not a question of data.sft"] += 1
            continue
        yield replace(
            one, question_id=question.question_id, dataset=question.dataset,
            answers=question.answers, prompt_ids=[], token_ids=[], token_spans=[],
        )  # fmt: skip


def keep(trajectories: Iterable[Trajectory], settings: RejectionSampling) -> Kept:
    """Keep the trajectories that are right, well-formed and not repeated, in their order."""
    kept = Kept()
    paths: dict[str, set[tuple[object, ...]]] = {}
    for trajectory in trajectories:
        seen = paths.setdefault(trajectory.question_id, set())
        outcome = _outcome(trajectory, settings, seen)
        kept.outcomes.setdefault(trajectory.dataset, Counter())[outcome] += 1
        kept.policies.add(trajectory.policy)
        if outcome == KEPT:
            kept.answered[trajectory.dataset] += not seen
            seen.add(path(trajectory))
            kept.trajectories.append(trajectory)
    return kept


def _outcome(
    trajectory: Trajectory, settings: RejectionSampling, seen: set[tuple[object, ...]]
) -> str:
    if trajectory.stop == "retrieval_error":
        return "retrieval failed"
    if trajectory.stop in ("max_steps", "max_tokens"):
        return "no end"
    if not trajectory.format_ok:
        return "malformed"
    if f1(trajectory.answer, trajectory.answers) < settings.min_f1:
        return "wrong answer"
    if path(trajectory) in seen:
        return "repeated path"
    return KEPT if len(seen) < settings.per_question else "beyond limit"


def path(trajectory: Trajectory) -> tuple[object, ...]:
    """The words of the query of every step; a step without a search has no words."""
    return tuple(tuple(tokenize(step.asked or "")) for step in trajectory.steps)


def split(
    trajectories: Sequence[Trajectory], test_share: float, seed: int
) -> tuple[list[Trajectory], list[Trajectory]]:
    """Training and test trajectories, shuffled; a question is on one side.

    The test gets ``test_share`` of the questions, rounded down.
    """
    rng = random.Random(f"rejection sampling:{seed}")
    questions = list(dict.fromkeys(trajectory.question_id for trajectory in trajectories))
    rng.shuffle(questions)
    held_out = set(questions[: int(test_share * len(questions))])
    shuffled = rng.sample(trajectories, len(trajectories))
    return (
        [trajectory for trajectory in shuffled if trajectory.question_id not in held_out],
        [trajectory for trajectory in shuffled if trajectory.question_id in held_out],
    )


def example(trajectory: Trajectory, prompt: list[Message], tools: str | None) -> SftExample:
    """The example that trains on a trajectory: on exactly its ids if it has any.

    ``tools`` are the declared tools of a conversation, and None for a text.
    """
    made = SftExample(
        example_id=trajectory.trajectory_id,
        question_id=trajectory.question_id,
        hops=sum(not step.answers_only for step in trajectory.steps),
        prompt=prompt,
        completion=trajectory.output,
        spans=trajectory.spans,
        prompt_ids=trajectory.prompt_ids,
        token_ids=trajectory.token_ids,
        token_spans=trajectory.token_spans,
    )
    if tools is None or trajectory.token_ids:
        return made
    _, turns = prompt_and_turns(trajectory.messages)
    return replace(made, completion="", spans=[], messages=recorded(turns), tools=tools)
