"""The process of a policy with a scripted engine, and its plain model, behind an application."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

from pipeline.llm.engine import GenerationRequest, GenerationResult
from pipeline.llm.tokenizer import Tokenizer
from pipeline.serving.policy import ServedPolicy
from pipeline.serving.turns import Decoding
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
