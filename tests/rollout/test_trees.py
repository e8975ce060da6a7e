"""Samples of a question as the leaves of a tree: its shape, seeds, tokens, failures and budgets."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.records import Trajectory
from pipeline.grammars import grammar
from pipeline.grammars.tokens import control_tokens
from pipeline.rollout.conversations import ToolConversations
from pipeline.rollout.trees import Tree, branches, generated_tokens
from pipeline.rollout.turns import turns_of
from tests.conversations.test_chat_template import MODES, opened
from tests.llm.scripted_engine import ScriptedEngine
from tests.rollout.rolled_out import rolled_out
from tests.rollout.test_conversations import call
from tests.rollout.test_sampler import ANSWER, TEARAG, TOKENIZER, Documents, Outage, question

SUBQUERIES = ("who?", "where?", "when?", "why?")
EVEN = Tree(branch=2)


class CountingEngine(ScriptedEngine):
    """Keeps the seeds of the requests, and counts the tokens that it generates."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.seeds: list[int] = []
        self.tokens = 0

    def add(self, request: Any) -> None:
        self.seeds.append(request.seed)
        super().add(request)

    def step(self) -> Any:
        results = super().step()
        self.tokens += sum(len(result.token_ids) for result in results)
        return results


def step(number: int, subquery: str) -> str:
    summary = "Summary: so.\n" if number > 1 else ""
    return f"{summary}Step {number}:\nImportant entity: A\nSubquery: {subquery}\n<Reference>\n"


def searches(count: int) -> Any:
    """A policy that answers after ``count`` searches, for subqueries by the seed."""

    def script(prompt: str, request: Any) -> str:
        done = prompt.count("</Reference>")
        return step(done + 1, SUBQUERIES[request.seed % 4]) if done < count else ANSWER

    return script


def wavering(prompt: str, request: Any) -> str:
    """Searches, answers or writes something malformed, by the seed."""
    done = prompt.count("</Reference>")
    if request.seed % 5 < 2 and done:
        return ANSWER
    return step(done + 1, SUBQUERIES[request.seed % 4]) if request.seed % 5 < 4 else "no\n"


def tree(
    script: Any, samples: int, shape: Tree | None = EVEN, **changes: Any
) -> tuple[list[Trajectory], CountingEngine]:
    """The trajectories of one question in the order of samples, and the engine."""
    options = {"grammar": TEARAG, "retriever": Documents(), **changes}
    engine = CountingEngine(script, TOKENIZER, max_num_seqs=options.pop("max_num_seqs", 256))
    trajectories = rolled_out([question()], engine=engine, samples=samples, tree=shape, **options)
    return sorted(trajectories, key=lambda one: one.sample), engine


def shared_turns(one: Trajectory, other: Trajectory) -> int:
    """The number of first turns with the same tokens."""
    ends = [turn.tokens[1] for turn in turns_of(one)]
    return sum(one.token_ids[:end] == other.token_ids[:end] for end in ends)


def test_two_ways_after_each_step_give_eight_samples_by_fourteen_segments() -> None:
    """2 first steps, 2 second steps after each, and 2 answers after each of the 4."""
    documents = Documents()
    trajectories, engine = tree(searches(2), 8, retriever=documents)
    assert [trajectory.sample for trajectory in trajectories] == list(range(8))
    assert all(trajectory.format_ok and len(trajectory.steps) == 2 for trajectory in trajectories)
    assert len(engine.seeds) == len(set(engine.seeds)) == 2 + 4 + 8
    assert sum(map(len, documents.batches)) == 2 + 4
    for number, (one, other) in enumerate(pairwise(trajectories)):
        assert shared_turns(one, other) >= (2, 1, 2, 0, 2, 1, 2)[number]
    independent, _ = tree(searches(2), 8, None)
    assert [one.seed for one in trajectories] == [one.seed for one in independent]


def test_samples_are_shared_evenly() -> None:
    assert branches(0, 8, 2) == [(0, 4), (4, 4)]
    assert branches(3, 5, 3) == [(3, 1), (4, 2), (6, 2)]
    assert branches(7, 2, 3) == [(7, 1), (8, 1)]


def test_a_sample_that_ends_early_leaves_its_place_to_a_sibling() -> None:
    """Both first steps answer next, so each of their 4 samples is a separate answer."""
    trajectories, engine = tree(searches(1), 8)
    assert len(engine.seeds) == len(set(engine.seeds)) == 2 + 8
    assert {len(turns_of(trajectory)) for trajectory in trajectories} == {2}


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    samples=st.integers(3, 13),
    shape=st.builds(Tree, st.integers(2, 4), st.booleans()),
    changes=st.fixed_dictionaries(
        {"max_total_tokens": st.sampled_from([40, 120, 300, 4096])},
        optional={
            "max_steps": st.integers(1, 3),
            "max_segment_tokens": st.just(15),
            "single_retrieval": st.booleans(),
        },
    ),
)
def test_every_sample_exists_once_and_every_generated_token_counts_once(
    seed: int, samples: int, shape: Tree, changes: dict[str, Any]
) -> None:
    trajectories, engine = tree(
        wavering, samples, shape, seed=seed, retriever=Outage("why?"), **changes
    )
    assert [trajectory.sample for trajectory in trajectories] == list(range(samples))
    assert len(set(engine.seeds)) == len(engine.seeds)
    assert generated_tokens(trajectories, shape) == engine.tokens
    assert engine.tokens <= generated_tokens(trajectories, None)
    others, _ = tree(
        wavering, samples, shape, seed=seed, retriever=Outage("why?"), in_flight=2,
        max_num_seqs=1, **changes,
    )  # fmt: skip
    assert others == trajectories


def test_a_pruned_tree_goes_on_from_the_best_step() -> None:
    """Two steps with two samples each at each of three depths; a first step "why?" is right."""

    def script(prompt: str, request: Any) -> str:
        done = prompt.count("</Reference>")
        if done < 3:
            return step(done + 1, ("why?", "who?")[request.seed % 2])
        right = "Subquery: why?" in prompt.partition("</Reference>")[0]
        return ANSWER if right else ANSWER.replace("Rome", "Oslo")

    firsts = set()
    for seed in range(20):
        trajectories, engine = tree(script, 8, Tree(branch=2, prune=True), seed=seed)
        first = [trajectory.steps[0].subquery for trajectory in trajectories]
        assert first[2:4] == first[:2]
        assert first[4:] == ["why?" if "why?" in first else "who?"] * 4
        best = first.index(first[4])
        for sample, parent, turns in ((2, 0, 1), (3, 1, 1), (4, best, 2), (5, best + 2, 2)):
            assert shared_turns(trajectories[sample], trajectories[parent]) >= turns
        assert len(engine.seeds) == len(set(engine.seeds)) == 2 * (4 + 3 + 2 + 1)
        firsts.add(tuple(first[:2]))
    assert len(firsts) == 4  # the best step is the first, the second, either or none


def test_a_pruned_tree_of_answers_has_further_ones_from_the_same_state() -> None:
    trajectories, engine = tree(searches(1), 8, Tree(branch=2, prune=True))
    assert len(engine.seeds) == 2 + 8
    assert {len(turns_of(trajectory)) for trajectory in trajectories} == {2}


def test_a_failed_retrieval_is_one_sample_and_the_others_branch_off_before_it() -> None:
    trajectories, _ = tree(searches(2), 12, retriever=Outage("why?"), seed=1)
    stops = Counter(trajectory.stop for trajectory in trajectories)
    assert set(stops) == {"retrieval_error", "answer"}
    assert all(
        trajectory.output.rstrip().endswith("Subquery: why?\n<Reference>")
        for trajectory in trajectories
        if trajectory.stop == "retrieval_error"
    )


@pytest.mark.parametrize("changes", [{"max_total_tokens": 0}, {"single_retrieval": True}])
def test_what_ends_before_the_first_turn_ends_for_all_samples(changes: dict[str, Any]) -> None:
    trajectories, engine = tree(searches(2), 5, retriever=Outage("Q0?"), **changes)
    expected = "retrieval_error" if "single_retrieval" in changes else "max_tokens"
    assert [(one.sample, one.stop) for one in trajectories] == [(n, expected) for n in range(5)]
    assert generated_tokens(trajectories, EVEN) == engine.tokens == 0


@pytest.mark.parametrize("mode", ["qwen3-patched", "llama-3.1"])
def test_conversations_with_tool_calls_branch_too(mode: str, real_data: Path) -> None:
    tokenizer, thinking = opened(real_data, mode).tokenizer, MODES[mode][2]
    form = grammar("tearag", special_tokens=control_tokens(tokenizer))

    def script(prompt: str, request: Any) -> str:
        searched = "on " in prompt.rpartition("Q0?")[2]
        return "Answer: Rome" if searched else call(mode, SUBQUERIES[request.seed % 4])

    engine = CountingEngine(script, tokenizer)
    trajectories = rolled_out(
        [question()], engine=engine, grammar=form, retriever=Documents(), samples=5, tree=EVEN,
        conversations=ToolConversations(tokenizer, form, thinking=thinking),
    )  # fmt: skip
    trajectories.sort(key=lambda one: one.sample)
    assert [one.sample for one in trajectories] == list(range(5))
    assert all(one.format_ok and len(json.loads(one.messages)) == 5 for one in trajectories)
    assert len(engine.seeds) == 2 + 5
    assert generated_tokens(trajectories, EVEN) == engine.tokens
