"""Eq. 1 of HiPRAG, computed by hand, with unknown and missing verdicts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.policy import HiPragReward
from pipeline.core.errors import InputError
from pipeline.core.records import Step, Trajectory
from pipeline.methods.hiprag.reward import score
from tests.smallest import small_trajectory

SEARCH, FROM_MEMORY = Step(search="q", conclusion="c"), Step(conclusion="c")


def trajectory(steps, answer="in Rome, Italy", format_ok=True) -> Trajectory:
    return small_trajectory(
        answers=["Rome"], grammar="hiprag", steps=list(steps), answer=answer, format_ok=format_ok
    )


def terms(steps, verdicts, coefficients=None, **changes):
    options = [] if coefficients is None else [coefficients]
    [rewards] = score([trajectory(steps, **changes)], [verdicts], *options)
    return rewards


def test_the_bonus_is_the_share_of_correct_search_decisions():
    rewards = terms([SEARCH, SEARCH, FROM_MEMORY, FROM_MEMORY], ["no", "yes", "no", "yes"])
    assert rewards == {
        "answer": 1.0,
        "format": 1.0,
        "steps": [
            {"kind": "over", "verdict": "no"},
            {"kind": "over", "verdict": "yes"},
            {"kind": "under", "verdict": "no"},
            {"kind": "under", "verdict": "yes"},
        ],
        "n": 4,
        "n_corr": 2,
        "total": pytest.approx(1.2),
    }


def test_all_steps_are_counted_and_not_only_searches():
    # The released code counts only the search: 4 / 1, a bonus of 1.6.
    steps, verdicts = [SEARCH, FROM_MEMORY, FROM_MEMORY, FROM_MEMORY], ["no"] * 4
    assert terms(steps, verdicts)["total"] == pytest.approx(1.4)
    # Without any search it gives the whole bonus.
    assert terms([FROM_MEMORY], ["yes"])["total"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("answer", "format_ok", "total"),
    [("Rome", True, 1.4), ("Rome", False, 0.8), ("Romeo", True, 0.2), (None, False, 0.0)],
)
def test_only_right_and_well_formed_trajectories_get_the_bonus(answer, format_ok, total):
    rewards = terms([SEARCH], ["no"], answer=answer, format_ok=format_ok)
    assert rewards["total"] == pytest.approx(total)


def test_unknown_verdicts_count_in_neither_numerator_nor_denominator():
    rewards = terms([SEARCH, SEARCH, FROM_MEMORY], ["no", "unknown", "yes"])
    assert (rewards["n"], rewards["n_corr"], rewards["total"]) == (2, 1, pytest.approx(1.2))
    nothing = terms([SEARCH], ["unknown"])
    assert (nothing["n"], nothing["n_corr"], nothing["total"]) == (0, 0, 1.0)


def test_unknown_verdicts_count_as_correct_by_the_rule_of_the_released_code():
    weights = HiPragReward(unknown="correct")
    rewards = terms([SEARCH, SEARCH, FROM_MEMORY], ["no", "unknown", "yes"], weights)
    assert (rewards["n"], rewards["n_corr"]) == (3, 2)
    only_over = HiPragReward(unknown="correct", penalise="over")
    assert terms([SEARCH, FROM_MEMORY], ["yes", "unknown"], only_over)["n_corr"] == 1


def test_the_answer_counts_by_whole_words_or_as_a_substring():
    romeo = trajectory([SEARCH], answer="Romeo")
    totals = [
        score([romeo], [["no"]], HiPragReward(), cem)[0]["total"] for cem in ("words", "substring")
    ]
    assert totals == pytest.approx([0.2, 1.4])


def test_a_missing_verdict_stops_only_where_it_would_count():
    with pytest.raises(InputError, match=r"steps\.1\.verdict: missing"):
        terms([SEARCH, FROM_MEMORY], ["no", None])
    assert terms([SEARCH], [None], format_ok=False)["steps"] == [
        {"kind": "over", "verdict": "unknown"}
    ]
    assert terms([SEARCH], [None], HiPragReward(process=0.0))["total"] == 1.0
    over, under = (HiPragReward(penalise=kind) for kind in ("over", "under"))
    assert terms([SEARCH, FROM_MEMORY], ["no", None], over)["total"] == pytest.approx(1.4)
    assert terms([SEARCH, FROM_MEMORY], [None, "yes"], under)["n_corr"] == 1
    with pytest.raises(InputError, match=r"steps\.1\.verdict: missing"):
        terms([FROM_MEMORY, SEARCH], [None, None], over)


@pytest.mark.parametrize(("penalise", "n_corr"), [("both", 0), ("over", 1), ("under", 2)])
def test_ablations_penalize_one_kind_of_error_only(penalise, n_corr):
    steps, verdicts = [SEARCH, SEARCH, FROM_MEMORY], ["yes", "yes", "yes"]
    rewards = terms(steps, verdicts, HiPragReward(penalise=penalise))
    assert (rewards["n"], rewards["n_corr"]) == (3, n_corr)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(["yes", "no", "unknown"])), max_size=6))
def test_the_bonus_is_bounded_and_grows_when_an_error_is_corrected(steps):
    made = [SEARCH if searches else FROM_MEMORY for searches, _ in steps]
    verdicts = [verdict for _, verdict in steps]
    before = terms(made, verdicts)["total"]
    assert 1.0 <= before <= 1.4 + 1e-9
    if "yes" in verdicts:
        at = verdicts.index("yes")
        mended = [*verdicts[:at], "no", *verdicts[at + 1 :]]
        assert terms(made, mended)["total"] > before
