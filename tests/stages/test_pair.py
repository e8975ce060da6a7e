"""Stage ``pair``: the files that it writes, and their use by other tools."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.core.errors import InputError
from pipeline.core.record_io import read_records, write_parquet
from pipeline.core.records import ChatMessage, Message, Pair, Trajectory
from tasks.pair import run
from tests.recorded_progress import RecordedProgress
from tests.smallest import small_config, small_trajectory
from tests.stages.question_stages import stage_context


def scored(question: int, sample: int, *, good: bool, **values: Any) -> Trajectory:
    """A single-hop trajectory: right in one step, or malformed."""
    outcome = 1.0 if good else 0.0
    defaults: dict[str, Any] = {
        "trajectory_id": f"q{question}/{sample}",
        "question_id": f"q{question}",
        "dataset": "nq" if question % 2 else "popqa",
        "question": f"question {question}?",
        "output": f"{question} {sample}",
        "policy": "f00d",
        "sample": sample,
        "prompt_ids": [1, 2],
        "token_ids": [10 * question + sample, 3, 4],
        "token_spans": [(0, 1, "model"), (1, 2, "observation"), (2, 3, "model")],
        "rewards": {"outcome": outcome, "format": outcome, "process": 0.0, "total": 2 * outcome},
    }
    return small_trajectory(**(defaults | values))


def run_stage(
    tmp_path: Path, trajectories: list[Trajectory], *, method: str = "tearag", **pairs: Any
) -> Path:
    config = small_config(prompt={"system": "be good"}, grammar=method, pairs=pairs)
    inputs = {"score": tmp_path / "score"}
    write_parquet(inputs["score"] / "trajectories.parquet", trajectories, Trajectory)
    context = stage_context(tmp_path, "pair", config, inputs, round=2, seed=7)
    progress = RecordedProgress()
    run(replace(context, progress=progress))
    ((total, unit, done),) = progress.starts
    assert (unit, done, progress.done) == ("rows read", 0, total)
    return context.output


TWO = [
    scored(0, 0, good=False),
    scored(0, 1, good=True),
    scored(1, 0, good=True),
    scored(1, 1, good=False, stop="retrieval_error", rewards=None),
]


def test_a_pair_carries_messages_for_people_and_ids_for_training(tmp_path: Path) -> None:
    (pair,) = read_records(run_stage(tmp_path, TWO) / "pairs.parquet", Pair)
    assert pair.prompt == [Message("system", "be good"), Message("user", "question 0?")]
    assert (pair.chosen, pair.rejected) == (
        [ChatMessage("assistant", "0 1")],
        [ChatMessage("assistant", "0 0")],
    )
    assert (pair.chosen_id, pair.rejected_id, pair.kind) == ("q0/1", "q0/0", "format")
    assert (pair.prompt_ids, pair.chosen_ids, pair.rejected_ids) == ([1, 2], [1, 3, 4], [0, 3, 4])
    assert pair.chosen_spans == [(0, 1, "model"), (1, 2, "observation"), (2, 3, "model")]
    terms = {name: value for name, value in pair.chosen_rewards.items() if value is not None}
    assert terms == {"outcome": 1.0, "format": 1.0, "process": 0.0, "total": 2.0}
    assert (pair.policy, pair.round) == ("f00d", 2)


def test_the_funnel_counts_every_trajectory_by_data_set(tmp_path: Path) -> None:
    output = run_stage(tmp_path, TWO)
    counts = json.loads((output / "funnel.json").read_text())
    expected = {"chosen": 1, "rejected-format": 1, "chosen-unpaired": 1, "retrieval-error": 1}
    assert {name: n for name, n in counts["bins"].items() if n} == expected
    assert counts["datasets"]["nq"]["retrieval-error"] == 1
    assert counts["datasets"]["popqa"]["retrieval-error"] == 0
    outcomes = pq.read_table(output / "funnel.parquet").to_pylist()
    assert {row["trajectory_id"]: row["partner"] for row in outcomes} == {
        "q0/0": "q0/1",
        "q0/1": "q0/0",
        "q1/0": None,
        "q1/1": None,
    }


def test_trajectories_without_rewards_and_repeated_ids_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="q0/0 has no rewards to pair by"):
        run_stage(tmp_path, [scored(0, 0, good=True, rewards=None)])
    with pytest.raises(InputError, match="two trajectories are called q0/0"):
        run_stage(tmp_path, [scored(0, 0, good=True)] * 2)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "1", True])
def test_rewards_that_are_no_finite_number_are_refused(tmp_path: Path, value: Any) -> None:
    rewards = {"outcome": 1.0, "format": 1.0, "process": value}
    with pytest.raises(InputError, match=r"rewards.*(finite|NaN|Infinity)"):
        run_stage(tmp_path, [scored(0, 0, good=True, rewards=rewards)])


@pytest.mark.parametrize(
    "trajectories",
    [[], [scored(0, n, good=True, stop="retrieval_error", rewards=None) for n in range(2)]],
    ids=["none", "all with a retrieval error"],
)
def test_without_usable_trajectories_there_are_no_pairs(
    tmp_path: Path, trajectories: list[Trajectory]
) -> None:
    output = run_stage(tmp_path, trajectories)
    assert read_records(output / "pairs.parquet", Pair) == []
    counts = json.loads((output / "funnel.json").read_text())
    assert sum(counts["bins"].values()) == len(trajectories) == counts["bins"]["retrieval-error"]


def test_no_pairs_of_malformed_trajectories_ask_for_another_policy_not_for_easier_questions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = "expected 'Step 1:' at offset"
    malformed = [scored(n % 4, n, good=False, format_error=f"{error} {n}") for n in range(19)]
    output = run_stage(tmp_path, [*sorted(malformed, key=lambda one: one.question_id)])
    assert json.loads((output / "funnel.json").read_text())["shortage"] == (
        "19 trajectories, 0 right answers, 19 malformed; the policy does not write the configuration's "
        "grammar and format: start from one that was trained for them, or train the cold start longer"
    )
    told = capsys.readouterr().out
    assert "19 trajectories, 19 malformed (100 %): expected 'Step 1:' 19\n" in told
