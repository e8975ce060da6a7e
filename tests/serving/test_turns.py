"""The plain policy for agents that run their own loop, by OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import openai
import pytest

from pipeline.core.errors import InputError
from pipeline.llm.tokens import decode
from pipeline.rollout.conversations.chat_template import ChatTemplate
from pipeline.rollout.conversations.json_schemas import schema_problem
from pipeline.serving.turns import PlainModel, TurnRequest
from tests.conversations.shipped_templates import SEARCH
from tests.serving.scripted_policy import (
    DECODING,
    ScriptedProcess,
    chat_client,
    openai_client,
    scripted_policy,
    tokenizer_of,
)

CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "who?"}}\n</tool_call>'
TREE = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}}
QUESTION: dict[str, Any] = {"role": "user", "content": "Who directed it?"}


def tool(parameters: Any, name: str = "find") -> Any:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def named(name: str) -> Any:
    return {"type": "function", "function": {"name": name}}


class Served:
    """A policy that writes ``turns``, and OpenAI's client of it."""

    def __init__(self, *turns: str, template: str = "qwen2_5") -> None:
        tokenizer, written = tokenizer_of(template), iter(turns)
        self.process = ScriptedProcess(lambda *_: next(written), tokenizer)
        self.http = chat_client(scripted_policy(self.process), tokenizer)
        self.client = openai_client(self.http)

    def ask(self, **options: Any) -> Any:
        asked = {"model": "policy", "messages": [QUESTION], **options}
        return self.client.chat.completions.create(**asked)

    def message(self, **options: Any) -> Any:
        return self.ask(**options).choices[0].message


def test_an_agent_gets_tool_calls_and_the_engine_the_templates_ids() -> None:
    policy = Served(f"I search.\n{CALL}", "Found.\nAnswer: Ada")
    assert [model.id for model in policy.client.models.list()] == ["round-1", "policy"]
    messages = [{"role": "system", "content": "Search."}, QUESTION]
    [choice] = policy.ask(messages=messages, tools=[SEARCH]).choices
    [call] = choice.message.tool_calls
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I search.")
    assert call.function.name == "search"
    assert json.loads(call.function.arguments) == {"query": "who?"}
    result = {"role": "tool", "tool_call_id": call.id, "content": "Ada.<|im_end|></tool_response>"}
    messages += [choice.message.model_dump(exclude_none=True), result]
    reply = policy.ask(messages=messages, tools=[SEARCH], temperature=0, max_tokens=7, seed=3)
    [choice] = reply.choices
    assert (choice.finish_reason, choice.message.content) == ("length", "Found.\n")
    (first, _), (second, sampled) = policy.process.seen
    assert (first.temperature, first.top_p, first.max_tokens) == (0.5, 0.9, 500)
    assert (second.temperature, second.max_tokens, second.seed) == (0, 7, 3)
    tokenizer = policy.process.engine.tokenizer
    template = ChatTemplate(tokenizer, [SEARCH])
    built = template.build([*messages, {"role": "assistant", "content": "x"}])
    ids = [*built.prompt_ids, *built.token_ids]
    assert second.prompt_ids == ids[: len(second.prompt_ids)]
    text = decode(tokenizer, second.prompt_ids)
    assert text.endswith("<|im_start|>assistant\n")
    assert "Ada.&lt;|im_end|&gt;&lt;/tool_response&gt;\n</tool_response>" in text
    assert reply.usage.prompt_tokens == len(second.prompt_ids)
    assert reply.usage.completion_tokens == len(sampled.token_ids) == 7


def test_a_stream_gives_the_turn_of_a_thinking_model() -> None:
    turn = f"<think>\nhm\n</think>\n\n{CALL}"
    policy = Served(turn, template="qwen3_training")
    deltas = [piece.choices[0] for piece in policy.ask(tools=[SEARCH], stream=True)]
    assert [delta.finish_reason for delta in deltas] == [None, "tool_calls"]
    assert deltas[0].delta.reasoning_content == "hm"  # type: ignore[attr-defined]
    [call] = deltas[0].delta.tool_calls
    assert (call.index, call.function.name) == (0, "search")
    assert json.loads(call.function.arguments) == {"query": "who?"}


def test_the_usage_of_a_stream_comes_apart_if_it_is_asked_for() -> None:
    policy = Served("Ada.", "Ada.")
    pieces = list(policy.ask(stream=True))
    assert [len(piece.choices) for piece in pieces] == [1, 1]
    assert pieces[-1].usage is not None
    pieces = list(policy.ask(stream=True, stream_options={"include_usage": True}))
    assert [len(piece.choices) for piece in pieces] == [1, 1, 0]
    assert [piece.usage is not None for piece in pieces] == [False, False, True]


def test_a_malformed_turn_is_its_text_and_a_stop_string_is_left_out() -> None:
    broken = '<tool_call>\n{"name": "search", "arguments": {"q": 1}}\n</tool_call>'
    policy = Served(broken, "Thought.\nObservation: x", "So <tool_call>")
    message = policy.message(tools=[SEARCH])
    assert (message.content, message.tool_calls) == (broken, None)
    assert policy.message(stop=["Observation:"]).content == "Thought.\n"
    assert policy.message().content == "So <tool_call>"


def test_a_stop_string_that_decoding_strips_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Served(" Observation: x")
    sampled = policy.process.engine.generate

    def generate(turns: list[Any]) -> list[Any]:
        return [replace(result, text=result.text.lstrip()) for result in sampled(turns)]

    monkeypatch.setattr(policy.process.engine, "generate", generate)
    assert policy.message(stop=[" Observation:"]).content == "Observation:"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"tools": [SEARCH], "tool_choice": named("add")}, "tool_choice: tools has no such tool"),
        ({"tools": [tool({}, "a b")]}, "tools.0.function.name: String should match pattern"),
        ({"tools": [SEARCH, SEARCH]}, "tools.1.function.name: there are two tools search"),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema: it is missing",
        ),
        ({"stop": ""}, "stop.0: String should have at least 1 character"),
        ({"temperature": 2.5}, "temperature: Input should be less than or equal to 2"),
        ({"seed": 2**63}, "seed: Input should be less than 9223372036854775808"),
        ({"logprobs": True}, "logprobs: true is not served here; steep record writes the log-prob"),
        ({"presence_penalty": 0.5}, "presence_penalty: 0.5 is not served here; leave it out"),
        ({"extra_body": {"top_k": 5}}, "top_k: 5 is not served here"),
        ({"model": "round-1", "tools": [SEARCH]}, "tools: .*; the model searches by itself; use"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "messages.0.role: 'bot' is not one of"),
        ({"messages": [QUESTION | {"content": "x" * 9000}]}, "9,097 tokens, and the engine"),
        (
            {"messages": [QUESTION | {"content": "x" * 200_000}]},
            "messages: they have 200,039 charac",
        ),
        ({"messages": [QUESTION, {"role": "assistant", "content": "x"}]}, "the last is an assist"),
        ({"n": 2}, "n: 2 is not served here; send as many requests"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused(options: dict[str, Any], problem: str) -> None:
    policy = Served()
    with pytest.raises(openai.BadRequestError, match=problem) as refused:
        policy.ask(**options)
    assert refused.value.type == "invalid_request_error"
    assert (refused.value.param or "").partition(".")[0] in {*options, "top_k"}
    assert policy.process.seen == []


def test_values_that_change_nothing_are_taken() -> None:
    policy = Served("Ada.")
    neutral = {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"}
    nothing: Any = {"n": 1, "logprobs": False, "frequency_penalty": 0.0, "logit_bias": {}}
    unset: Any = dict.fromkeys(("tools", "tool_choice", "stop", "response_format", "top_logprobs"))
    extra = {**neutral, **nothing, **unset}
    policy.ask(seed=-1, max_tokens=10**30, temperature=2, extra_body=extra)
    [(request, _)] = policy.process.seen
    assert (request.seed, request.stop) == (2**63 - 1, ())
    assert (request.temperature, request.constraint) == (2, None)


@pytest.mark.parametrize(
    ("parameters", "arguments", "taken"),
    [
        (None, {}, True),
        ({"type": "object", "properties": {"q": {"type": ["string", "null"]}}}, {"q": None}, True),
        ({"type": "object", "properties": {"q": True}}, {"q": [1]}, True),
        ({"properties": {"q": {"anyOf": [{"type": "integer"}, {"enum": ["x"]}]}}}, {"q": "x"}, True),
        ({"properties": {"q": {"anyOf": [{"type": "integer"}, {"enum": ["x"]}]}}}, {"q": "y"}, False),
        (TREE, {"children": [{"children": []}]}, True),
        (TREE, {"children": [{"children": "x"}]}, False),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"q": {"items": [{}]}}}, {}, True),
    ],
)  # fmt: skip
def test_any_json_schema_of_a_tool_is_served(parameters: Any, arguments: Any, taken: bool) -> None:
    written = json.dumps({"name": "find", "arguments": arguments})
    policy = Served(f"<tool_call>\n{written}\n</tool_call>")
    calls = policy.message(tools=[tool(parameters)]).tool_calls
    assert [json.loads(call.function.arguments) for call in calls or []] == [arguments] * taken


DOUBLING = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(40)}


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"type": "objet"}, ".type: 'objet' is not valid under any"),
        ({"properties": {"q": {"pattern": "("}}}, ".properties.q.pattern: '\\(' is not a 'regex'"),
        ({"properties": {"q": {"$ref": "#/$defs/q"}}}, ": it has no '#/\\$defs/q'; a \\$ref names a part"),
        ({"$ref": "#"}, ": it is too deep, or its references have no end"),
        ({"properties": {"q": {"unevaluatedProperties": False}}}, ": unevaluatedProperties is not sup"),
        ({"$defs": DOUBLING | {"a40": {}}, "$ref": "#/$defs/a0"}, ": it is too deep, or its ref"),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_evaluated_is_refused_with_its_place(
    parameters: Any, problem: str
) -> None:
    policy = Served()
    with pytest.raises(openai.BadRequestError, match=f"tools.0.function.parameters{problem}"):
        policy.ask(tools=[tool(parameters)])
    assert policy.process.seen == []


class Page(BaseHTTPRequestHandler):
    """A schema that is on the web; ``asked`` are the paths that were fetched."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"type": "string"}')


def test_a_schema_elsewhere_is_not_fetched(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"type": "string"}', encoding="utf-8")
    server = HTTPServer(("127.0.0.1", 0), Page)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        web = f"http://127.0.0.1:{server.server_port}/s.json"
        for address in (web, (tmp_path / "s.json").as_uri()):
            with pytest.raises(
                openai.BadRequestError, match=r"a \$ref names a part of the same sch"
            ):
                Served(CALL).ask(tools=[tool({"$ref": address})])
    finally:
        server.shutdown()
        server.server_close()
    assert Page.asked == []


ENDLESS, LONG = "^(a|aa)+$", "a" * 60 + "!"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"pattern": ENDLESS}, LONG),
        ({"patternProperties": {ENDLESS: {}}, "additionalProperties": False}, {LONG: 1}),
    ],
)
def test_a_pattern_without_end_holds_nobody(schema: Any, value: Any) -> None:
    assert schema_problem(schema, value) == "their schema cannot be evaluated (TimeoutError)"


def test_properties_by_pattern_are_checked() -> None:
    schema = {
        "properties": {"q": {}},
        "patternProperties": {"^n_": {"type": "integer"}},
        "additionalProperties": False,
    }
    assert schema_problem(schema, {"q": "x", "n_1": 1}) is None
    assert schema_problem(schema, {"n_1": "1"}) == "'1' is not of type 'integer'"
    assert "('other' was unexpected)" in str(schema_problem(schema, {"q": "x", "other": 1}))


def test_a_forced_call_and_an_answer_in_json_are_grammars_of_the_template() -> None:
    policy = Served(CALL, f"{CALL}\n{CALL}", '{"name": "Ada"}', "Ada", "x")
    forced = policy.message(tools=[SEARCH, tool({})], tool_choice=named("search"))
    assert [call.function.name for call in forced.tool_calls] == ["search"]
    two = policy.message(tools=[SEARCH], tool_choice="required", parallel_tool_calls=False)
    assert two.tool_calls is None
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    form = {"type": "json_schema", "json_schema": {"name": "who", "schema": schema}}
    assert policy.message(response_format=form).content == '{"name": "Ada"}'
    assert policy.message(response_format={"type": "json_object"}).content == "Ada"
    assert policy.message(tools=[SEARCH], tool_choice="auto").content == "x"
    tags = [request.constraint for request, _ in policy.process.seen]
    assert tags[0] == tags[1] != tags[2] != tags[3]
    assert (json.loads(tags[3])["type"], tags[4]) == ("structural_tag", None)


def test_the_other_endpoints_of_openai_are_refused_with_the_way_out() -> None:
    client = Served().client
    assert client.models.retrieve("policy").owned_by == "steep"
    with pytest.raises(openai.NotFoundError, match="no model 'gpt-4o'; use round-1 or policy"):
        client.models.retrieve("gpt-4o")
    with pytest.raises(openai.NotFoundError, match=r"set_default_openai_api\('chat_completions'\)"):
        client.responses.create(model="policy", input="Who?")
    with pytest.raises(openai.NotFoundError, match="there are /v1/chat/completions and /v1/models"):
        client.embeddings.create(model="policy", input="Who?")
    with pytest.raises(openai.NotFoundError, match="a base_url ends in /v1"):
        client.with_options(base_url="http://localhost").models.list()
    with pytest.raises(openai.APIStatusError, match="/v1/chat/completions takes POST") as refused:
        client.get("/chat/completions", cast_to=object)
    assert (refused.value.status_code, refused.value.type) == (405, "invalid_request_error")
    with pytest.raises(openai.APIStatusError, match="/v1/models/policy takes GET") as refused:
        client.models.delete("policy")
    assert refused.value.response.headers["allow"] == "GET"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "EOF while parsing"),
        (b"[1]", "a JSON list; send an object"),
        (b'{"temperature": 1e999}', "Out of range float"),
        (b'{"messages": ' + b"[" * 100_000, "recursion limit exceeded"),
        (b'{"model": "\xff"}', "invalid unicode code point"),
    ],
)  # fmt: skip
def test_a_body_that_is_no_json_object_is_refused(body: bytes, problem: str) -> None:
    reply = Served().http.post("/v1/chat/completions", content=body)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert problem in error["message"]
    assert (error["type"], error["param"]) == ("invalid_request_error", None)


def test_tools_under_a_template_that_leaves_them_out_are_refused() -> None:
    policy = Served("It is Ada.", template="qwen2_5_vl")
    with pytest.raises(openai.BadRequestError, match=r"leaves out the tools; set model.chat_templ"):
        policy.ask(tools=[SEARCH])
    assert policy.message().content == "It is Ada."


class Counting:
    """A tokenizer that counts the characters which it gets."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.characters = tokenizer, 0

    def __call__(self, text: str, **options: Any) -> Any:
        self.characters += len(text)
        return self.tokenizer(text, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": " " * 1_000_000}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "中" * 300_000}]}]},
        {"messages": [{"role": "user", "content": ""}] * 30_000},
        {"messages": [QUESTION], "tools": [{**SEARCH, "description": "x" * 1_000_000}]},
    ],
)
def test_a_request_that_is_much_too_long_is_refused_without_being_rendered(
    fields: dict[str, Any],
) -> None:
    """Megabytes would take the thread of all turns for half a minute."""
    tokenizer = Counting(tokenizer_of("qwen2_5"))
    model = PlainModel(scripted_policy(None), lambda: tokenizer, DECODING)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"characters with the tools.*takes 6,000 tokens; shorten"):
        asyncio.run(model.complete(TurnRequest.model_validate(fields), {}))
    assert 0 < tokenizer.characters <= 200_000
