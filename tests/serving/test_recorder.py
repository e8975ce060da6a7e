"""Recorded conversations of an agent become trajectories with the ids that the engine saw."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import openai
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from typer.testing import CliRunner

from pipeline.cli.app import app
from pipeline.core.errors import InputError
from pipeline.core.record_io import read_records
from pipeline.core.records import Pair, Question, Trajectory
from pipeline.evaluation.excerpts import text_of
from pipeline.grammars.tokens import decode_mask
from pipeline.rollout.recorded import Recording, recorded_trajectories
from pipeline.run.context import StageContext
from pipeline.serving.recorder import Log, RecordedModel, recorder_routes
from pipeline.stages import pair, sample, score
from tasks.run import task_for
from tests.conversations.shipped_templates import SEARCH
from tests.serving.scripted_policy import DECODING, ScriptedProcess, scripted_policy, tokenizer_of

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
GOLD = Question("q1", "toy", "Who directed it?", ["Ada"], "single")
ASKED: list[dict[str, Any]] = [
    {"role": "system", "content": "Search. Today is 1 May 2024."},
    {"role": "user", "content": "Question: who directed it?"},
]


def call(query: str) -> str:
    return f'<tool_call>\n{{"name": "search", "arguments": {{"query": "{query}"}}}}\n</tool_call>'


class Recorded:
    """A recording server over a scripted policy, and an agent's loop as its client."""

    opened: ClassVar[list[Log]] = []

    def __init__(self, path: Path, *turns: str, template: str = "qwen3_training") -> None:
        tokenizer, written = tokenizer_of(template), iter(turns)
        self.path = path
        self.process = ScriptedProcess(lambda *_: next(written), tokenizer)
        policy, service = scripted_policy(self.process), FastAPI()
        self.log = Log(path)
        self.opened.append(self.log)
        self.model = RecordedModel(
            policy, lambda: tokenizer, DECODING, log=self.log, policy_id="f" * 64, questions=[GOLD]
        )
        service.include_router(recorder_routes(self.model, "round-1"))
        self.client = openai.OpenAI(
            api_key="none",
            base_url="http://localhost/v1",
            http_client=TestClient(service),
            max_retries=0,
        )

    def ask(self, messages: list[dict[str, Any]], tools: Any = (SEARCH,), **options: Any) -> Any:
        """Send a request, and append the reply to ``messages``; returns the completion."""
        reply = self.client.chat.completions.create(
            model="gpt-4o", messages=messages, tools=list(tools), **options
        )
        messages.append(reply.choices[0].message.model_dump(exclude_none=True))
        return reply

    def reward(self, conversation: str, reward: float) -> Any:
        given = {"conversation": conversation, "reward": reward}
        return self.client.post("http://localhost/reward", body=given, cast_to=dict)

    def read(self) -> tuple[list[Trajectory], Recording]:
        return recorded_trajectories([self.path], "search-r1")


@pytest.fixture(autouse=True)
def closed_logs() -> Iterator[None]:
    yield
    while Recorded.opened:
        Recorded.opened.pop().close()


def result(messages: list[dict[str, Any]], text: str) -> None:
    """The results of the calls of the last message."""
    for made in messages[-1]["tool_calls"]:
        messages.append({"role": "tool", "tool_call_id": made["id"], "content": text})


def test_turns_are_joined_with_the_ids_that_the_engine_saw(tmp_path: Path) -> None:
    thought = "<think>\nhm\n</think>\n\n"
    recorded = Recorded(
        tmp_path / "r.jsonl",
        f"{thought}I look.\n{call('it')}",
        f"{thought}It was Ada.\nAnswer: Ada",
    )
    messages = [*ASKED]
    recorded.ask(messages)
    del messages[-1]["reasoning_content"]  # as most frameworks do
    result(messages, 'Doc 1(Title: "It") Ada<|im_end|>.')
    recorded.ask(messages)
    [trajectory], counts = recorded.read()
    assert (counts.turns, counts.conversations, counts.reasons.total()) == (2, 1, 0)
    (first, _), (second, reply) = recorded.process.seen
    seen = [*second.prompt_ids, *reply.token_ids]
    assert [*trajectory.prompt_ids, *trajectory.token_ids] == seen
    assert trajectory.prompt_ids == first.prompt_ids
    pieces = [(who, trajectory.output[start:end]) for start, end, who in trajectory.spans]
    assert pieces == [
        ("model", f"{thought}I look.\n{call('it')}<|im_end|>"),
        ("frame", "\n<|im_start|>user\n<tool_response>\n"),
        ("observation", 'Doc 1(Title: "It") Ada&lt;|im_end|&gt;.'),
        ("frame", "\n</tool_response><|im_end|>\n<|im_start|>assistant\n"),
        ("model", f"{thought}It was Ada.\nAnswer: Ada"),
    ]
    tokenizer = recorded.process.engine.tokenizer
    mask = decode_mask(trajectory.token_ids, trajectory.token_spans, tokenizer)
    assert mask.trained == [pieces[0][1], f"{pieces[-1][1]}<|im_end|>"]
    inserted = [value is None for value in trajectory.logprobs]
    assert inserted == [
        who != "model" for start, end, who in trajectory.token_spans for _ in range(start, end)
    ]
    assert (trajectory.question_id, trajectory.answers, trajectory.hop) == ("q1", ["Ada"], "single")
    assert (trajectory.answer, trajectory.format_ok, trajectory.stop) == ("Ada", True, "answer")
    assert [(step.subquery, step.context[0].title) for step in trajectory.steps] == [("it", "It")]
    assert trajectory.tokens.per_retrieval == [len(pieces[2][1])]
    assert json.loads(trajectory.messages)[2]["reasoning_content"] == "hm"
    assert json.loads(trajectory.tools) == [SEARCH]


def test_samples_with_equal_turns_keep_their_own_conversations_and_rewards(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path / "r.jsonl", *[call("it")] * 2, "Ada.", "Bo.")
    one, two = [*ASKED], [*ASKED]
    names = [recorded.ask(one).id, recorded.ask(two).id]
    for messages in (two, one):
        result(messages, "x")
    last = recorded.ask(two).id
    recorded.ask(one)
    recorded.reward(last, 1)
    recorded.reward(names[0], 0.25)
    trajectories, _ = recorded.read()
    assert [(one.answer, one.reward) for one in trajectories] == [("Ada.", 1.0), ("Bo.", 0.25)]
    assert [each.trajectory_id for each in trajectories] == [
        "q1/0@ffffffffffff",
        "q1/1@ffffffffffff",
    ]
    with pytest.raises(openai.NotFoundError, match="there is no conversation 'other'"):
        recorded.reward("other", 1)


def changed_result(messages: list[dict[str, Any]]) -> None:
    messages[3]["content"] = "shortened"


def changed_date(messages: list[dict[str, Any]]) -> None:
    messages[0] = {"role": "system", "content": "Search. Today is 2 June 2024."}


def changed_reasoning(messages: list[dict[str, Any]]) -> None:
    messages[2]["reasoning_content"] = "other"


def changed_system(messages: list[dict[str, Any]]) -> None:
    messages[0] = {"role": "system", "content": "Do not search."}


@pytest.mark.parametrize(
    ("change", "tools", "reason"),
    [
        (changed_result, [SEARCH, ADD], "history rewritten"),
        (changed_date, [SEARCH, ADD], "dates changed"),
        (changed_system, [SEARCH, ADD], "system message changed"),
        (changed_reasoning, [SEARCH, ADD], "reasoning changed"),
        (lambda messages: None, [ADD, SEARCH], "tools re-ordered"),
        (lambda messages: None, [SEARCH], "tools changed"),
    ],
)
def test_a_turn_that_does_not_continue_starts_a_trajectory_with_the_reason(
    tmp_path: Path, change: Any, tools: Any, reason: str
) -> None:
    turns = [f"<think>\nhm\n</think>\n\n{call('it')}"] * 2
    recorded = Recorded(tmp_path / "r.jsonl", *turns, "It was Ada.")
    messages = [*ASKED]
    for _ in turns:
        recorded.ask(messages, [SEARCH, ADD])
        result(messages, "Ada.")
    change(messages)
    recorded.ask(messages, tools)
    [first, second], counts = recorded.read()
    assert counts.reasons == {reason: 1}
    assert (first.question_id, second.question_id) == ("q1", "q1~2")
    assert (first.answer, second.answer) == ("It was Ada.", "It was Ada.")  # of the conversation
    assert (len(first.steps), len(second.steps)) == (1, 0)
    assert second.prompt_ids == recorded.process.seen[2][0].prompt_ids
    trained = [piece.text for piece in text_of(second) if piece.writer == "model"]
    assert trained == ["It was Ada.\n\n"]  # and not what the agent had said before


def test_a_kill_keeps_the_whole_lines_and_a_second_start_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    recorded = Recorded(path, "Ada.")
    first = recorded.ask([*ASKED]).id
    with pytest.raises(InputError, match="another steep record writes it"):
        Log(path)
    recorded.log.close()
    with path.open("ab") as file:
        file.write(b'{"turn": "chatcm')
    assert len(recorded.read()[0]) == 1
    again = Recorded(path, "Bo.", template="qwen2_5")
    answers = {"x-steep-answers": '["Bo", "Bob"]'}
    again.ask([{"role": "user", "content": "Who else?"}], extra_headers=answers)
    again.reward(first, 0)
    trajectories, counts = again.read()
    assert [each.answers for each in trajectories] == [["Ada"], ["Bo", "Bob"]]
    assert (trajectories[0].reward, trajectories[1].reward) == (0, None)
    assert (counts.turns, counts.without_answers) == (2, 0)


def test_conversations_without_gold_answers_and_reward_are_counted(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path / "r.jsonl", "Yes.", "So far", "No.", "No.")
    chat = [{"role": "user", "content": "Hello!"}]
    recorded.ask(chat)
    for _ in range(2):
        chat.append({"role": "user", "content": "More?"})
        recorded.ask(chat, max_tokens=2)
    recorded.ask([{"role": "user", "content": "Bye."}], ())
    trajectories, counts = recorded.read()
    assert (trajectories, counts.without_answers) == ([], 2)
    assert counts.reasons == {"the turn before was cut off": 1}
    assert str(counts) == (
        "4 turns of 2 conversations: 0 trajectories (1 the turn before was cut off); left out, "
        "without gold answers or a reward: 2 conversations"
    )


def test_recorded_trajectories_stand_in_for_sampling_and_are_scored_and_paired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Recorded(tmp_path / "r.jsonl", call("it"), "Answer: Ada", "It was Bo.", "Eve.")
    messages = [*ASKED]
    recorded.ask(messages)
    result(messages, "Ada.")
    recorded.ask(messages)
    for _ in range(2):
        last = recorded.ask([*ASKED]).id
    recorded.reward(last, 1)
    CliRunner().invoke(
        app, ["import", "--recorded", str(recorded.path), "-o", str(tmp_path / "t.jsonl")]
    )
    monkeypatch.chdir(tmp_path)
    named = ("start=base", "sampling.recorded=t.jsonl")
    task = task_for("sample", "embedded-search-r1", named, round=1)
    assert (set(task.upstream()), task.files(), [*task.opens()]) == (
        {"policy"}, {"recorded": Path("t.jsonl")}, [],
    )  # fmt: skip
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "lineage.json").write_text(json.dumps({"policy": "f" * 64}))
    inputs = {"policy": tmp_path / "policy"}
    for name, stage in {"sample": sample, "score": score, "pair": pair}.items():
        context = StageContext(
            task.settings, name, tmp_path / name, tmp_path, dict(inputs), round=1
        )
        context.output.mkdir()
        counts = stage.run(context)
        inputs[name] = context.output
    assert counts == {"pairs": 1, "trajectories": 3}
    [made] = read_records(tmp_path / "pair/pairs.parquet", Pair)
    assert json.loads(made.tools or "") == [SEARCH]
    totals = made.chosen_rewards["total"], made.rejected_rewards["total"]
    assert (made.chosen_id, made.rejected_id, totals) == (
        "q1/0@ffffffffffff", "q1/1@ffffffffffff", (1.0, pytest.approx(0.2)),
    )  # fmt: skip
    given = read_records(tmp_path / "score/trajectories.parquet", Trajectory)[2].rewards
    assert given == {"answer": 1.0, "format": 1.0, "total": 1.0}
    (tmp_path / "policy" / "lineage.json").write_text(json.dumps({"policy": "e" * 64}))
    with pytest.raises(
        InputError, match=r"t.jsonl:1: policy: ffffffffffff, and round 1 trains eee"
    ):
        sample.run(StageContext(task.settings, "sample", tmp_path, tmp_path, dict(inputs), round=1))
