"""The LLM judge behind vLLM's OpenAI server, with a model too small to give readable verdicts.

All tests of this file share one server, because starting it takes seconds.
"""

import json
from collections.abc import Iterator, Sequence
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
# vLLM's extension for structured outputs; without it the small model never writes an answer tag.
STRUCTURED = {"structured_outputs": {"choice": ["<answer>True</answer>", "<answer>False</answer>"]}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    with VllmServer(tmp_path_factory.mktemp("vllm")) as server:
        server.wait()
        yield server


def decide(
    folder: Path, server: VllmServer, cases: Sequence[Case], **settings: object
) -> tuple[list[JudgeCall], Usage]:
    endpoint = Endpoint(**{"base_url": server.url, "model": NAME, "timeout": 300, **settings})
    chat = EndpointChat(endpoint, ContentCache(folder / "chat.sqlite"), block="judges.over")
    with LlmJudge(chat, model=NAME, max_tokens=24, tries=2) as judge:
        return judge.decide(cases), chat.usage


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def test_unreadable_answers_of_a_model_give_unknown_verdicts(tmp_path, server):
    calls, usage = decide(tmp_path, server, CASES)
    assert [call.verdict for call in calls] == ["unknown"] * 3
    assert all(call.fault in ("answer not readable", "answer cut off") for call in calls)
    assert all(json.loads(call.reply)["model"] == NAME for call in calls)
    assert usage.tries == 6  # unreadable answers are requested twice here
    assert usage.prompt_tokens > 6 * 50
    assert 0 < usage.completion_tokens <= 6 * 24


def test_verdicts_of_a_server_are_cached(tmp_path, server):
    calls, usage = decide(tmp_path, server, CASES, extra=STRUCTURED)
    assert all(call.verdict in ("yes", "no") for call in calls)
    for call, case in zip(calls, CASES, strict=True):
        answer = json.loads(call.reply)["choices"][0]["message"]["content"]
        assert call.verdict == case.ruling("True" in answer)
    assert usage.tries == 3
    again, usage = decide(tmp_path, server, CASES, extra=STRUCTURED)
    assert again == calls
    assert (usage.tries, usage.reused) == (0, 3)
