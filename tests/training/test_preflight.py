"""Checks of training data: figures counted by hand, limits, and the stage that reports them."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

from pipeline.core.record_io import write_parquet
from pipeline.core.records import Pair, Question, Trajectory
from pipeline.training.encode import IGNORED, EncodedSft
from pipeline.training.preflight import Check, DataFacts, recorded_facts
from tests.smallest import small_pair
from tests.stages.fabricated_run import trajectory

PAIR = small_pair(
    question_id="q0", prompt_ids=[1, 2], chosen_ids=[3, 4, 5], rejected_ids=[6, 7],
    chosen_spans=[(0, 1, "model"), (1, 2, "observation"), (2, 3, "model")],
    rejected_spans=[(0, 2, "model")],
)  # fmt: skip


def facts_of(directory: Path, pairs: list[Pair], max_length: int = 5, **arguments) -> DataFacts:
    file = directory / "pairs.parquet"
    write_parquet(file, pairs, Pair)
    return recorded_facts(file, "dpo", max_length, **arguments)


def outcome(facts: DataFacts, name: str) -> Check:
    [check] = [check for check in facts.checks() if check.name == name]
    return check


def test_pairs_are_counted_by_length_mask_and_repetition(tmp_path: Path) -> None:
    """Prompt 2, chosen 3, rejected 2 tokens: the longest sequence has 5, and 4 of 5 are written."""
    longer = replace(PAIR, chosen_ids=[3, 4, 5, 9], chosen_spans=[(0, 4, "model")])
    equal = replace(PAIR, rejected_ids=[3, 4, 5], rejected_spans=[(0, 3, "model")], kind="hard")
    facts = facts_of(tmp_path, [PAIR, longer, equal, PAIR])
    assert (facts.records, facts.over_long, facts.longest) == (4, 1, 6)
    assert (facts.identical, facts.duplicates) == (1, 1)
    assert (facts.trained, facts.tokens) == (4 + 6 + 5 + 4, 5 + 6 + 6 + 5)
    check = outcome(facts, "length")
    assert (check.value, check.passed) == (0.25, False)
    assert "1 of 4 pairs (25.0%) are longer than dpo.max_length (5 tokens)" in check.fault
    assert check.fault.endswith("raise dpo.max_length, or lower sampling.max_total_tokens")
    assert not outcome(facts, "duplicates").passed
    assert not outcome(facts, "identical sides").passed
    assert outcome(facts, "mask coverage").value == round(19 / 22, 3)


def test_questions_that_repeat_a_held_out_one_are_counted(tmp_path: Path) -> None:
    texts = {
        "questions-sampling": {"q0": "Who founded Vell?", "q1": "Where is the city of Ostar?", "q2": "Who?"},
        "questions-test": {"t0": "who founded VELL"},
    }  # fmt: skip
    for name, questions in texts.items():
        records = [Question(key, "nq", text, ["x"], "single") for key, text in questions.items()]
        write_parquet(tmp_path / name / "questions.parquet", records, Question)
    questions = {name: tmp_path / name for name in texts}
    pairs = [PAIR, replace(PAIR, question_id="q1")]
    facts = facts_of(tmp_path, pairs, questions=questions)
    assert (facts.questions, facts.overlaps) == (2, 1)
    check = outcome(facts, "overlap with held-out questions")
    assert (check.value, check.passed) == (0.5, False)
    assert facts_of(tmp_path, pairs).overlaps is None


def test_trajectories_of_grpo_are_counted_and_may_be_equal(tmp_path: Path) -> None:
    record = replace(
        trajectory("q0", "Ostar"), prompt_ids=[1], token_ids=[2, 3],
        token_spans=[(0, 1, "model"), (1, 2, "observation")],
    )  # fmt: skip
    write_parquet(tmp_path / "t.parquet", [record, record], Trajectory)
    facts = recorded_facts(tmp_path / "t.parquet", "grpo", 2)
    assert (facts.records, facts.over_long, facts.longest, facts.duplicates) == (2, 2, 3, 1)
    assert (facts.trained, facts.tokens) == (2, 4)
    assert outcome(facts, "duplicates").passed
    assert not outcome(facts, "length").passed


def test_supervised_examples_are_counted_while_they_pass() -> None:
    examples = [
        EncodedSft("a", [1, 2, 3, 4], [IGNORED, 2, IGNORED, 4]),
        EncodedSft("b", [1, 2, 3, 4], [IGNORED, 2, IGNORED, 4]),
    ]
    facts = DataFacts("sft", "examples", max_length=3)
    assert list(facts.noted(examples)) == examples
    assert (facts.records, facts.over_long, facts.duplicates) == (2, 2, 1)
    assert (facts.trained, facts.tokens) == (4, 6)


def test_memory_does_not_grow_with_the_tokens_of_the_pairs(tmp_path: Path) -> None:
    peaks = []
    for count in (1000, 2500):
        pairs = (replace(PAIR, prompt_ids=[n] * 100) for n in range(count))
        write_parquet(tmp_path / "pairs.parquet", pairs, Pair)
        tracemalloc.start()
        recorded_facts(tmp_path / "pairs.parquet", "dpo", 5)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 1500 * 400
