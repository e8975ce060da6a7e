"""The process of a policy with a scripted engine, behind an application and OpenAI's client."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import openai
from fastapi import FastAPI
from starlette.testclient import TestClient

from pipeline.llm.engine import GenerationRequest, GenerationResult
from pipeline.llm.tokenizer import Tokenizer
from pipeline.serving.chat import chat_routes
from pipeline.serving.policy import ServedPolicy
from pipeline.serving.turns import Decoding, PlainModel
from tests.conversations.shipped_templates import FILES, byte_tokenizer
from tests.llm.scripted_engine import Script, ScriptedEngine

DECODING = Decoding(temperature=0.5, top_p=0.9, max_tokens=500, max_model_len=6000, thinking=None)


def tokenizer_of(template: str) -> Any:
    """Bytes, with the control tokens of a template of the kind Qwen, which end turns."""
    tokenizer = byte_tokenizer(FILES[template].read_text(encoding="utf-8"))
    tokenizer.eos_token = "<|im_end|>"
    return tokenizer


class ScriptedProcess:
    """Stands in for `PolicyProcess`; ``seen`` are the turns that the engine got, with its results."""

    failure = None

    def __init__(self, script: Script, tokenizer: Tokenizer) -> None:
        self.engine = ScriptedEngine(script, tokenizer, max_model_len=DECODING.max_model_len)
        self.seen: list[tuple[GenerationRequest, GenerationResult]] = []

    def sample(self, turn: GenerationRequest) -> Future[GenerationResult]:
        [result] = self.engine.generate([turn])
        self.seen.append((turn, result))
        future: Future[GenerationResult] = Future()
        future.set_result(result)
        return future


def scripted_policy(process: ScriptedProcess) -> ServedPolicy:
    policy = ServedPolicy("round-1", Path("none"), failed=lambda error: None)
    policy.process = process  # type: ignore[assignment]
    return policy


def chat_client(policy: ServedPolicy, tokenizer: Tokenizer) -> TestClient:
    """A client of a policy and its plain model."""
    app = FastAPI()
    app.include_router(chat_routes(policy, PlainModel(policy, lambda: tokenizer, DECODING)))
    return TestClient(app)


def openai_client(http: TestClient) -> openai.OpenAI:
    return openai.OpenAI(
        api_key="none", base_url="http://localhost/v1", http_client=http, max_retries=0
    )
