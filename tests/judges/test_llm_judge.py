"""The LLM judge behind a real HTTP server, including failures and unreadable answers."""

import hashlib
import json
from pathlib import Path

import pytest

from pipeline.config import Endpoint
from pipeline.core.content_cache import ContentCache
from pipeline.judges.cases import Case, EquivalenceCase, JudgeCall, SoundnessCase
from pipeline.judges.llm_judge import LlmJudge
from pipeline.llm.endpoint import EndpointChat
from tests.llm.fake_endpoint import FakeEndpoint, Response, completion, refusal

TRUE, FALSE = "<answer>True</answer>", "<answer>False</answer>"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def decide(
    folder: Path, server: FakeEndpoint, *cases: Case, tries: int = 3, retries: int = 3
) -> list[JudgeCall]:
    endpoint = Endpoint(base_url=server.url, model="judge-1", retries=retries)
    cache = ContentCache(folder / "chat.sqlite")
    chat = EndpointChat(endpoint, cache, block="judges.over")
    with LlmJudge(chat, model="judge-1", max_tokens=16, tries=tries) as judge:
        return judge.decide(cases)


def test_a_case_is_requested_once_over_all_runs_and_kept_verbatim(tmp_path: Path):
    asked_twice = EquivalenceCase("Who?", "Ann", "Ann.")
    cases = [asked_twice, SoundnessCase("I know.", "Bo."), asked_twice]
    with FakeEndpoint(lambda text, before: TRUE if "Ann" in text else FALSE) as server:
        first = decide(tmp_path, server, *cases)
        assert decide(tmp_path, server, *cases) == first
    assert [call.verdict for call in first] == ["yes", "yes", "yes"]  # Bo is not sound
    assert server.request_counts.total() == 2
    assert {call.model for call in first} == {"judge-1"}
    assert json.loads(first[0].prompt) in [request["messages"] for request in server.requests]
    assert json.loads(first[0].reply)["choices"][0]["message"]["content"] == TRUE


UNREADABLE = (
    Response(body=completion("I would say true.")),
    Response(body=completion(f"{TRUE} or {FALSE}")),
    Response(body=completion("<answer>Tr", "length")),
)
FAILURES = (
    *UNREADABLE,
    refusal(500, "oops", retry_after_ms="1"),
    refusal(429, "slow down", retry_after_ms="1"),
    Response(drop=True),
)


def fraction(*parts: object) -> float:
    """A number in [0, 1), a hash of ``parts``."""
    return int(hashlib.sha256(repr(parts).encode()).hexdigest()[:8], 16) / 16**8


def truth(text: str) -> str:
    return TRUE if fraction("truth", text) < 0.5 else FALSE


def test_with_3_of_10_calls_failing_verdicts_are_correct_or_unknown(tmp_path: Path):
    """Failures are outages, unreadable answers and truncated ones; six of 60 cases never succeed.

    A timeout is handled like an outage (`test_endpoint`), but its test would depend on the clock.
    """
    lost = 6

    def script(text: str, before: int) -> str | Response:
        is_lost = any(f"<second>case {number}<" in text for number in range(lost))
        if is_lost or fraction(text, before) < 0.3:
            kinds = UNREADABLE if is_lost else FAILURES
            return kinds[int(fraction(text, before, "kind") * len(kinds))]
        return truth(text)

    cases = [EquivalenceCase("Who?", "Ann", f"case {number}") for number in range(60)]
    with FakeEndpoint(script) as server:
        calls = decide(tmp_path, server, *cases, tries=6, retries=6)
        requests = server.request_counts.total()
        # A rerun requests only the lost cases.
        server.request_counts.clear()
        again = decide(tmp_path, server, *cases, tries=1)
    assert [call.verdict for call in again] == [call.verdict for call in calls]
    assert len(server.request_counts) == lost
    assert requests - (len(cases) - lost) > 30, (
        "too few calls failed for this test to mean anything"
    )
    for number, call in enumerate(calls):
        message = json.loads(call.prompt)[1]["content"]
        correct = "yes" if truth(message) == TRUE else "no"
        assert call.verdict == ("unknown" if number < lost else correct)
        assert bool(call.fault) == (call.verdict == "unknown")
