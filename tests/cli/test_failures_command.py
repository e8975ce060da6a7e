"""``steep failures`` on a file of trajectories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.outputs import failures
from pipeline.core.errors import InputError
from pipeline.core.record_io import as_json, write_jsonl, write_parquet
from pipeline.core.records import Question
from tests.evaluation.hops import BORN, DIRECTED, film_trajectory, first_step, musique, second_step


def lines(source: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in source.read_text().splitlines()]


def test_records_get_their_failure_mode_and_hop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trajectories = [
        film_trajectory("Vell"),
        film_trajectory("Ostar", first_step(DIRECTED), second_step(BORN, says="Ostar")),
    ]
    source, target = tmp_path / "trajectories.jsonl", tmp_path / "out.jsonl"
    write_jsonl(source, trajectories)
    failures(source, target)
    assert capsys.readouterr().err == "1 right, 1 misread\n"
    expected = [
        {"failure_mode": "right", "failed_hop": None},
        {"failure_mode": "misread", "failed_hop": 2},
    ]
    assert lines(target) == [
        json.loads(json.dumps(as_json(trajectory))) | added | {"hops": 2}
        for trajectory, added in zip(trajectories, expected, strict=True)
    ]


def test_questions_add_the_decomposition(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without evidence only the last hop is known; the decomposition adds the first."""
    wrong_hop = second_step(BORN, says="Ostar", about="Lio Drun")
    steps = (first_step(says="Lio Drun"), wrong_hop)
    without_evidence = film_trajectory("Ostar", *steps, evidence=[])
    source, target = tmp_path / "trajectories.jsonl", tmp_path / "out.jsonl"
    write_jsonl(source, [without_evidence])
    write_parquet(tmp_path / "test.parquet", [musique()], Question)
    failures(source, target)
    assert capsys.readouterr().err == "1 misread\n"
    failures(source, target, questions=tmp_path / "test.parquet")
    assert capsys.readouterr().err == "1 not_retrieved\n"


def test_malformed_records_are_refused_by_line_before_anything_is_written(tmp_path: Path) -> None:
    source, target = tmp_path / "trajectories.jsonl", tmp_path / "out.jsonl"
    whole = as_json(film_trajectory("Vell"))
    write_parquet(tmp_path / "test.parquet", [], Question)
    source.write_text(json.dumps(whole) + "\n" + json.dumps(whole | {"question": ""}) + "\n")
    with pytest.raises(InputError, match=r"trajectories\.jsonl:2: question: missing"):
        failures(source, target)
    with pytest.raises(
        InputError, match=r"trajectories\.jsonl:1: question_id: no question 'q' in .*test"
    ):
        failures(source, target, questions=tmp_path / "test.parquet")
    assert not target.exists()
