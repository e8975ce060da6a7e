"""Pairs of candidates that have one reward (HiPRAG eq. 1), on scenarios walked by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.policy import Pairs
from pipeline.core.errors import InputError
from pipeline.pairs.select import BINS, Candidate, select


def candidate(
    name: str, reward: float, *, right: bool = True, well_formed: bool = True, **more
) -> Candidate:
    return Candidate(
        id=name, sample=int(name[-1]), hop="multi", format=float(well_formed), outcome=float(right),
        output=name, reward=reward, **more,
    )  # fmt: skip


def named(*candidates: Candidate, margin: float = 0.1):
    pairs, bins = select(candidates, Pairs(margin=margin))
    return [(pair.chosen.id, pair.rejected.id, pair.kind) for pair in pairs], bins


def test_a_right_trajectory_with_worse_decisions_and_a_wrong_one_are_both_rejected():
    pairs, bins = named(
        candidate("wrong0", 0.2, right=False),
        candidate("over1", 1.2),
        candidate("good2", 1.4),
        candidate("broken3", 0.8, well_formed=False),
    )
    assert pairs == [("good2", "over1", "margin"), ("good2", "wrong0", "easy")]
    assert bins == {
        "good2": "chosen",
        "over1": "rejected-margin",
        "wrong0": "rejected-easy",
        "broken3": "not-reached",
    }


def test_a_difference_below_the_margin_gives_no_pair():
    pairs, bins = named(candidate("good0", 1.4), candidate("good1", 1.35), margin=0.1)
    assert (pairs, bins) == ([], {"good0": "chosen-unpaired", "good1": "passed-over"})
    assert named(candidate("good0", 1.4), candidate("good1", 1.3), margin=0.1)[0] == [
        ("good0", "good1", "margin")
    ]


def test_wrong_decisions_are_not_crowded_out_by_misread_passages():
    pairs, _ = named(
        candidate("good0", 1.4, process=1.0),
        candidate("misread1", 0.2, right=False, process=1.0),
        candidate("guessed2", 0.2, right=False, process=0.5),
        candidate("guessed3", 0.0, right=False, well_formed=False, process=0.0),
    )
    assert pairs == [("good0", "guessed3", "format"), ("good0", "misread1", "easy")]


def test_partners_with_wrong_decisions_are_distributed_over_the_chosen_trajectories():
    candidates = [
        candidate("good0", 1.4, process=1.0),
        candidate("good1", 1.4, process=1.0),
        candidate("over2", 1.2, process=0.5),
        *(candidate(f"guessed{n}", 0.2, right=False, process=0.5) for n in (3, 4, 5, 6, 7)),
        *(candidate(f"misread{n}", 0.2, right=False, process=1.0) for n in (8, 9)),
    ]
    pairs, bins = select(candidates, Pairs(decisions=2))
    partners: dict[str, list[str]] = {}
    for pair in pairs:
        partners.setdefault(pair.chosen.id, []).append(pair.rejected.id)
    assert partners == {
        "good0": ["over2", "guessed3", "guessed5", "misread8"],
        "good1": ["guessed4", "guessed6", "misread9"],
    }
    assert bins["guessed7"] == "not-reached"


def test_a_trajectory_without_verdicts_is_not_rejected_for_its_decisions():
    pairs, bins = named(candidate("good0", 1.4), candidate("unknown1", 1.0, judged=False))
    assert (pairs, bins["unknown1"]) == ([], "passed-over")


def test_trajectories_scored_with_different_rewards_are_refused():
    other = Candidate(id="x1", sample=1, hop="multi", format=1.0, outcome=1.0, process=1.0)
    with pytest.raises(InputError, match="different rewards"):
        named(candidate("good0", 1.4), other)


candidates = st.lists(
    st.tuples(st.sampled_from([0.0, 0.2, 0.8, 1.0, 1.2, 1.3, 1.4]), st.booleans(), st.booleans()),
    min_size=1,
    max_size=10,
)


@given(candidates, st.sampled_from([1e-10, 0.05, 0.1, 0.3]), st.sampled_from([1, 2, 6]))
def test_pairs_of_any_rewards_keep_the_rules(rewards, margin, decisions):
    candidates = []
    for n, (reward, right, well_formed) in enumerate(rewards):
        bound = reward if right and well_formed else min(reward, 0.8)
        candidates.append(candidate(f"p{n}", bound, right=right, well_formed=well_formed))
    pairs, bins = select(candidates, Pairs(margin=margin, decisions=decisions))
    assert set(bins) == {candidate.id for candidate in candidates}
    assert set(bins.values()) <= set(BINS)
    chosen = {pair.chosen.id for pair in pairs}
    assert chosen == {name for name, bin in bins.items() if bin == "chosen"}
    rejected = [pair.rejected.id for pair in pairs]
    assert len(set(rejected)) == len(rejected)
    assert not chosen & set(rejected)
    for pair in pairs:
        assert pair.chosen.format == pair.chosen.outcome == 1
        assert pair.chosen.total - pair.rejected.total >= max(margin, 2e-9) - 1e-9
        assert all(
            pair.chosen.total >= candidate.total
            for candidate in candidates
            if candidate.format * candidate.outcome
        )
        assert (pair.kind == "margin") == (pair.rejected.format * pair.rejected.outcome == 1)
