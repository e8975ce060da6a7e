"""Each framework of the page about recording an agent, against `steep record` and `steep serve`.

``make check-clients`` builds the environment of the frameworks and runs these tests, before a
release. Without it they are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipeline.core import shipped
from pipeline.rollout.recorded import RecordedTurn, read_recordings
from tests.clients.frameworks import AGENTS, SEARCH
from tests.rollout.test_conversation_run import prepare, write_model
from tests.serving.test_recorded_run import served
from tests.waiting import LIMIT, becomes

FOLDER = os.environ.get("STEEP_CLIENTS", str(shipped.ROOT / ".venv-clients"))
PYTHON = Path(FOLDER) / "bin/python"
SCRIPT = Path(__file__).with_name("frameworks.py")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not PYTHON.exists(), reason="make check-clients builds the environment"),
]
# What came out besides calls, which the model chooses.
EXPECTED: dict[str, Any] = {
    "openai": {"usage": True, "known": "bool", "forced": "search"},
    "litellm": {"forced": "search", "streamed": True},
    "langchain": {"json_schema": "bool", "function_calling": "bool"},
    "smolagents": {},
    "openai_agents": {"ended": "str", "known": "bool"},
    "pydantic_ai": {"ended": "str", "known": "bool"},
    "mcp": {"tools": ["answer", "search"], "error": False},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, real_data: Path) -> tuple[Path, str]:
    """A folder with a run up to its index and a small model, and a question."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    work = tmp_path_factory.mktemp("clients")
    rows = prepare(work, "index")
    write_model(work, rows, SEARCH)
    return work, rows[0]["question"]


@pytest.fixture(scope="module", params=["record", "serve"])
def service(request: Any, run: tuple[Path, str]) -> Iterator[tuple[str, str, Path | None]]:
    """An address, a question, and the file of a recording."""
    work, question = run
    file = work / "recorded.jsonl" if request.param == "record" else None
    output = ("-o", file.name) if file else ()
    asked = {"model": "policy", "messages": [{"role": "user", "content": question}]}
    with served(work, request.param, "--policy", "base", *output) as (address, _):
        chat = f"{address}/v1/chat/completions"
        started = (
            becomes(lambda: httpx.post(chat, json=asked, timeout=LIMIT).status_code != 503)
            for _ in range(4)  # an engine starts slowly beside other work
        )
        assert any(started)
        yield address, question, file


def turns(file: Path | None) -> list[RecordedTurn]:
    rows = [row for _, row in read_recordings([file])] if file else []
    return [row for row in rows if isinstance(row, RecordedTurn)]


@pytest.mark.parametrize("name", AGENTS)
def test_a_framework_works_unchanged(name: str, service: tuple[str, str, Path | None]) -> None:
    address, question, file = service
    if name == "mcp" and file:
        pytest.skip("steep record has no tools of its own")
    before = len(turns(file))
    ended = subprocess.run(
        [PYTHON, SCRIPT, name, address, question],
        env=os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-4000:]
    result = json.loads(ended.stdout.splitlines()[-1])
    assert result | EXPECTED[name] == result
    assert {*result.get("calls", ())} <= {"search", "final_answer"}
    if name == "openai_agents":
        assert "set_default_openai_api('chat_completions')" in result["default"]
    made = turns(file)[before:]
    assert bool(made) == (file is not None)
    if name in ("smolagents", "langchain", "openai") and file:
        assert any(turn.constrained for turn in made)
