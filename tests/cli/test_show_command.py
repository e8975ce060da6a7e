"""``steep show``: a pair, a trajectory or a stage of a run by the beginning of its id."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.core.record_io import write_parquet
from pipeline.core.records import Pair, Trajectory
from pipeline.run.store import MANIFEST
from tasks.base import StageTask
from tasks.run import task_for, walk
from tests.cli import malformed_manifests
from tests.cli.malformed_inputs import steep
from tests.evaluation.test_terminal_view import pair_file
from tests.stages.fabricated_run import trajectory

TERMS = {"format": 1.0, "outcome": 0.5, "total": 2.5}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StageTask:
    """Round 1 is scored and paired; five trajectories, two of them a pair."""
    monkeypatch.chdir(tmp_path)
    spans = [(0, 1, "model"), (1, 2, "observation"), (2, 3, "model")]
    pair_file(tmp_path, spans)
    [pair] = _pairs(tmp_path)
    pairs = [
        replace(pair, question_id="q0", chosen_id="q0/0@ab", rejected_id="q0/1@ab"),
        replace(pair, question_id="q1", chosen_id="q1/0@ab", rejected_id="q1/1@ab", kind="hard"),
    ]
    records = [
        trajectory(f"q{n // 2}", "Ostar", name=f"q{n // 2}/{n % 2}@ab", rewards=TERMS)
        for n in range(5)
    ]
    report = task_for("report", "embedded", ("rounds=1",))
    for task in walk(report):
        folder = tmp_path / "written" / task.label
        folder.mkdir(parents=True)
        (folder / "nothing.txt").write_text("")
        if task.stage == "pair":
            write_parquet(folder / "pairs.parquet", pairs, Pair)
        if task.stage in ("sample", "score", "evaluate-policy"):
            evaluated = [replace(r, trajectory_id=f"e-{r.trajectory_id}") for r in records]
            rows = evaluated if task.stage == "evaluate-policy" else records
            write_parquet(
                folder / "trajectories.parquet",
                rows[: 2 + 3 * (task.stage != "sample")],
                Trajectory,
            )
        task.directory.parent.mkdir(parents=True, exist_ok=True)
        made_from = {name: needed.directory.name for name, needed in task.inputs.items()}
        task.store.commit(task.key, folder, {"counts": {"rows": 1}, "made_from": made_from})
    return report


def _pairs(directory: Path) -> list[Pair]:
    from pipeline.core.record_io import read_records

    return read_records(directory / "pairs.parquet", Pair)


def show(*arguments: str) -> tuple[int, str, str]:
    return steep(["show", *arguments, "--set", "rounds=1"])


@pytest.mark.parametrize("id", ["q1/0@ab>q1/1@ab", "q1/0", "q1/1@ab", "q1"])
def test_a_pair_is_found_by_the_beginning_of_any_of_its_ids(
    run: StageTask, tmp_path: Path, id: str
) -> None:
    status, printed, told = show("pair", id, "--tokenizer", str(tmp_path))
    assert (status, told) == (0, "")
    assert "pair-1 · hard · Where is Vell?" in printed
    assert "ask[b]seen[/b]sum" in printed
    assert "total          chosen 2.500  rejected 1.000" in printed


def test_a_trajectory_is_shown_with_steps_rewards_and_its_pairs(run: StageTask) -> None:
    """The scored record of the round is taken, which has rewards."""
    status, printed, _ = show("trajectory", "q1/1")
    assert status == 0
    assert "score-1 · musique" in printed
    assert "step 1  search: Where is Vell?" in printed
    assert "0.5      chunk     c1" in printed
    assert "answer: Ostar" in printed
    assert "outcome        0.5" in printed
    assert "in a pair of pair-1: hard, rejected" in printed


def test_records_and_manifests_are_printed_as_json(run: StageTask) -> None:
    record = json.loads(show("trajectory", "q2", "--json")[1])
    assert (record["stage"], record["trajectory_id"], record["rewards"]) == (
        "score-1",
        "q2/0@ab",
        TERMS,
    )
    pair = json.loads(show("pair", "q0", "--json")[1])
    assert (pair["stage"], pair["kind"], pair["rejected_id"]) == ("pair-1", "easy", "q0/1@ab")
    manifest = json.loads(show("stage", "pair:1", "--json")[1])
    assert (manifest["stage"], manifest["counts"]) == ("pair-1", {"rows": 1})


@pytest.mark.parametrize("id", ["pair-1", "pair:1", "pair", "fingerprint"])
def test_a_stage_is_found_by_its_label_or_fingerprint(run: StageTask, id: str) -> None:
    [pair] = [task for task in walk(run) if task.stage == "pair"]
    status, printed, _ = show("stage", id.replace("fingerprint", pair.key.fingerprint[:8]))
    assert status == 0
    assert printed.startswith(f"pair-1: {pair.directory}\nwrote: 1 rows\n")
    assert 'setting: grammar = "tearag"' in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pair", "q"], ["2 pairs have an id that begins with 'q'", "q0/0@ab>q0/1@ab  (pair-1, easy)"]),
        (["trajectory", "q0"], ["2 trajectories have", "q0/1@ab  (score-1, musique, answer: "]),
        (["trajectory", "z"], ["no trajectory has an id that begins with 'z'; finished stages: "]),
        (["trajectory", ""], ["the id is empty"]),
        (["stage", "evaluate-policy"], ["2 finished stages begin", "evaluate-policy-0, evaluate-policy-1"]),
        (["stage", "x"], ["no finished stage begins with 'x'"]),
        (["pair", "q0", "--run", "absent"], ["absent: no completed stages"]),
        (["pair", "q0", "--run", "runs/embedded"], ["config.yaml: no such file; name the base model"]),
    ],
)  # fmt: skip
def test_an_ambiguous_or_unknown_id_lists_what_there_is(
    run: StageTask, arguments: list[str], words: list[str]
) -> None:
    status, printed, told = show(*arguments)
    assert (status, printed) == (2, "")
    for word in words:
        assert word in told


def test_of_many_candidates_the_first_are_listed(run: StageTask) -> None:
    [score] = [task for task in walk(run) if task.stage == "score"]
    many = [trajectory("m", "Ostar", name=f"m/{n}@ab", rewards=TERMS) for n in range(30)]
    write_parquet(score.directory / "trajectories.parquet", many, Trajectory)
    told = show("trajectory", "m/")[2]
    assert told.count("(score-1, ") == 20
    assert "and 10 more" in told


def test_a_run_is_read_by_its_directory_too(run: StageTask) -> None:
    status, printed, _ = show("trajectory", "q1/1", "--run", "runs/embedded")
    assert status == 0
    assert "in a pair of pair-1: hard, rejected" in printed


def test_without_finished_stages_the_command_that_makes_them_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, printed, told = show("pair", "q0")
    assert (status, printed) == (2, "")
    assert "no stage of runs/embedded is finished; run `steep run --config embedded" in told


@pytest.mark.parametrize("seed", range(3))
def test_a_malformed_manifest_is_a_sentence_in_every_command(run: StageTask, seed: int) -> None:
    files = {task.label: task.directory / MANIFEST for task in walk(run)}
    manifests = {label: json.loads(file.read_text()) for label, file in files.items()}
    problems = [
        f"{case.name}: {' '.join(case.command)}: {problem}"
        for case in malformed_manifests.cases(seed, 100, manifests)
        if (problem := malformed_manifests.check(case, files[case.label], ["--set", "rounds=1"]))
    ]
    assert problems == []
