"""The registry of methods: every entry is complete, and no other code compares method names."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.policy import Rewards
from pipeline.core.methods import METHODS
from pipeline.core.records import ContextItem, Step, Trajectory
from pipeline.core.similarity import Similarity, lexical
from pipeline.core.verdicts import Verdict
from pipeline.methods import candidate_terms, method
from pipeline.methods.prograph.reward import step_rewards
from pipeline.methods.prograph.structure import Structure
from pipeline.rollout.grammars import grammar

ROOT = Path(__file__).resolve().parents[2]
# Modules in which a method name may stand, besides the modules called after a method.
MAY_NAME_METHODS = {
    "pipeline/core/methods.py": "the registry",
    "pipeline/methods/advice.py": "which method fits the questions that a user has",
    "pipeline/cli/own.py": "the shipped configuration of each method, for `steep init own`",
    "pipeline/rollout/imported_text.py": "layouts of other systems' outputs",
    "pipeline/config/knowledge.py": "prograph is also a variant of retrieval",
    "pipeline/knowledge/retrieval/hypergraph.py": "prograph is also a variant of retrieval",
    "pipeline/look/recall/compare.py": "prograph is also a variant of retrieval",
}


def test_method_names_stand_only_in_the_registry_and_the_modules_of_the_methods() -> None:
    own_modules = {name.replace("-", "_") for name in METHODS}
    named = {
        path.relative_to(ROOT).as_posix(): names
        for package in ("pipeline", "tasks")
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.parent.name not in own_modules
        and (names := {name for name in METHODS if f'"{name}"' in path.read_text("utf-8")})
    }
    assert named.keys() - MAY_NAME_METHODS.keys() == set(), named
    assert MAY_NAME_METHODS.keys() - named.keys() == set()  # the list of exceptions is not stale


@pytest.mark.parametrize("name", METHODS)
def test_an_entry_leads_to_its_grammar_and_says_whether_steps_have_rewards(name: str) -> None:
    assert grammar(name).name == name
    assert bool(method(name).step_titles) == METHODS[name].step_rewards
    assert method(name).step_titles.keys() <= method(name).reward_titles.keys()


def test_terms_are_recognized_by_their_keys_and_first_by_the_named_method() -> None:
    separate = {"format": 1, "outcome": 0.5, "process": 0.2}
    single = {"format": 1, "answer": 1, "total": 1.2, "n": 4, "n_corr": 2}
    by_total = {"format": 1, "outcome": 1, "process": 0.5, "reward": 1.2, "judged": True}
    assert candidate_terms(separate) == {**separate, "evidenced": True}
    assert candidate_terms(separate, "hiprag") == candidate_terms(separate)
    assert candidate_terms(single) == candidate_terms(single | separate, "hiprag") == by_total
    assert candidate_terms(single | separate, "tearag") == candidate_terms(separate)
    assert candidate_terms({"format": 1}) is None


CHANGED_WEIGHTS = {
    "tearag": {"consistency": 0.4, "subquery": 0.1, "context": 0.0, "summary": 0.25},
    "hiprag": {"format": 0.1, "process": 0.9, "penalise": "over", "unknown": "correct"},
    "prograph": {"progress": 2.0, "structure": 0.1},
    "search-r1": {"format": 0.7},
    "r1-searcher": {"format": 0.7},
}
BLOCKS = {"r1-searcher": "search_r1"}  # a method with the reward of another


class Inputs:
    """Inputs of a scorer that needs a similarity only."""

    cem = "words"

    def similarity(self) -> Similarity:
        return lexical


def scored(name: str, rewards: Rewards) -> dict[str, object]:
    """The terms of a trajectory of two steps, as the stage score computes them."""
    items = [ContextItem("chunk", "c", "Rome", "Rome is in Italy.", 0.5)]
    step = Step(entities=["Rome"], subquery="Where is Rome?", context=items, summary="In Italy.")
    record = Trajectory(
        "t", "q", "toy", "Where?", "multi", ["Italy"], ["Rome is in Italy", "Italy is big"], name, "",
        steps=[step, Step(subquery="?", search="s", conclusion="c")], answer="Italy", format_ok=name not in ("search-r1", "r1-searcher"),
    )  # fmt: skip
    if name == "prograph":
        turns = [Structure(0.5, 0.25), Structure(1.0, 0.0)]
        return dict(step_rewards(record, turns, [0.1, 0.4, 0.9], rewards.prograph))
    verdicts = [
        [Verdict("t", 0, "under", "no", "m", "k"), Verdict("t", 1, "over", "yes", "m", "k")]
    ]
    [terms] = method(name).scorer(rewards, Inputs())([record], verdicts)  # type: ignore[arg-type]
    return dict(terms)


@pytest.mark.parametrize("name", METHODS)
def test_stored_terms_with_other_weights_are_those_of_scoring_again(name: str) -> None:
    before = Rewards()
    block = {BLOCKS.get(name, name.replace("-", "_")): CHANGED_WEIGHTS[name]}
    after = Rewards.model_validate(block)
    stored, again = scored(name, before), scored(name, after)
    assert method(name).combined(stored, "multi", after) == again
    assert again["total"] != stored["total"]
    assert CHANGED_WEIGHTS[name].keys() == set(method(name).weights)
