"""`steep calibrate` on two files of verdicts."""

import json
from pathlib import Path

import pytest

from pipeline.core.record_io import write_jsonl, write_parquet
from pipeline.core.verdicts import Verdict
from tests.cli.malformed_inputs import accepted, refused


def verdicts(*rulings: str, trajectory: str = "p") -> list[Verdict]:
    return [Verdict(trajectory, n, "over", ruling, "m", "k") for n, ruling in enumerate(rulings)]


def test_a_judge_is_compared_with_reference_verdicts(tmp_path: Path):
    write_parquet(tmp_path / "judge.parquet", verdicts("yes", "no", "unknown", "yes"), Verdict)
    write_jsonl(tmp_path / "audit.jsonl", verdicts("yes", "no", "no", "no"))
    call = ("calibrate", tmp_path / "judge.parquet", "--truth", tmp_path / "audit.jsonl")
    over, under = json.loads(accepted(*call, "--json"))
    assert (over["n"], over["unknown"], over["recall"], over["precision"]) == (3, 1, 1.0, 0.5)
    assert over["accuracy"] == pytest.approx(2 / 3)
    assert (under["n"], under["accuracy"]) == (0, None)
    assert "66.7" in accepted(*call)


def test_files_without_a_common_step_and_a_missing_file_are_refused(tmp_path: Path):
    write_jsonl(tmp_path / "judge.jsonl", verdicts("yes"))
    write_jsonl(tmp_path / "audit.jsonl", verdicts("yes", trajectory="q"))
    judged, truth = tmp_path / "judge.jsonl", tmp_path / "audit.jsonl"
    assert "no step in common" in refused("calibrate", judged, "--truth", truth)
    assert "name both files" in refused("calibrate", judged)
