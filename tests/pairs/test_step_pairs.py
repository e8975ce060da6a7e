"""Pairs of steps after the same prefix (ProGraph-R1), on trajectories written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import ConfigError, InputError
from pipeline.core.record_io import read_records
from pipeline.core.records import Pair, Span, Trajectory
from pipeline.core.spans import extend
from pipeline.pairs.step_pairs import step_pairs
from pipeline.training.encode import encode_pairs
from tasks import task_for
from tests.smallest import small_trajectory
from tests.stages.test_pair import run_stage
from tests.training.tiny_policy import byte_tokenizer

EMBEDDED = Path(__file__).parents[2] / "configs" / "embedded.yaml"
KNOWLEDGE = "\n<knowledge>\nc\n</knowledge>\n"


def ask(text: str) -> str:
    return f"<think>t</think><query>{text}</query>"


def answer(text: str) -> str:
    return f"<think>t</think><answer>{text}</answer>"


def trajectory(name: str, turns: list[str], totals: list[float], **more: Any) -> Trajectory:
    """Turns with knowledge between them, one byte a token; no token closes the sequence."""
    output, spans = "", list[Span]()
    for number, text in enumerate(turns):
        spans = extend(spans, len(text), "model")
        output += text
        if number + 1 < len(turns):
            spans = extend(spans, len(KNOWLEDGE), "observation")
            output += KNOWLEDGE
    ids = byte_tokenizer()(output, add_special_tokens=False)["input_ids"]
    rewards = {
        "format": 1.0, "answer": 1.0, "total": sum(totals) / len(totals),
        "steps": [{"total": total} for total in totals],
    }  # fmt: skip
    values: dict[str, Any] = {
        "sample": int(name[-1]), "spans": spans, "token_spans": spans, "token_ids": ids,
        "prompt_ids": [4, 5], "rewards": rewards, "format_ok": True, "policy": "f00d",
    }  # fmt: skip
    return small_trajectory(trajectory_id=name, grammar="prograph", output=output, **values | more)


def named(trajectories: list[Trajectory], margin: float = 0.1) -> list[tuple[str, str]]:
    """The texts of the two steps of each pair."""

    def last_step(trajectory: Trajectory) -> str:
        return trajectory.output.split("</knowledge>\n")[-1]

    return [
        (last_step(chosen), last_step(rejected))
        for chosen, rejected in step_pairs(trajectories, margin)
    ]


def test_a_step_of_several_trajectories_has_the_mean_of_their_rewards() -> None:
    """a earned 3 and 1, which is less than b's 2.5; c is the worst."""
    trajectories = [
        trajectory("p0", [ask("a"), answer("x")], [3.0, 3.0]),
        trajectory("p1", [ask("a"), answer("y")], [1.0, 1.0]),
        trajectory("p2", [ask("b"), answer("x")], [2.5, 2.5]),
        trajectory("p3", [ask("c"), answer("x")], [0.5, 0.5]),
    ]
    assert named(trajectories) == [(ask("b"), ask("c")), (answer("x"), answer("y"))]
    assert named(trajectories, margin=2.1) == []
    assert named(trajectories[:2]) == [
        (answer("x"), answer("y"))
    ]  # one first step: nothing to prefer


def test_only_the_step_itself_is_trained_on() -> None:
    trajectories = [
        trajectory("p0", [ask("a"), answer("x")], [3.0, 3.0]),
        trajectory("p1", [ask("a"), answer("yy")], [3.0, 1.0]),
    ]
    [(chosen, rejected)] = step_pairs(trajectories, 0.1)
    prefix = len(ask("a") + KNOWLEDGE)
    assert (chosen.output, rejected.output) == (trajectories[0].output, trajectories[1].output)
    assert [writer for *_, writer in chosen.token_spans] == ["observation"] * 2 + ["model"]
    assert chosen.token_spans[-1] == (prefix, prefix + len(answer("x")), "model")
    assert (chosen.rewards, rejected.rewards) == ({"total": 3.0}, {"total": 1.0})


def test_malformed_trajectories_give_no_chosen_step_and_broken_ones_no_step() -> None:
    good = trajectory("p0", [ask("a"), answer("x")], [1.0, 1.0])
    malformed = trajectory("p1", [ask("b"), "x"], [3.0, 3.0], format_ok=False)
    broken = trajectory(
        "p2", [ask("c"), answer("x")], [9.0, 9.0], rewards=None, stop="retrieval_error"
    )
    assert named([good, malformed, broken]) == []
    worse = trajectory("p3", [ask("b"), "y"], [0.0, 0.0], format_ok=False)
    assert named([good, worse]) == [(ask("a"), ask("b"))]


def test_a_trajectory_without_step_rewards_is_refused() -> None:
    with pytest.raises(InputError, match="p0 has no reward of each of its 2 turns"):
        step_pairs([trajectory("p0", [ask("a"), answer("x")], [1.0])], 0.1)
    with pytest.raises(ConfigError, match=r"grammar tearag has no step rewards"):
        _ = task_for("pair", str(EMBEDDED), ("pairs.step_margin=0.1",)).settings


def test_the_stage_adds_step_pairs_and_training_reads_them(tmp_path: Path) -> None:
    trajectories = [
        trajectory("p0", [ask("a"), answer("x")], [3.0, 3.0]),
        trajectory("p1", [ask("b"), answer("x")], [2.0, 1.0]),
    ]
    output = run_stage(tmp_path, trajectories, method="prograph", step_margin=0.1)
    pairs = read_records(output / "pairs.parquet", Pair)
    assert [pair.kind for pair in pairs] == ["margin", "step"]
    assert "ProGraph-R1's mean step reward" in (output / "README.md").read_text()
    trajectory_pair, step_pair = encode_pairs(byte_tokenizer(), pairs)
    assert sum(trajectory_pair.chosen_mask) == len(ask("a") + answer("x"))
    assert (step_pair.chosen_mask, step_pair.rejected_mask) == (
        [1] * len(ask("a")),
        [1] * len(ask("b")),
    )
