"""``steep view FILE``: pairs and trajectories of Parquet and JSONL files, chosen by id."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.core.record_io import read_records, write_jsonl, write_parquet
from pipeline.core.records import Pair, Trajectory
from tests.cli.malformed_inputs import accepted, refused
from tests.evaluation.test_terminal_view import pair_file
from tests.stages.fabricated_run import trajectory


@pytest.fixture
def trajectories(tmp_path: Path) -> Path:
    rewards = {"a term": 1.0} | dict.fromkeys("bcdefghijklmn", 0.5) | {"total": 7.25}
    records = [trajectory(f"q{n}", "Ostar", name=f"t{n}", rewards=rewards) for n in range(5)]
    write_parquet(tmp_path / "trajectories.parquet", records, Trajectory)
    write_jsonl(tmp_path / "trajectories.jsonl", records)
    return tmp_path


@pytest.mark.parametrize("name", ["trajectories.parquet", "trajectories.jsonl", ""])
def test_trajectories_of_a_file_or_directory_are_shown(trajectories: Path, name: str) -> None:
    output = accepted("view", trajectories / name, "--limit", 2)
    assert "t0 · gold Ostar" in output
    assert "t1 · gold Ostar" in output
    assert "t2" not in output
    assert "Vell is a harbour city" in output
    assert "total 7.25" in output  # more terms than a frame of 80 columns holds


def test_ids_choose_records(trajectories: Path) -> None:
    output = accepted("view", trajectories, "--id", "t3", "--id", "q4")
    assert ["t3 · gold" in output, "t4 · gold" in output, "t0" in output] == [True, True, False]
    assert "no record of absent" in refused("view", trajectories, "--id", "absent")


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_pairs_of_a_file_are_shown_with_their_tokenizer(tmp_path: Path, suffix: str) -> None:
    spans = [(0, 1, "model"), (1, 2, "observation"), (2, 3, "model")]
    pair_file(tmp_path, spans)
    file = tmp_path / f"pairs.{suffix}"
    write_jsonl(tmp_path / "pairs.jsonl", read_records(tmp_path / "pairs.parquet", Pair))
    output = accepted("view", file, "--tokenizer", tmp_path, "--id", "q-1")
    assert "chosen q-0" in output
    assert "ask[b]seen[/b]sum" in output


def test_other_files_are_refused(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "ids.jsonl", [{"chosen": "a", "rejected": "b"}])
    assert "ids.jsonl: neither pairs nor trajectories" in refused("view", tmp_path / "ids.jsonl")
    (tmp_path / "ids.jsonl").write_text("")
    assert "ids.jsonl: the file has no records" in refused("view", tmp_path / "ids.jsonl")
    assert "<stdin>: is not a regular file" in refused("view", "-")
    assert "no such file" in refused("view", tmp_path / "absent.parquet")
    assert "the directory has no pairs.parquet" in refused("view", tmp_path)


def test_a_round_without_pairs_names_the_command_that_makes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "run: steep run pair --round 2 --config embedded" in refused("view", "--round", 2)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--stop", "malformed"], {"t1"}),
        (["--stop", "answer", "--limit", 2], {"t0", "t2"}),
        (["--stop", "answer", "--id", "t1", "--id", "t2", "--id", "t3"], {"t2", "t3"}),
    ],
)
@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_trajectories_are_chosen_by_their_facts(
    tmp_path: Path, options: list[object], names: set[str], suffix: str
) -> None:
    records = [trajectory(f"q{n}", "Ostar", name=f"t{n}") for n in range(4)]
    records[1] = replace(records[1], stop="malformed")
    write_parquet(tmp_path / "trajectories.parquet", records, Trajectory)
    write_jsonl(tmp_path / "trajectories.jsonl", records)
    output = accepted("view", tmp_path / f"trajectories.{suffix}", "--limit", 9, *options)
    assert {name for name in ("t0", "t1", "t2", "t3") if f"{name} · gold" in output} == names


def test_a_fact_that_records_do_not_have_is_refused(trajectories: Path, tmp_path: Path) -> None:
    assert "--kind cannot be used here: a trajectory has no kind" in refused(
        "view", trajectories, "--kind", "hard"
    )
    pair_file(tmp_path, [(0, 3, "model")])
    assert "--stop cannot be used here: a pair has no stop" in refused(
        "view", tmp_path / "pairs.parquet", "--tokenizer", tmp_path, "--stop", "answer"
    )


def test_of_a_large_file_only_the_chosen_rows_are_read(tmp_path: Path) -> None:
    """The broken record would be refused if it were read."""
    records = [trajectory(f"q{n}", "Ostar", name=f"t{n}") for n in range(600)]
    records[10] = replace(records[10], spans=[(5, 6, "model")])
    write_parquet(tmp_path / "trajectories.parquet", records, Trajectory)
    assert "t599 · gold" in accepted("view", tmp_path / "trajectories.parquet", "--id", "t599")
    assert "trajectories.parquet:11: " in refused(
        "view", tmp_path / "trajectories.parquet", "--id", "t10"
    )
