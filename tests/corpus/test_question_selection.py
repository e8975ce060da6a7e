"""Selection of the sampling set (TeaRAG, table 2)."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import InputError
from pipeline.core.records import Question
from pipeline.knowledge.corpus.questions.load import load_questions
from pipeline.knowledge.corpus.questions.select import choose, even_shares
from tests.corpus.question_files import write_questions


def question(name: str, kind: str, evidence: int, hops: int) -> Question:
    return Question(name, "d", name, ["a"], "multi", ["e"] * evidence, hops=hops, type=kind)


QUESTIONS = [
    question("b2", "bridge", 2, 2),
    question("c2", "comparison", 2, 3),
    question("b5", "bridge", 5, 4),
    question("b3", "bridge", 3, 2),
    question("c4", "comparison", 4, 2),
    question("b4", "bridge", 4, 3),
]


def names(selected: list[Question]) -> list[str]:
    return [item.question_id for item in selected]


def test_most_evidence_takes_half_of_each_type() -> None:
    assert names(choose(QUESTIONS, "most-evidence", 4, 0)) == ["c2", "b5", "c4", "b4"]


def test_even_hops_takes_equally_many_of_each_number_of_hops() -> None:
    selected = choose(QUESTIONS, "even-hops", 3, 0)
    assert sorted(item.hops or 0 for item in selected) == [2, 3, 4]


def test_random_depends_on_the_seed_and_keeps_the_order_of_the_file() -> None:
    draws = {tuple(names(choose(QUESTIONS, "random", 3, seed))) for seed in range(20)}
    assert len(draws) > 1
    order = names(QUESTIONS)
    assert all(list(draw) == sorted(draw, key=order.index) for draw in draws)
    assert choose(QUESTIONS, "random", 3, 1) == choose(QUESTIONS, "random", 3, 1)


@given(st.lists(st.integers(0, 9), max_size=5), st.integers(0, 60))
def test_shares_are_even_and_complete(available: list[int], total: int) -> None:
    shares = even_shares(available, total)
    assert sum(shares) == min(total, sum(available))
    assert all(share <= count for share, count in zip(shares, available, strict=True))
    below = [share for share, count in zip(shares, available, strict=True) if share < count]
    assert all(share <= min(below) + 1 for share in shares if below)


def test_filter_and_limit_apply_in_that_order(tmp_path: Path) -> None:
    rows = [{"question": f"q{n}", "answer": ["a"], "level": n % 2} for n in range(6)]
    path = write_questions(tmp_path, *rows)
    selected = load_questions(path, "nq", required={"level": 1, "hop": "single"}, limit=2)
    assert [item.question for item in selected] == ["q1", "q3"]


@pytest.mark.parametrize(
    ("keep", "problem"),
    [
        ({"levle": "hard"}, "no record has the field levle"),
        ({"level": 9}, "no question has level: 9"),
    ],
)
def test_filter_without_a_match_raises_input_error(
    tmp_path: Path, keep: dict[str, str | int], problem: str
) -> None:
    path = write_questions(tmp_path, {"question": "q", "answer": ["a"], "level": 1})
    with pytest.raises(InputError, match=problem):
        load_questions(path, "nq", required=keep)


def test_hotpotqa_selection_of_the_paper_on_real_questions(real_data: Path) -> None:
    path = real_data / "hotpotqa/hotpotqa_train100.json"
    selected = load_questions(
        path, "hotpotqa", required={"level": "hard"}, select="most-evidence", limit=10
    )
    assert sorted(item.type or "" for item in selected) == ["bridge"] * 5 + ["comparison"] * 5
