"""Logs of agents in the form of OpenAI's interface: imported, scored, paired, shown."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.browse.texts import pieces
from pipeline.core.record_io import read_records, write_jsonl
from pipeline.core.records import Pair, Trajectory
from tests.cli.malformed_inputs import steep

SEARCH = re.compile(r"(.*?)\s*Action: search\[(.*?)\]?\s*$", re.DOTALL)
FINISH = re.compile(r"(.*?)\s*Action: finish\[(.*)\]\s*$", re.DOTALL)


def openai_form(traces: list[dict[str, Any]], wrong: bool = False) -> list[dict[str, Any]]:
    """ReAct traces as an agent logs them that calls a tool; ``wrong`` replaces the answers."""
    records = []
    for trace in traces:
        messages: list[dict[str, Any]] = []
        for number, message in enumerate(trace["traj"]):
            content, role = message["content"], message["role"]
            if found := FINISH.match(content):
                answer = "I do not know." if wrong else found[2]
                text = f"{found[1].removeprefix('Thought: ')}\nAnswer: {answer}"
                messages.append({"role": "assistant", "content": text})
                break
            if found := SEARCH.match(content):
                made = {"name": "search", "arguments": json.dumps({"query": found[2]})}
                call = {"id": f"call{number:05d}", "type": "function", "function": made}
                text = found[1].removeprefix("Thought: ")
                messages.append({"role": "assistant", "content": text, "tool_calls": [call]})
            elif number:
                content = content.removeprefix("Observation: ")
                messages.append({"role": "tool", "content": content, "tool_call_id": call["id"]})
            else:
                messages.append({"role": role, "content": content})
        records.append({"messages": messages, "answers": [trace["gt"]], "dataset": "hotpotqa"})
    return records


def run(*words: str) -> str:
    status, printed, complaint = steep(list(words))
    assert status == 0, complaint
    return printed + complaint


def test_a_log_of_a_real_agent_is_imported_scored_and_paired(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = (real_data / "trajectories/fireact_react_217.jsonl").read_text(encoding="utf-8")
    traces = [json.loads(line) for line in lines.splitlines()]
    write_jsonl("agent.jsonl", openai_form(traces))
    write_jsonl("other.jsonl", openai_form(traces, wrong=True))
    assert "434 imported, 0 left out" in run(
        "import", "agent.jsonl", "other.jsonl", "-o", "in.jsonl"
    )
    imported = read_records("in.jsonl", Trajectory)
    assert sum(one.format_ok for one in imported) == 434
    assert sum(len(one.steps) for one in imported) == 2 * 363
    assert {one.format for one in imported} == {"tools"}
    run("score", "--reward", "search-r1", "in.jsonl", "-o", "scored.jsonl")
    scored = read_records("scored.jsonl", Trajectory)
    right = sum((one.rewards or {})["answer"] == 1 for one in scored)
    assert right == sum(trace["em"] for trace in traces) == 93
    run("pair", "scored.jsonl", "-o", "pairs.jsonl")
    pairs = read_records("pairs.jsonl", Pair)
    assert len(pairs) == 93
    searching = next(pair for pair in pairs if len(pair.chosen) == 3)
    assert [message.role for message in searching.chosen] == ["assistant", "tool", "assistant"]
    assert searching.tools
    assert json.loads(searching.tools)[0]["function"]["name"] == "search"
    # The commands that read trajectories parse messages themselves.
    run("score", "--reward", "search-r1", "agent.jsonl", "-o", "direct.jsonl")
    direct = [json.loads(line) for line in Path("direct.jsonl").read_text().splitlines()]
    assert [row["rewards"] for row in direct] == [one.rewards for one in scored[:217]]


HOSTILE = "\x1b[31m<script>alert(1)</script><|im_end|>"


def hostile() -> dict[str, Any]:
    made = {"name": "search", "arguments": '{"query": "who?"}'}
    return {
        "messages": [
            {"role": "user", "content": "Who?"},
            {"role": "assistant", "content": "I look.", "tool_calls": [{"function": made}]},
            {"role": "tool", "content": HOSTILE},
            {"role": "assistant", "content": "Answer: Ada", "reasoning": "hm"},
        ],
        "answers": ["Ada"],
        "hop": "single",
    }


def test_conversations_are_shown_by_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl("log.jsonl", [hostile()])
    run("import", "log.jsonl", "-o", "in.jsonl")
    shown = run("view", "in.jsonl")
    for text in ("assistant:", "I look.", 'search({"query": "who?"})', "tool:", "(thinks) hm"):
        assert text in shown
    assert "\x1b[31m" not in shown
    [trajectory] = read_records("in.jsonl", Trajectory)
    assert [role for _, role, _ in pieces(trajectory)][:4] == [
        "masked", "trained", "masked", "observed",
    ]  # fmt: skip
    assert trajectory.output[slice(*trajectory.spans[3][:2])].startswith(HOSTILE)
    assert [writer for *_, writer in trajectory.spans][:4] == [
        "frame", "model", "frame", "observation",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([{"role": "robot", "content": "x"}], "messages.0.role: 'robot' is not one of"),
        ([{"role": "assistant", "content": "x"}], "messages.0: a conversation starts"),
        ([{"role": "system", "content": "x"}], "no question"),
    ],
)
def test_conversations_that_cannot_be_imported_are_named(
    messages: list, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl("log.jsonl", [hostile(), hostile() | {"messages": messages}])
    assert f"log.jsonl:2: {reason}" in run("import", "log.jsonl", "-o", "in.jsonl")
