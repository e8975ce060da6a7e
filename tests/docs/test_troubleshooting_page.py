"""Each message that *Troubleshooting* quotes is one that the program gives."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.config.policy import Pairs
from pipeline.engine.failures import explain_exit
from pipeline.pairs.shortage import shortage
from tests.cli.malformed_inputs import steep
from tests.pairs.test_shortage import GOOD, candidate

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "howto" / "troubleshooting.md"


def quoted() -> list[str]:
    """The messages of the table, in its order."""
    text = PAGE.read_text(encoding="utf-8")
    return re.findall(r"^\| `([^`]+)`", text, re.MULTILINE)


def complaint(*words: str) -> str:
    status, _, said = steep([*words])
    assert status == 2
    return said


def without_python() -> str:
    """The message is in the Makefile, where % stands for numbers and $(PYTHON) for a command."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return text.replace("$(PYTHON)", "python3").replace("%d.%d", "3.9")


def unanswered() -> str:
    Path("rows.jsonl").write_text('{"question": "Who?", "answer": ""}\n', encoding="utf-8")
    Path("documents.jsonl").write_text('{"text": "Anna lives in Rome."}\n', encoding="utf-8")
    return complaint("init", "own", "--docs", "documents.jsonl", "--questions", "rows.jsonl")


def without_pairs() -> str:
    candidates = [candidate(f"c{number}", **GOOD) for number in range(3)]
    return shortage([[(one, True) for one in candidates]], Pairs())


BY_COMMAND: list[Callable[[], str]] = [
    without_python,
    lambda: complaint("run", "--set", "sampling.sample=4"),
    lambda: complaint("check", "--config", "tearag-llama3-8b", "--data", "."),
    lambda: complaint("check", "--config", "tearag-llama3-8b", "--data", "."),
    lambda: complaint("plan", "--config", "tearag-qwen2.5-14b", "--machine", "8x24"),
    lambda: complaint("ask", "Who?"),
    unanswered,
    lambda: complaint(
        "plan",
        "--config",
        "hiprag-qwen2.5-3b",
        "--machine",
        "4x80",
        "--set",
        "judges.over.endpoint.cost_ceiling=null",
    ),
    lambda: explain_exit(-signal.SIGKILL, "", "lower engine.max_num_seqs"),
    without_pairs,
]


def test_the_page_has_ten_messages() -> None:
    assert len(quoted()) == len(BY_COMMAND) == 10


@pytest.mark.parametrize("number", range(10))
def test_a_quoted_message_is_given(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    given = " ".join(BY_COMMAND[number]().split())
    parts = map(re.escape, quoted()[number].split("…"))
    assert re.search(".*".join(parts), given), given
