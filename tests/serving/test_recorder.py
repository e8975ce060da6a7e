"""Recorded conversations of an agent become trajectories with the ids that the engine saw."""

from __future__ import annotations

import json
import random
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import openai
import pytest
from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.testclient import TestClient
from typer.testing import CliRunner

from pipeline.cli.app import app
from pipeline.core.errors import InputError, StoreError
from pipeline.core.record_io import read_records
from pipeline.core.records import Pair, Question, Trajectory
from pipeline.engine.context import StageContext
from pipeline.evaluation.excerpts import text_of
from pipeline.llm.tokens import decode_mask
from pipeline.rollout.recorded import Recording, recorded_trajectories
from pipeline.serving.recorder import Log, RecordedModel, recorder_routes
from pipeline.serving.turns import TurnRequest
from tasks import pair, sample, score, task_for
from tests.cli.malformed_inputs import finished
from tests.conversations.shipped_templates import SEARCH
from tests.serving.scripted_policy import (
    DECODING,
    ScriptedProcess,
    openai_client,
    scripted_policy,
    tokenizer_of,
)

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

    def __init__(
        self,
        path: Path,
        *turns: str,
        template: str = "qwen3_training",
        gold: tuple[Question, ...] = (GOLD,),
    ) -> None:
        tokenizer, written = tokenizer_of(template), iter(turns)
        self.path = path
        self.process = ScriptedProcess(lambda *_: next(written), tokenizer)
        policy, service = scripted_policy(self.process), FastAPI()
        self.log = Log(path)
        self.opened.append(self.log)
        self.model = RecordedModel(
            policy, lambda: tokenizer, DECODING, log=self.log, policy_id="f" * 64, questions=gold
        )
        service.include_router(recorder_routes(self.model, "round-1"))
        self.http = TestClient(service)
        self.client = openai_client(self.http)

    def ask(self, messages: list[dict[str, Any]], tools: Any = (SEARCH,), **options: Any) -> Any:
        """Send a request, and append the reply to ``messages``; returns the completion."""
        reply = self.client.chat.completions.create(
            model="gpt-4o", messages=messages, tools=list(tools), **options
        )
        messages.append(reply.choices[0].message.model_dump(exclude_none=True))
        return reply

    def post(self, messages: list[dict[str, Any]], header: str, value: str | bytes) -> Any:
        """The response to a request with a header, which may have any bytes."""
        body = {"messages": messages, "tools": [SEARCH]}
        headers = {header: value.encode() if isinstance(value, str) else value}
        return self.http.post("/v1/chat/completions", json=body, headers=headers)

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
    ids = [each.trajectory_id for each in trajectories]
    assert ids == ["q1/0@ffffffffffff", "q1/1@ffffffffffff"]
    with pytest.raises(openai.NotFoundError, match="there is no conversation 'other'"):
        recorded.reward("other", 1)


def said(recorded: Recorded, text: str) -> str:
    """The conversation of the turn whose message is ``text``."""
    rows = map(json.loads, recorded.path.read_text(encoding="utf-8").splitlines())
    turns = [row for row in rows if "turn" in row]
    [found] = {row["conversation"] for row in turns if row["messages"][-1]["content"] == text}
    return str(found)


def other_ids(messages: list[dict[str, Any]]) -> None:
    messages[2]["tool_calls"][0]["id"] = messages[3]["tool_call_id"] = "call_1"


def made_up(messages: list[dict[str, Any]]) -> None:
    messages[2:] = [
        {"role": "assistant", "content": "It is Bo."},
        {"role": "user", "content": "Sure?"},
    ]


@pytest.mark.parametrize(
    ("forge", "reason"), [(other_ids, "other ids of calls"), (made_up, "history rewritten")]
)
def test_a_forged_history_joins_no_conversation_and_gets_no_reward(
    tmp_path: Path, forge: Any, reason: str
) -> None:
    recorded = Recorded(tmp_path / "r.jsonl", call("it"), "Forged.", "Ada.")
    messages = [*ASKED]
    name = recorded.ask(messages).id
    result(messages, "x")
    forged = json.loads(json.dumps(messages))
    forge(forged)
    recorded.ask(forged)
    recorded.ask(messages)
    recorded.reward(name, 1)
    assert said(recorded, "Forged.") != name == said(recorded, "Ada.")
    trajectories, counts = recorded.read()
    assert counts.reasons == {f"ambiguous: {reason}": 1}
    assert [each.reward for each in trajectories if each.answer == "Forged."] == [None]


def test_equal_turns_without_calls_are_ambiguous_and_a_header_tells_them_apart(
    tmp_path: Path,
) -> None:
    replies = ["Hm.", "Hm.", "One.", "Two.", "Hm.", "Hm.", "Three.", "Four."]
    recorded = Recorded(tmp_path / "r.jsonl", *replies)
    plain = [[*ASKED], [*ASKED]]
    for messages in plain:
        recorded.ask(messages)
    well = {"role": "user", "content": "Well?"}
    for messages in plain:
        recorded.ask([*messages, well])
    for more in ([], [{"role": "assistant", "content": "Hm."}, well]):
        for name in ("größe-1", "größe-2"):
            assert recorded.post([*ASKED, *more], "x-steep-conversation", name).status_code == 200
    names = [said(recorded, text) for text in ("One.", "Two.", "Three.", "Four.")]
    assert len(set(names)) == 4
    assert names[2:] == ["größe-1", "größe-2"]
    _, counts = recorded.read()
    assert counts.reasons == {"ambiguous: equal replies in several conversations": 2}
    assert counts.conversations == 6


def test_a_whole_conversation_without_calls_is_continued_by_whoever_repeats_it(
    tmp_path: Path,
) -> None:
    recorded = Recorded(tmp_path / "r.jsonl", "Hm.", "Ada.")
    name = recorded.ask([*ASKED]).id
    said_before = [{"role": "assistant", "content": "Hm."}, {"role": "user", "content": "Well?"}]
    recorded.ask([*ASKED, *said_before])
    assert said(recorded, "Ada.") == name


def test_a_restart_attributes_by_what_the_file_holds(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    recorded = Recorded(path, call("it"), "Hm.")
    searched, plain = [*ASKED], [*ASKED]
    names = [recorded.ask(searched).id, recorded.ask(plain).id]
    recorded.log.close()
    again = Recorded(path, "Hm.", "Ada.", "Which?")
    again.ask([*ASKED])
    result(searched, "x")
    again.ask(searched)
    plain.append({"role": "user", "content": "Well?"})
    again.ask(plain)
    assert said(again, "Ada.") == names[0]
    assert said(again, "Which?") not in names
    _, counts = again.read()
    ambiguous = "ambiguous: equal replies in several conversations"
    assert counts.reasons == {"unknown history": 1, ambiguous: 1}


def rewritten(messages: list[dict[str, Any]], how: str, text: str) -> list[dict[str, Any]]:
    """A history as agents rewrite it; ``text`` occurs in no other history."""
    messages = json.loads(json.dumps(messages))
    if how == "trimmed" and len(messages) > 4:
        return [*messages[:2], *messages[-2:]]
    for each in messages:
        for made in each.get("tool_calls", ()):
            made["id"] = text if how == "ids" else made["id"]
        if each["role"] == "tool":
            each["tool_call_id"] = text if how == "ids" else each["tool_call_id"]
        if each["role"] == how:
            each["content"] = text
    return messages


def test_no_turn_of_interleaved_agents_is_ever_another_agents(tmp_path: Path) -> None:
    """Agents ask two questions, and start again after a few turns."""
    turns, choose = 40, random.Random(0)
    replies = choose.choices([call("it"), call("that"), "Hm.", "Ada."], k=turns)
    recorded = Recorded(tmp_path / "r.jsonl", *replies)
    histories: dict[int, list[dict[str, Any]]] = {}
    writers: dict[str, tuple[int, int]] = {}
    started = dict.fromkeys(range(5), 0)
    for number in range(turns):
        agent = choose.choice([*started])
        messages = histories.get(agent)
        if messages is None or len(messages) > 8:
            question = "Who directed it?" if agent else "Who else?"
            messages, started[agent] = [ASKED[0], {"role": "user", "content": question}], number
        elif "tool_calls" in messages[-1]:
            result(messages, choose.choice(["found", "nothing"]))
        else:
            messages.append({"role": "user", "content": "Well?"})
        how = choose.choice(["", "", "", "system", "user", "assistant", "tool", "ids", "trimmed"])
        histories[agent] = rewritten(messages, how, f"{number} is new.")
        writers[recorded.ask(histories[agent]).id] = agent, started[agent]
    owners: dict[str, set[tuple[int, int]]] = {}
    rows = list(map(json.loads, recorded.path.read_text(encoding="utf-8").splitlines()))
    for row in rows:
        owners.setdefault(row["conversation"], set()).add(writers[row["turn"]])
    assert [each for each in owners.values() if len(each) > 1] == []
    joined = sum(row["after"] is not None for row in rows)
    own = [str(row["reason"]) for row in rows if row["conversation"] == row["turn"]]
    assert joined > turns / 10 < sum(reason.startswith("ambiguous: ") for reason in own)
    assert {reason.partition(":")[0] for reason in own} <= {"None", "ambiguous", "unknown history"}
    assert recorded.read()[1].turns == turns


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("answers", "null", "expected texts"),
        ("answers", "[]", "expected texts"),
        ("answers", '[""]', "expected texts"),
        ("answers", " ", "0 characters"),
        ("answers", '["Rome", 1912]', "expected texts"),
        ("answers", '["Rome"', "not valid JSON"),
        ("answers", r'["\ud800"]', "half of a surrogate"),
        ("answers", "x" * 10_001, "10,001 characters"),
        ("conversation", "", "0 characters"),
        ("answer", "Rome", "expected x-steep-answers"),
    ],
)
def test_a_header_that_is_not_read_is_refused_before_a_turn_is_sampled(
    tmp_path: Path, name: str, value: Any, problem: str
) -> None:
    recorded = Recorded(tmp_path / "r.jsonl", "Rome.")
    refused = recorded.post([*ASKED], f"x-steep-{name}", value)
    assert refused.status_code == 400
    assert problem in refused.json()["error"]["message"]
    assert (recorded.process.seen, recorded.path.read_bytes()) == ([], b"")


def test_a_header_in_latin_1_is_refused(tmp_path: Path) -> None:
    model, asked = Recorded(tmp_path / "r.jsonl").model, TurnRequest(messages=ASKED)
    headers = Headers(raw=[(b"x-steep-answers", b"Z\xfcrich")])  # test clients send UTF-8
    with pytest.raises(InputError, match="x-steep-answers: not UTF-8 text"):
        model.prepare(asked, headers)


@pytest.mark.parametrize(
    ("value", "answers"),
    [
        ('["Zürich", "チューリッヒ"]'.encode(), ["Zürich", "チューリッヒ"]),
        ('"Rome"', ["Rome"]),
        ("1912", ["1912"]),
    ],
)
def test_gold_answers_are_read_from_a_header(
    tmp_path: Path, value: Any, answers: list[str]
) -> None:
    recorded = Recorded(tmp_path / "r.jsonl", "Rome.")
    recorded.post([*ASKED], "x-steep-answers", value)
    assert [each.answers for each in recorded.read()[0]] == [answers]


def test_equal_questions_have_the_gold_answers_of_all(tmp_path: Path) -> None:
    other = Question("q2", "toy", "who directed  it?", ["Bo", "Ada"], "single")
    recorded = Recorded(tmp_path / "r.jsonl", "Answer: Ada", gold=(GOLD, other))
    recorded.ask([*ASKED])
    [trajectory], _ = recorded.read()
    assert (trajectory.question_id, trajectory.answers) == ("q1", ["Ada", "Bo"])


@pytest.mark.parametrize("command", [["record", "--policy", "1", "--questions"], ["decompose"]])
def test_rows_without_a_question_are_counted_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"question": "Who?", "answers": ["Ada"]}, {"question": 1}, {"question": "X?"}]
    Path("own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = ["-c", "embedded", "--set", f"runs_dir={tmp_path}"]
    told = CliRunner().invoke(app, [*command, "own.jsonl", *options])
    assert isinstance(told.exception, StoreError)  # nothing is trained
    assert "1 rows without an answer, which are left out" in told.output
    assert "1 malformed rows, which are left out; the first: own.jsonl:2: question" in told.output


def test_a_full_disk_is_the_answer_of_a_request_and_leaves_nothing_of_its_turn(
    tmp_path: Path,
) -> None:
    recorded = Recorded(tmp_path / "r.jsonl", call("it"), "Lost.", "Ada.")
    messages = [*ASKED]
    name = recorded.ask(messages).id
    result(messages, "x")
    before = recorded.path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limits[1]))
    try:
        with pytest.raises(openai.InternalServerError, match="cannot be written") as refused:
            recorded.ask([*messages])
        with pytest.raises(openai.InternalServerError, match="File too large"):
            recorded.reward(name, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert refused.value.status_code == 507
    assert (refused.value.type, recorded.path.read_bytes()) == ("server_error", before)
    recorded.ask(messages)
    [trajectory], counts = recorded.read()
    assert (trajectory.answer, counts.turns, counts.reasons.total()) == ("Ada.", 2, 0)


@pytest.mark.parametrize(
    ("place", "changed", "tools", "reason"),
    [
        (3, {"content": "shortened"}, [SEARCH, ADD], "history rewritten"),
        (0, {"content": "Search. Today is 2 June 2024."}, [SEARCH, ADD], "dates changed"),
        (0, {"content": "Do not search."}, [SEARCH, ADD], "system message changed"),
        (2, {"reasoning_content": "other"}, [SEARCH, ADD], "reasoning changed"),
        (0, {}, [ADD, SEARCH], "tools re-ordered"),
        (0, {}, [SEARCH], "tools changed"),
    ],
)
def test_a_turn_that_does_not_continue_starts_a_trajectory_with_the_reason(
    tmp_path: Path, place: int, changed: dict[str, str], tools: Any, reason: str
) -> None:
    turns = [f"<think>\nhm\n</think>\n\n{call('it')}"] * 2
    recorded = Recorded(tmp_path / "r.jsonl", *turns, "It was Ada.")
    messages = [*ASKED]
    for _ in turns:
        recorded.ask(messages, [SEARCH, ADD])
        result(messages, "Ada.")
    messages[place] = messages[place] | changed
    recorded.ask(messages, tools)
    [first, second], counts = recorded.read()
    assert counts.reasons == {reason: 1}
    assert (first.question_id, second.question_id) == ("q1", "q1~2")
    assert (first.answer, second.answer) == ("It was Ada.", "It was Ada.")  # of the conversation
    assert (len(first.steps), len(second.steps)) == (1, 0)
    assert second.prompt_ids == recorded.process.seen[2][0].prompt_ids
    trained = [piece.text for piece in text_of(second) if piece.writer == "model"]
    assert trained == ["It was Ada.\n\n"]  # and not what the agent had said before


@pytest.mark.parametrize("left", ["{", '{"turn": "chatcm'])
def test_a_kill_keeps_the_whole_lines_and_a_second_start_goes_on(tmp_path: Path, left: str) -> None:
    path = tmp_path / "r.jsonl"
    recorded = Recorded(path, "Ada.")
    first = recorded.ask([*ASKED]).id
    with pytest.raises(InputError, match="another steep record writes it"):
        Log(path)
    recorded.log.close()
    with path.open("ab") as file:
        file.write(left.encode())
    assert len(recorded.read()[0]) == 1
    again = Recorded(path, "Bo.", template="qwen2_5")
    answers = {"x-steep-answers": '["Bo", "Bob"]'}
    again.ask([{"role": "user", "content": "Who else?"}], extra_headers=answers)
    again.reward(first, 0)
    trajectories, counts = again.read()
    assert [each.answers for each in trajectories] == [["Ada"], ["Bo", "Bob"]]
    assert (trajectories[0].reward, trajectories[1].reward) == (0, None)
    assert (counts.turns, counts.without_answers) == (2, 0)


@pytest.mark.parametrize(
    "content",
    [
        b'{"precious": 1}\n',
        b"notes",
        b"\x00\xff",
        b'{"turn": 1, "text": "a log of another program"}',
        b'{"conversation": "c", "reward": 1}\n{"question": "Who?", "answer": "Ada"}\n',
        b'{"question": "Who?"}\n{"turn": "cut off',
        b'{"conversation": "c", "reward": 1}\n{"turns"',
    ],
)
def test_a_file_that_is_no_recording_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "precious.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"precious\.json.* name another one with --output"):
        Log(path)
    assert path.read_bytes() == content


def test_a_recording_is_a_regular_file_in_any_folder(tmp_path: Path) -> None:
    for path in (tmp_path, Path("/dev/null"), Path("-")):
        with pytest.raises(InputError, match="is not a regular file"):
            Log(path)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "new" / "r.jsonl")
    (tmp_path / "new").mkdir()
    recorded = Recorded(link, "Ada.")
    recorded.ask([*ASKED])
    recorded.log.close()
    assert link.is_symlink()
    whole = link.read_bytes()
    link.write_bytes(whole[:-1])  # without the end of the line
    Log(link).close()
    assert link.read_bytes() == whole


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


def test_turns_under_a_grammar_are_marked_and_counted(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path / "r.jsonl", call("it"), "Ada.")
    messages = [*ASKED]
    recorded.ask(messages, tool_choice="required")
    result(messages, "x")
    recorded.ask(messages)
    rows = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert [row["constrained"] for row in rows] == [True, False]
    _, counts = recorded.read()
    assert str(counts).startswith("2 turns (1 under a grammar) of 1 conversations: 1 trajectories")


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
    finished("import", "--recorded", recorded.path, "-o", tmp_path / "t.jsonl")
    monkeypatch.chdir(tmp_path)
    named = ("start=base", "sampling.recorded=t.jsonl")
    task = task_for("sample", "embedded-search-r1", named, round=1)
    assert (set(task.inputs), [*task.opens()]) == ({"policy"}, [])
    assert task.files() == {"recorded": Path("t.jsonl")}
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
    assert (made.chosen_id, made.rejected_id) == ("q1/0@ffffffffffff", "q1/1@ffffffffffff")
    totals = (made.chosen_rewards["total"], made.rejected_rewards["total"])
    assert totals == (1.0, pytest.approx(0.2))
    given = read_records(tmp_path / "score/trajectories.parquet", Trajectory)[2].rewards
    assert given == {"answer": 1.0, "format": 1.0, "total": 1.0}
    (tmp_path / "policy" / "lineage.json").write_text(json.dumps({"policy": "e" * 64}))
    with pytest.raises(
        InputError, match=r"t.jsonl:1: policy: ffffffffffff, and round 1 trains eee"
    ):
        sample.run(StageContext(task.settings, "sample", tmp_path, tmp_path, dict(inputs), round=1))
