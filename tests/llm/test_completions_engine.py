"""A teacher behind ``/completions``: what its server gets, and the trajectories it writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import Endpoint
from pipeline.conversations.chat_template import ChatTemplate
from pipeline.core.errors import ConfigError, EngineError
from pipeline.core.records import Question
from pipeline.grammars import grammar
from pipeline.grammars.tokens import control_tokens
from pipeline.llm.completions_engine import CompletionsEngine
from pipeline.rollout.conversations import ToolConversations
from tests.conversations.test_chat_template import MODES, opened
from tests.llm.fake_endpoint import FakeEndpoint, Response, refusal
from tests.llm.scripted_engine import ScriptedEngine
from tests.rollout.rolled_out import rolled_out
from tests.rollout.test_conversations import call
from tests.rollout.test_sampler import TEARAG, TOKENIZER, Documents, question, two_steps

Answer = Callable[[str], str | Response]


class FakeCompletions(FakeEndpoint):
    """Continues prompts; a text ends before the first stop string, which ``named`` reports."""

    def __init__(self, answer: Answer, named: str = "stop_reason") -> None:
        super().__init__(lambda *_: "")
        self.answer, self.named = answer, named

    def respond(self, body: dict[str, Any], key: str | None) -> Response:
        self.requests.append(body)
        self.keys.add(key)
        text = self.answer(body["prompt"])
        if isinstance(text, Response):
            return text
        found = [stop for stop in body.get("stop") or () if stop in text]
        choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": "stop"}
        if self.named:
            choice[self.named] = None
        if found:
            choice["text"] = text.partition(found[0])[0]
            choice |= {self.named: found[0]} if self.named else {}
        usage = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
        return Response(body=json.dumps({"id": "1", "choices": [choice], "usage": usage}))


LIMITED = '{"choices": null, "error": {"code": 429, "message": "slow down"}}'


def teacher(server: FakeEndpoint, tokenizer: Any = TOKENIZER, **settings: Any) -> CompletionsEngine:
    endpoint = Endpoint(**{"base_url": server.url, "model": "large", "retries": 0, **settings})
    return CompletionsEngine(
        endpoint, tokenizer, 4096, block="sft_data.rejection_sampling.endpoint"
    )


def rolled(engine: Any, *numbers: int) -> list[Any]:
    try:
        return rolled_out(
            [question(number) for number in numbers or (0,)], engine=engine, grammar=TEARAG,
            retriever=Documents(), policy="large", temperature=0.7,
        )  # fmt: skip
    finally:
        engine.close()


@pytest.mark.parametrize("named", ["stop_reason", "matched_stop"])
def test_a_teacher_writes_what_an_engine_would(named: str) -> None:
    [expected] = rolled(ScriptedEngine(lambda prompt, _: two_steps(prompt, None), TOKENIZER))
    with FakeCompletions(lambda prompt: two_steps(prompt, None), named) as server:
        [found] = rolled(teacher(server, extra={"top_k": 5}))
    same = ("output", "steps", "answer", "format_ok", "stop", "prompt_ids", "policy")
    assert {name: getattr(found, name) for name in same} == {
        name: getattr(expected, name) for name in same
    }  # the scripted engine's stop ends inside a token, so that its spans are a character longer
    assert TOKENIZER.decode(found.token_ids[:-1]) == found.output
    assert set(found.logprobs) == {None}
    first = server.requests[0]
    assert first["prompt"] == "<|system|>S\n<|user|>Q0?\n<|assistant|>"  # servers add <s>
    assert {name: first[name] for name in ("model", "temperature", "top_k")} == {
        "model": "large", "temperature": 0.7, "top_k": 5,
    }  # fmt: skip
    assert len({one["seed"] for one in server.requests}) == 3


@pytest.mark.parametrize("mode", ["qwen2.5", "llama-3.1"])
def test_a_teacher_calls_the_tools_of_the_students_template(mode: str, real_data: Path) -> None:
    template: ChatTemplate = opened(real_data, mode)
    tokenizer: Any = template.tokenizer
    form = grammar("tearag", special_tokens=control_tokens(tokenizer))
    turns = iter([call(mode, "who?"), "Found.\nAnswer: Rome"])
    with FakeCompletions(lambda _: next(turns), named="") as server:
        engine = teacher(server, tokenizer)
        [found] = rolled_out(
            [Question("q", "toy", "Who?", ["Rome"], "multi")], engine=engine, grammar=form,
            retriever=Documents(),
            conversations=ToolConversations(tokenizer, form, thinking=MODES[mode][2]),
        )  # fmt: skip
        engine.close()
    assert (found.answer, found.format_ok) == ("Rome", True)
    built = ToolConversations(tokenizer, form).template.build(json.loads(found.messages))
    assert (found.prompt_ids, found.token_ids) == (built.prompt_ids, built.token_ids)
    begin = tokenizer.bos_token_id
    assert begin is None or not server.requests[0]["prompt"].startswith(tokenizer.decode([begin]))


def test_one_prompt_can_fail_and_others_are_answered() -> None:
    long = refusal(400, "This model's maximum context length is 100 tokens")
    with FakeCompletions(lambda text: long if "Q1" in text else two_steps(text, None)) as server:
        found = rolled(teacher(server, concurrency=2), 0, 1, 2)
    stops = {one.question_id: one.stop for one in found}
    assert stops == {"q0": "answer", "q1": "max_tokens", "q2": "answer"}


def test_failures_of_all_prompts_name_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEACHER_KEY", "very-secret-key")
    cases: list[tuple[Answer, dict[str, Any], str]] = [
        (lambda _: refusal(401, "no such key very-secret-key"), {}, "set TEACHER_KEY to a key"),
        (lambda _: Response(body="{}"), {}, "is not a text completion"),
        (lambda _: refusal(500, "down"), {}, "gives no text: HTTP 500: down"),
        (
            lambda _: Response(body=LIMITED),
            {},
            "set sft_data.rejection_sampling.endpoint.requests_per",
        ),
        (lambda text: two_steps(text, None), {"token_ceiling": 20}, "token_ceiling is 20"),
    ]
    for answer, settings, words in cases:
        with FakeCompletions(answer) as server, pytest.raises(EngineError) as error:
            rolled(teacher(server, api_key_env="TEACHER_KEY", **settings))
        assert words in str(error.value)
        assert "very-secret-key" not in str(error.value)
    assert server.keys == {"Bearer very-secret-key"}
    with (
        FakeCompletions(lambda text: two_steps(text, None), named="") as server,
        pytest.raises(EngineError, match="does not say which stop string ended a text"),
    ):
        rolled(teacher(server))
    monkeypatch.delenv("TEACHER_KEY")
    with pytest.raises(ConfigError, match="TEACHER_KEY, which is not set"):
        teacher(server, api_key_env="TEACHER_KEY")
