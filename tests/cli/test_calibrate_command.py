"""`steep calibrate` on two files of verdicts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli.calibrate import compare
from pipeline.core.errors import InputError
from pipeline.core.record_io import write_jsonl, write_parquet
from pipeline.core.verdicts import Verdict

ROOT = Path(__file__).resolve().parents[2]


def verdicts(*rulings: str, trajectory: str = "p") -> list[Verdict]:
    return [Verdict(trajectory, n, "over", ruling, "m", "k") for n, ruling in enumerate(rulings)]


def steep(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "pipeline.cli", "calibrate", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=300,
    )


def test_a_judge_is_compared_with_reference_verdicts(tmp_path: Path):
    write_parquet(tmp_path / "judge.parquet", verdicts("yes", "no", "unknown", "yes"), Verdict)
    write_jsonl(tmp_path / "audit.jsonl", verdicts("yes", "no", "no", "no"))
    done = steep(tmp_path / "judge.parquet", "--truth", tmp_path / "audit.jsonl", "--json")
    assert done.returncode == 0, done.stderr
    over, under = json.loads(done.stdout)
    assert (over["n"], over["unknown"], over["recall"], over["precision"]) == (3, 1, 1.0, 0.5)
    assert over["accuracy"] == pytest.approx(2 / 3)
    assert (under["n"], under["accuracy"]) == (0, None)
    table = steep(tmp_path / "judge.parquet", "--truth", tmp_path / "audit.jsonl")
    assert "66.7" in table.stdout


def test_files_without_a_common_step_and_a_missing_file_are_refused(tmp_path: Path):
    write_jsonl(tmp_path / "judge.jsonl", verdicts("yes"))
    write_jsonl(tmp_path / "audit.jsonl", verdicts("yes", trajectory="q"))
    with pytest.raises(InputError, match="no step in common"):
        compare(tmp_path / "judge.jsonl", tmp_path / "audit.jsonl")
    done = steep(tmp_path / "judge.jsonl")
    assert (done.returncode, "name both files" in done.stderr) == (2, True)
