"""Train and test examples from supervised trajectories (TeaRAG, arXiv 2511.05385, table 1).

Input: the steps of every question. Output: two disjoint lists of `Example`s with given numbers of
1- to 4-hop examples. Paper: train 2,700 / 1,800 / 1,800 / 1,057, test 300 / 200 / 200 / 118. A
1-hop example is one step of a longer question, or a single-hop question.

- Test questions are set aside first.
- A subquery of a test example never occurs in a 1-hop training example, nor the reverse.
- With too few trajectories, test and train shrink in proportion. The test never takes the last
  trajectory from training.

`check_examples` raises an InputError when there are too few examples to train on. It runs twice:
before models extract, select and rewrite, with the most that the gold paragraphs allow
(`check_supply`), and on the finished examples.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.config.policy import SftData
from pipeline.core.errors import InputError
from pipeline.core.records import Step
from pipeline.core.text import tokenize
from pipeline.training.sft_data.steps import Hop


@dataclass(frozen=True, slots=True)
class SupervisedTrajectory:
    """A question with one step per hop.

    Attributes:
        question_id: of the question.
        question: its text.
        answer: its answer.
        steps: one per hop; None for a hop whose step could not be built.
        answers: of each hop.
    """

    question_id: str
    question: str
    answer: str
    steps: tuple[Step | None, ...]
    answers: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether every hop has a step."""
        return None not in self.steps

    @property
    def uses_memory(self) -> bool:
        """Whether a step answers without a search (HiPRAG)."""
        return any(step and step.conclusion and step.search is None for step in self.steps)


@dataclass(frozen=True, slots=True)
class Example:
    """The contents of one SFT example, before a grammar renders them."""

    id: str
    question_id: str
    question: str
    steps: tuple[Step, ...]
    answer: str


def split(
    trajectories: Sequence[SupervisedTrajectory],
    sizes: Mapping[int, int],
    test_sizes: Mapping[int, int],
    seed: int,
) -> tuple[list[Example], list[Example]]:
    """Train and test examples, shuffled.

    ``sizes`` and ``test_sizes`` map a number of hops to the number of examples at most.
    """
    rng = random.Random(f"sft split:{seed}")
    train: list[Example] = []
    test: list[Example] = []
    train_side = [trajectory for trajectory in trajectories if not trajectory.complete]
    test_side: list[SupervisedTrajectory] = []
    complete = [trajectory for trajectory in trajectories if trajectory.complete]
    for hops in sorted({len(trajectory.steps) for trajectory in trajectories}):
        group = [trajectory for trajectory in complete if len(trajectory.steps) == hops]
        rng.shuffle(group)
        num_train, num_test = sizes.get(hops, 0), test_sizes.get(hops, 0)
        num_held_out = _num_held_out(len(group), num_test, num_train, singles=sizes.get(1, 0) > 0)
        test_side += group[:num_held_out]
        train_side += group[num_held_out:]
        if hops == 1:
            continue  # below, beside the steps of longer questions
        test += [_whole(trajectory) for trajectory in group[:num_held_out]]
        # Known facts are rare, and so are the steps that teach the policy not to search.
        preferred = sorted(group[num_held_out:], key=lambda one: not one.uses_memory)
        train += [_whole(trajectory) for trajectory in preferred[:num_train]]

    train_subqueries = _subqueries(train)
    test_singles = _singles(test_side, train_subqueries, rng)[: test_sizes.get(1, 0)]
    test_subqueries = _subqueries([*test, *test_singles])
    train += _singles(train_side, test_subqueries, rng)[: sizes.get(1, 0)]
    test += test_singles
    rng.shuffle(train)
    rng.shuffle(test)
    return train, test


def supply(trajectories: Sequence[SupervisedTrajectory]) -> dict[int, int]:
    """How many examples of each number of hops are available.

    Counts complete trajectories with two or more hops, and distinct steps for 1-hop examples.
    """
    available = Counter(
        len(trajectory.steps)
        for trajectory in trajectories
        if trajectory.complete and len(trajectory.steps) > 1
    )
    subqueries = {
        tuple(tokenize(step.subquery))
        for trajectory in trajectories
        for step in trajectory.steps
        if step is not None
    }
    return {1: len(subqueries), **available}


def _num_held_out(available: int, num_test: int, num_train: int, singles: bool) -> int:
    """How many of ``available`` trajectories go to the test.

    With too few, both sides shrink in proportion, rounded in favor of training. Training keeps at
    least one if it can use one, either whole or, with ``singles``, for its steps.
    """
    total = num_test + num_train
    held_out = num_test if available >= total else available * num_test // total
    num_kept = 1 if num_train or singles else 0
    return max(0, min(held_out, available - num_kept))


def _whole(trajectory: SupervisedTrajectory) -> Example:
    steps = tuple(step for step in trajectory.steps if step is not None)
    question_id = trajectory.question_id
    return Example(question_id, question_id, trajectory.question, steps, trajectory.answer)


def _subqueries(examples: Sequence[Example]) -> set[tuple[str, ...]]:
    """The tokenized subqueries of all steps."""
    return {tuple(tokenize(step.subquery)) for example in examples for step in example.steps}


def _singles(
    trajectories: Sequence[SupervisedTrajectory],
    forbidden: set[tuple[str, ...]],
    rng: random.Random,
) -> list[Example]:
    """Single-step examples in random order with distinct subqueries, none of them ``forbidden``."""
    seen = set(forbidden)
    examples = []
    for trajectory in trajectories:
        pairs = zip(trajectory.steps, trajectory.answers, strict=True)
        for number, (step, answer) in enumerate(pairs, 1):
            if step is None or (key := tuple(tokenize(step.subquery))) in seen:
                continue
            seen.add(key)
            question_id = trajectory.question_id
            examples.append(
                Example(f"{question_id}#{number}", question_id, step.subquery, (step,), answer)
            )
    rng.shuffle(examples)
    return examples


def check_supply(
    hops: Sequence[Sequence[Hop]], settings: SftData, *, refuse: bool = True
) -> dict[int, int]:
    """As `supply`, of the hops of every question, whose steps are not built yet.

    With ``refuse`` raises InputError for usable hops that give fewer examples than
    ``sft_data.min_share`` requires.
    """
    steps = [
        [None if hop.fault else Step(subquery=hop.question) for hop in of_question]
        for of_question in hops
    ]
    available = supply([SupervisedTrajectory("", "", "", tuple(some), ()) for some in steps])
    most = sum(min(size, available.get(hops, 0)) for hops, size in settings.sizes.items())
    if refuse:
        check_examples(most, available, settings, len(hops), count_faults(hops))
    return available


def count_faults(hops: Sequence[Sequence[Hop]]) -> Counter[str]:
    """Why questions and hops were left out, with their numbers."""
    faults = Counter(f"hop: {hop.fault}" for part in hops for hop in part if hop.fault is not None)
    if empty := sum(not part for part in hops):
        faults["question without decomposition"] = empty
    return faults


def check_examples(
    count: int,
    available: Mapping[int, int],
    settings: SftData,
    questions: int,
    faults: Counter[str],
) -> None:
    """Raise InputError for no training example, or fewer than ``sft_data.min_share`` of ``sizes``.

    Args:
        count: training examples.
        available: examples by number of hops, before the test is held out.
        settings: the numbers asked for.
        questions: number of questions.
        faults: why hops and examples were left out.
    """
    wanted = sum(settings.sizes.values())
    if not questions:
        raise InputError("sft-data: data.sft has no questions; add files of decomposed questions")
    if count and count >= settings.min_share * wanted:
        return
    requested = {
        hops: (settings.sizes.get(hops, 0), settings.test_sizes.get(hops, 0))
        for hops in sorted({*settings.sizes, *settings.test_sizes, *available})
    }
    counts = "; ".join(
        f"{hops}-hop: {train} + {test} requested, {available.get(hops, 0)} available"
        for hops, (train, test) in requested.items()
    )
    left_out = ", ".join(f"{reason}: {number}" for reason, number in faults.most_common())
    problem = (
        f"the {questions} questions of data.sft give {count} of the {wanted} training examples "
        f"that sft_data.sizes asks for, less than sft_data.min_share ({settings.min_share:g}) of "
        "them"
        if count
        else f"none of the {questions} questions of data.sft gives a training example"
    )
    raise InputError(
        f"sft-data: {problem}; "
        f"examples by hops (sft_data.sizes + sft_data.test_sizes): {counts}; "
        f"left out: {left_out or 'nothing'}; {_remedy(faults)}"
    )


def _remedy(faults: Counter[str]) -> str:
    missing = faults["hop: paragraph not in the corpus"]
    if missing and 2 * missing >= faults.total():
        return (
            "set sft_data.triplets: llm, which extracts from the questions' own paragraphs, or "
            "add the paragraphs to corpus.files"
        )
    return (
        "add questions with a decomposition, or with one hop and a gold passage, to data.sft, "
        "whose paragraphs are in corpus.files and whose answers are in these or, for grammars "
        "that show facts, in the facts of the graph; or lower sft_data.sizes, sft_data.test_sizes "
        "or sft_data.min_share"
    )
