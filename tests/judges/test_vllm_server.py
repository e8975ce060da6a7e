"""The LLM judge behind vLLM's OpenAI server, with a model too small to give readable verdicts.

Without structured outputs this model never writes an answer tag.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipeline.config import Endpoint
from pipeline.core.content_cache import ContentCache
from pipeline.judges.cases import Case, EquivalenceCase, JudgeCall, SoundnessCase
from pipeline.judges.llm_judge import LlmJudge
from pipeline.llm.chat import Usage
from pipeline.llm.endpoint import EndpointChat
from tests.llm.vllm_server import NAME, VllmServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
CASES = [
    EquivalenceCase("Who directed the film?", "Ann Lee", "The film was directed by Ann Lee."),
    EquivalenceCase("Who directed the film?", "Ann Lee", "The film was directed by Bo Ray."),
    SoundnessCase("I know that Ann Lee was born in Rome.", "Ann Lee was born in Rome."),
]
# vLLM's extension for structured outputs
STRUCTURED = {"structured_outputs": {"choice": ["<answer>True</answer>", "<answer>False</answer>"]}}


def decide(
    folder: Path, server: VllmServer, cases: Sequence[Case], **settings: object
) -> tuple[list[JudgeCall], Usage]:
    endpoint = Endpoint(**{"base_url": server.url, "model": NAME, "timeout": 300, **settings})
    chat = EndpointChat(endpoint, ContentCache(folder / "chat.sqlite"), block="judges.over")
    with LlmJudge(chat, model=NAME, max_tokens=24, tries=2) as judge:
        return judge.decide(cases), chat.usage


def test_answers_of_a_server_are_read_counted_and_cached(tmp_path, monkeypatch):
    pytest.importorskip("vllm", reason="vLLM is not installed")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with VllmServer(tmp_path) as server:
        server.wait()
        unread, of_both_tries = decide(tmp_path, server, CASES)
        calls, usage = decide(tmp_path, server, CASES, extra=STRUCTURED)
        again, reuse = decide(tmp_path, server, CASES, extra=STRUCTURED)
    assert [call.verdict for call in unread] == ["unknown"] * 3
    assert of_both_tries.prompt_tokens > 6 * 50
    assert 0 < of_both_tries.completion_tokens <= 6 * 24
    assert all(call.verdict in ("yes", "no") for call in calls)
    for call, case in zip(calls, CASES, strict=True):
        answer = json.loads(call.reply)["choices"][0]["message"]["content"]
        assert call.verdict == case.ruling("True" in answer)
    assert again == calls
    assert (usage.tries, reuse.tries, reuse.reused) == (3, 0, 3)
