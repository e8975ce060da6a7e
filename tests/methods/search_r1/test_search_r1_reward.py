"""Search-R1's outcome reward: the four cases of the format term, and F1 in place of exact match."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.cli.pair import pair_file
from pipeline.cli.score import score as score_file
from pipeline.config.policy import SearchR1Reward
from pipeline.core.records import Trajectory
from pipeline.methods.search_r1.reward import score
from tests.cli.test_file_commands import call
from tests.smallest import small_trajectory

OUTPUT = (
    "<think>who?</think><search>who</search><information>Doc 1(Title: x) Lee</information>"
    "<think>Lee.</think><answer>{}</answer>"
)


def trajectory(answer: str | None, *, format_ok: bool) -> Trajectory:
    answers = ["Ann Lee", "Lee"]
    return small_trajectory(
        answers=answers, grammar="search-r1", answer=answer, format_ok=format_ok
    )


@pytest.mark.parametrize(
    ("answer", "format_ok", "total"),
    [("ann lee", True, 1.0), ("ann lee", False, 0.8), ("Bob", True, 0.2), (None, False, 0.0)],
)
def test_the_reward_has_one_value_for_each_of_the_four_cases(
    answer: str | None, format_ok: bool, total: float
) -> None:
    [terms] = score([trajectory(answer, format_ok=format_ok)])
    assert terms == {
        "answer": float(answer == "ann lee"),
        "format": float(format_ok),
        "total": pytest.approx(total),
    }


def test_without_a_format_weight_the_reward_is_the_exact_match() -> None:
    weights = SearchR1Reward(format=0.0)
    right, wrong = (trajectory(answer, format_ok=False) for answer in ("Lee", "Ann"))
    assert [terms["total"] for terms in score([right, wrong], weights)] == [1.0, 0.0]


def test_f1_gives_part_of_the_reward_to_a_partly_right_answer() -> None:
    [terms] = score([trajectory("Ann", format_ok=True)], SearchR1Reward(answer="f1"))
    assert terms["answer"] == pytest.approx(2 / 3)
    assert terms["total"] == pytest.approx(0.8 * 2 / 3 + 0.2)


def test_outputs_of_a_file_are_scored_and_paired_by_their_outcome(tmp_path: Path) -> None:
    rows = [
        {"output": OUTPUT.format(answer), "answers": ["Lee"], "hop": "single", "mine": number}
        for number, answer in enumerate(["Lee", "Ann", "Bob"])
    ]
    scored = call(tmp_path, score_file, *rows, reward="search-r1")
    assert [row["rewards"]["total"] for row in scored] == [1.0, 0.2, 0.2]
    assert scored[2] == rows[2] | {"rewards": {"answer": 0.0, "format": 1.0, "total": 0.2}}
    named = [row | {"trajectory_id": str(row["mine"]), "question_id": "q"} for row in scored]
    [pair] = call(tmp_path, pair_file, *named)
    assert (pair["chosen_id"], pair["rejected_id"], pair["kind"]) == ("0", "1", "easy")


def test_a_configuration_gives_other_weights(tmp_path: Path) -> None:
    config = tmp_path / "own.yaml"
    base = Path(__file__).parents[3] / "configs" / "embedded-search-r1.yaml"
    config.write_text(f"base: {base}\nrewards: {{search_r1: {{answer: f1, format: 0.0}}}}\n")
    row = {"output": OUTPUT.format("Ann Lee"), "answers": ["Lee"]}
    [scored] = call(tmp_path, score_file, row, reward="search-r1", similarity=str(config))
    assert scored["rewards"]["total"] == pytest.approx(2 / 3)
