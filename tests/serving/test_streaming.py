"""With ``stream``, OpenAI's client gets each step of a roll-out when its documents are there."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest
from fastapi import FastAPI

from pipeline.config.policy import Prompt
from pipeline.core.errors import EngineError
from pipeline.core.records import Chunk, ContextItem
from pipeline.knowledge.corpus.chunk import write_chunks
from pipeline.knowledge.retrieval.origins import passages
from pipeline.llm.engine import GenerationRequest
from pipeline.llm.shared_engine import SharedEngine
from pipeline.rollout.answering import OpenPolicy, PolicyProcess, question_record
from pipeline.rollout.policy import RolloutSettings
from pipeline.rollout.sampler import Rollout, answer_questions
from pipeline.rollout.tags import TaggedText
from pipeline.serving.completions import completion_routes
from pipeline.serving.policy import ServedPolicy
from tests.llm.scripted_engine import ScriptedEngine
from tests.rollout.test_sampler import STEP_1, STEP_2, TEARAG, TOKENIZER, Documents, two_steps
from tests.serving.scripted_policy import chat_client, openai_client
from tests.waiting import LIMIT


def written(prompt: str, request: GenerationRequest) -> str:
    """Two steps; the engine refuses the second of a question that says so."""
    if "Fail?" in prompt and STEP_1 in prompt:
        raise ValueError("this cannot go on")
    return two_steps(prompt, request)


@contextmanager
def scripted() -> Iterator[OpenPolicy]:
    """The policy in its own process, with a scripted engine."""
    engine = SharedEngine(ScriptedEngine(written, TOKENIZER, max_model_len=4096))
    rollout = Rollout(
        engine=engine, format=TaggedText(TOKENIZER, TEARAG), retriever=Documents(),
        settings=RolloutSettings(prompt=Prompt(system="S")), policy="p",
    )  # fmt: skip
    yield OpenPolicy(partial(answer_questions, rollout, seed=0), engine)


@contextmanager
def starting() -> Iterator[OpenPolicy]:
    """A policy whose engine takes an hour to start."""
    time.sleep(3600)
    yield OpenPolicy(lambda: iter(()), SharedEngine(ScriptedEngine(written, TOKENIZER)))


def test_a_service_that_ends_does_not_wait_for_its_engine_to_start() -> None:
    process, ended = PolicyProcess("sft", starting), threading.Event()
    try:
        ended.set()
        with pytest.raises(EngineError, match="policy sft was not ready when its service ended"):
            process.wait_until_ready(ended)
    finally:
        process.stop()
    assert not process._process.is_alive()


@pytest.fixture(scope="module")
def process() -> Iterator[PolicyProcess]:
    opened = PolicyProcess("sft", scripted)
    try:
        opened.wait_until_ready()
        yield opened
    finally:
        opened.stop()


@pytest.fixture
def client(tmp_path: Path, process: PolicyProcess) -> openai.OpenAI:
    chunks = [Chunk(f"c-{name}", "T", f"on {name}", "d") for name in ("who?", "where?")]
    write_chunks(tmp_path, chunks)
    policy = ServedPolicy("sft", tmp_path, failed=lambda error: None)
    policy.process = process
    return openai_client(chat_client(policy, TOKENIZER))


def test_steps_are_pieces_of_reasoning_and_the_answer_comes_last(client: openai.OpenAI) -> None:
    def asked(text: str) -> list[openai.types.chat.ChatCompletionChunk]:
        messages = [{"role": "user", "content": text}]
        return list(client.chat.completions.create(model="sft", messages=messages, stream=True))

    pieces = asked("Who?")
    deltas = [piece.choices[0].delta for piece in pieces]
    extras = [delta.model_extra or {} for delta in deltas]
    steps = [extra["reasoning_content"] for extra in extras if "reasoning_content" in extra]
    assert [text.partition("Evidence")[0] for text in steps] == [STEP_1, STEP_2]
    assert all(text.endswith("</Reference>\n") for text in steps)
    assert [delta.content for delta in deltas if delta.content] == ["Rome"]
    [metadata] = [extra["metadata"] for extra in extras if "metadata" in extra]
    assert [source["id"] for source in metadata["sources"]] == ["c-who?", "c-where?"]
    assert len({piece.id for piece in pieces}) == 1
    assert pieces[-1].choices[0].finish_reason == "stop"
    with pytest.raises(openai.APIError, match="ValueError: this cannot go on"):
        asked("Fail?")  # after the first step, so that the status was sent
    assert "".join(piece.choices[0].delta.content or "" for piece in asked("Who else?")) == "Rome"


def test_sources_are_looked_up_beside_the_event_loop(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(items: list[ContextItem], corpus: Path) -> list[Chunk]:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        return passages(items, corpus)

    monkeypatch.setattr("pipeline.serving.policy.passages", found)
    messages: Any = [{"role": "user", "content": "Who?"}]
    [choice] = client.chat.completions.create(model="sft", messages=messages).choices
    sources = (choice.message.model_extra or {})["metadata"]["sources"]
    assert [source["id"] for source in sources] == ["c-who?", "c-where?"]


def test_a_client_that_leaves_before_its_question_fails_leaves_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def complete(body: Any, headers: Any, watch: Any) -> dict[str, Any]:
        watch("a step")
        await asyncio.sleep(0.05)
        raise EngineError("this cannot go on")

    service, body = FastAPI(), b'{"model": "m", "stream": true}'
    service.include_router(completion_routes(["m"], complete))
    scope = {
        "type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": [],
        "query_string": b"", "asgi": {"version": "3.0"}, "http_version": "1.1",
    }  # fmt: skip

    async def leave() -> None:
        got, parts = asyncio.Event(), [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if not parts:
                await got.wait()
            return parts.pop() if parts else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                got.set()

        await service(scope, receive, send)
        await asyncio.sleep(0.2)

    asyncio.run(leave())
    gc.collect()
    assert caplog.records == []


def test_what_concerns_one_request_or_the_terminal_does_not_end_the_policy(
    process: PolicyProcess,
) -> None:
    """Signals to the group of the service, a client that leaves, and a question that fails."""
    pid = process._process.pid
    assert pid is not None
    assert os.getpgid(pid) != os.getpgid(0)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(pid, number)
    left = process.ask(question_record("Who left?"))
    failing = process.ask(question_record("Fail?"))
    staying = process.ask(question_record("Who?"))
    assert not left.cancel()
    with pytest.raises(EngineError, match="ValueError: this cannot go on"):
        failing.result(LIMIT)
    assert staying.result(LIMIT).trajectory.answer == "Rome"
    with pytest.raises(EngineError, match="this cannot go on"):
        process.ask(question_record("Fail?")).result(LIMIT)
    assert process.failure is None


def test_clients_are_told_when_to_ask_again_while_the_engine_starts(tmp_path: Path) -> None:
    """The clients of openai and of agents wait as long before they try again."""
    write_chunks(tmp_path, [Chunk("c", "T", "on x", "d")])
    policy = ServedPolicy("sft", tmp_path, failed=lambda error: None)
    body = {"model": "sft", "messages": [{"role": "user", "content": "Who?"}]}
    response = chat_client(policy, TOKENIZER).post("/v1/chat/completions", json=body)
    assert (response.status_code, response.headers["retry-after"]) == (503, "30")
    assert "starts; ask again" in response.json()["error"]["message"]
