"""The rows of the closed world's leaderboard: their EM follows from the predictions that ship with them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.malformed_inputs import accepted, finished

ROOT = Path(__file__).resolve().parents[2]
PREDICTIONS = ROOT / "data" / "leaderboard"


def rows() -> Iterator[tuple[str, list[str], str]]:
    """The directory, the options, and the EM of every seed of each row of docs/evaluation.md."""
    for line in (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8").splitlines():
        if found := re.match(
            r"\| [^|]*\(`(tearag-[a-z-]+)`\) \| `([^`]+)` \| ([0-9., ]+) \|", line
        ):
            yield found[1], found[2].split(), found[3]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 6))
def test_a_row_is_what_its_predictions_give(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list(rows())
    assert sorted(name for name, *_ in found) == sorted(p.name for p in PREDICTIONS.iterdir())
    monkeypatch.chdir(tmp_path)
    for name, options, values in found:
        world = ["--set", f"seed={number}", "--set", f"data.closed_world.seed=3{number}"]
        made = finished("run", "questions-test", *options, *world).splitlines()[-1]
        questions = Path(made) / "questions.parquet"
        file = str(PREDICTIONS / name / f"seed-{number}.jsonl")
        command = ["submit", file, "--split", str(questions), "--against", file, "--json"]
        printed = accepted(*command)
        [em] = [row["em"] for row in json.loads(printed)["rows"] if row["dataset"] == "all"]
        assert 100 * em == pytest.approx(float(values.split(", ")[number - 1]), abs=0.051), name
