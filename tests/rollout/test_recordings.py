"""What `steep import --recorded` refuses, with file, line and what was expected."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import InputError
from pipeline.rollout.recorded import recorded_trajectories
from tests.cli.malformed_inputs import refused

ASKED = [{"role": "user", "content": "Who?"}]
SAID = {"role": "assistant", "content": "Ada."}
FIRST: dict[str, Any] = {
    "turn": "t1",
    "conversation": "c1",
    "after": None,
    "reason": None,
    "policy": "f",
    "messages": [*ASKED, SAID],
    "tools": [],
    "prompt_ids": [5, 6],
    "output": "Ada.",
    "spans": [[0, 4, "model"]],
    "token_ids": [7, 8, 2],
    "token_spans": [[0, 3, "model"]],
    "logprobs": [-0.5, -1, 0],
    "retrieved": [],
    "finish": "eos",
    "problem": None,
    "seed": 1,
    "temperature": 0.5,
    "top_p": 1.0,
    "question": {
        "question_id": "q", "dataset": "d", "question": "Who?", "answers": ["Ada"], "hop": "single",
    },
}  # fmt: skip
NEXT = FIRST | {
    "turn": "t2",
    "after": "t1",
    "messages": [{"role": "user", "content": "And?"}, SAID],
    "prompt_ids": [],
    "output": "And?Ada.",
    "spans": [[0, 4, "frame"], [4, 8, "model"]],
    "token_ids": [9, 7, 8],
    "token_spans": [[0, 1, "frame"], [1, 3, "model"]],
    "logprobs": [None, -0.5, -1.0],
    "question": None,
}


def recording(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_a_recording_and_its_rewards_are_read_in_any_order_of_the_files(tmp_path: Path) -> None:
    file = recording(tmp_path / "r.jsonl", FIRST, NEXT)
    rewards = tmp_path / "rewards.jsonl"  # by hand, without the end of the line
    rewards.write_text('{"conversation": "t1", "reward": 0.5}')
    for paths in ([file, rewards], [rewards, file]):
        [trajectory], counts = recorded_trajectories(paths, "search-r1")
        assert (trajectory.token_ids, trajectory.reward) == ([7, 8, 2, 9, 7, 8], 0.5)
        assert (counts.turns, counts.conversations, counts.trajectories) == (2, 1, 1)


def test_gold_answers_hold_for_all_trajectories_of_a_conversation(tmp_path: Path) -> None:
    other = FIRST | {"turn": "t2", "reason": "user message changed", "question": None}
    file = recording(tmp_path / "r.jsonl", FIRST, other)
    found, counts = recorded_trajectories([file], "search-r1")
    assert [each.answers for each in found] == [["Ada"], ["Ada"]]
    assert counts.without_answers == 0


@pytest.mark.parametrize(
    ("line", "rows", "problem"),
    [
        (1, [NEXT, FIRST], "after: no turn 't1' before this line"),
        (3, [FIRST, NEXT, NEXT | {"turn": "t3"}], "after: the turn 't2' continues 't1' already"),
        (2, [FIRST, FIRST], "turn: 't1' occurs twice"),
        (1, [FIRST | {"prompt_ids": []}], "prompt_ids: empty"),
        (1, [FIRST | {"prompt_ids": [5, -6]}], "an id is negative"),
        (1, [FIRST | {"token_ids": [7, 8.5, 2]}], "token_ids.1: "),
        (1, [FIRST | {"spans": [[0, 9, "model"]]}], "spans of output: spans end at 9, expected 4"),
        (1, [FIRST | {"token_spans": [[0, 9, "model"]]}], "spans of token_ids: spans end at 9"),
        (1, [FIRST | {"token_spans": [[0, 3, "user"]]}], "token_spans.0.2: "),
        (1, [FIRST | {"token_spans": [[0, 3, "frame"]]}], "no token is the model's"),
        (1, [FIRST | {"logprobs": []}], "logprobs: expected a number for each token of the model"),
        (1, [FIRST | {"logprobs": [-1, -1, 0.5]}], "logprobs: 0.5 is above 0"),
        (2, [FIRST, NEXT | {"logprobs": [-1, -1, math.nan]}], "logprobs: expected a number for "),
        (1, [FIRST | {"retrieved": [3]}], "retrieved: expected the tokens of each tool result"),
        (1, [FIRST | {"messages": []}], "messages: the last is not the sampled message"),
        (1, [FIRST | {"messages": [{"role": "human", "content": ""}, SAID]}], "expected role, one"),
        (1, [FIRST | {"messages": [{"role": "user"}, SAID]}], "and content, a text"),
        (1, [FIRST | {"messages": [SAID]}], "a conversation starts with a system or user"),
        (1, [FIRST | {"tools": [{"name": "search"}]}], "tools: expected function.name"),
        (1, [FIRST | {"question": FIRST["question"] | {"answers": [""]}}], "question.answers: "),
        (1, [FIRST | {"reward": 1}], "reward: belongs on a line of its own"),
        (2, [FIRST, {"conversation": "c2", "reward": 1}], "conversation: 'c2' has no turn"),
        (1, [{"conversation": "c1", "reward": "1"}], "reward: "),
        (1, [{"question": "Who?"}], "conversation: Field required"),
    ],
)
def test_a_line_that_no_recording_has_is_refused_with_its_place(
    tmp_path: Path, line: int, rows: list[dict[str, Any]], problem: str
) -> None:
    file, output = recording(tmp_path / "r.jsonl", *rows), tmp_path / "t.jsonl"
    told = refused("import", "--recorded", file, "-o", output)
    assert told.startswith(f"error: {file}:{line}: ")
    assert problem in told
    assert not output.exists()


def test_only_a_last_line_of_a_recording_may_be_cut_off(tmp_path: Path) -> None:
    file = recording(tmp_path / "r.jsonl", FIRST)
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"turn": "t2", "conversation": "\xc3')
    assert recorded_trajectories([file], "search-r1")[1].turns == 1
    for content in (whole + b"notes", b'{"turn": "t0"\n' + whole, whole + b'{"turn":"\xff"}\n'):
        file.write_bytes(content)
        with pytest.raises(InputError, match=r"r\.jsonl:[12]: not "):
            recorded_trajectories([file], "search-r1")


def test_a_fifo_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, problem in (
        (tmp_path / "fifo", "is a FIFO"), (tmp_path, "is a directory"), (tmp_path / "x", "no such"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=problem):
            recorded_trajectories([path], "search-r1")
