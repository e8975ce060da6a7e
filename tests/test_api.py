"""The Python interface, on a small finished run with fabricated records and a random model."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.api import Policy, Run
from pipeline.core.atomic import write_text
from pipeline.core.errors import ConfigError, InputError, StoreError
from pipeline.core.records import Trajectory
from pipeline.engine.run import walk
from pipeline.engine.stage import StageTask
from tasks import task_for
from tests.cli.test_pair_preview import commit as commit_scored
from tests.smallest import small_pair, write_paired
from tests.stages.fabricated_run import trajectory
from tests.tasks.small_run import QUESTIONS, commit, commit_policy, commit_text, settings

TERMS = {
    "outcome": 1.0, "format": 1.0, "consistency": 1.0, "subquery": 0.5, "context": 0.5,
    "summary": 0.5, "process": 0.5, "total": 2.5,
    "memory": {"subquery": [0.5], "context": [0.5], "summary": [0.5]},
}  # fmt: skip
METRICS = [{"policy": "sft", "dataset": "average", "f1": 0.5}]


def settings_of(model: Path) -> tuple[str, ...]:
    return settings(model, 512, "rounds=1", "sampling.samples=2", "sampling.max_total_tokens=256")


@pytest.fixture
def overrides(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    monkeypatch.chdir(tmp_path)
    return settings_of(model)


@pytest.fixture(scope="module")
def finished(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which every stage is complete; round 1 has more trajectories than one batch."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for task in walk(task_for("report", "embedded", settings_of(model))):
            complete(task, model)
    return folder


@pytest.fixture
def run(overrides: tuple[str, ...], finished: Path, tmp_path: Path) -> Run:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return Run.open("embedded", overrides=overrides)


def complete(task: StageTask, model: Path) -> None:
    """Complete a stage with fabricated records."""
    if task.stage in ("sft", "train"):
        commit_policy(task, model, task.round_number or 0)
    elif task.stage in ("sample", "score", "evaluate-policy"):
        commit_scored(task, records(TERMS if task.stage == "score" else None))
    elif task.stage == "pair":
        pair = small_pair(chosen_id="q0-0", chosen_rewards=TERMS, rejected_rewards=TERMS)
        folder = task.settings.run_dir / "written"
        write_paired(folder / "pairs.parquet", [pair])
        task.directory.parent.mkdir(parents=True)
        task.store.commit(task.key, folder, {"counts": {"rows": 1}})
    elif task.stage == "evaluate":
        commit_text(task, json.dumps(METRICS), "metrics.json")
    else:
        commit(task)


def records(rewards: dict[str, object] | None) -> list[Trajectory]:
    """Two samples of each of 300 questions, of which the last failed."""
    made = [
        trajectory(f"q{n // 2}", "Ostar", name=f"q{n // 2}-{n % 2}", rewards=rewards)
        for n in range(600)
    ]
    made[-1] = replace(made[-1], stop="retrieval_error", rewards=None)
    return made


def test_records_of_a_run_are_read(run: Run) -> None:
    assert [question.question_id for question in run.questions("test")] == ["q0", "q1", "q2", "q3"]
    assert len(list(run.trajectories(round=1))) == 600
    scored = list(run.trajectories(round=1, stage="score"))
    assert (scored[0].rewards, scored[-1].rewards) == (TERMS, None)
    rewards = list(run.rewards(round=1))
    assert rewards[0] == ("q0-0", TERMS)
    assert rewards[-1] == ("q299-1", None)
    assert [pair.chosen_id for pair in run.pairs(round=1)] == ["q0-0"]
    assert next(run.evaluated(1)).trajectory_id == "q0-0"
    assert run.metrics() == METRICS


def test_a_run_is_read_by_its_directory_too(run: Run) -> None:
    other = Run.from_directory(run.directory)
    assert {label: path for label, path in run.stages.items() if label != "world"} == other.stages
    assert other.metrics() == METRICS
    assert other.policies() == run.policies()
    assert other.config is None
    with pytest.raises(ConfigError, match=r"opened without a configuration; use Run\.open"):
        other.roll_out(["Who?"], 0)


def test_of_two_outputs_of_a_stage_the_newest_runs_inputs_are_taken(
    run: Run, overrides: tuple[str, ...]
) -> None:
    changed = task_for("sample", "embedded", (*overrides, "sampling.samples=3"), round=1)
    commit_text(changed, "", started="2026-11-30T12:00:00Z")
    os.utime(run.stage("sample-1") / "manifest.json", (2**31, 2**31))  # as in a copy
    newest = Run.from_directory(run.directory)
    assert newest.stage("sample-1") == changed.directory
    assert newest.stage("sft") == run.stage("sft")
    assert Run.open("embedded", overrides=overrides).stage("sample-1") == run.stage("sample-1")


def test_a_stage_that_is_not_complete_is_named(overrides: tuple[str, ...], tmp_path: Path) -> None:
    run = Run.open("embedded", overrides=overrides)
    assert run.policies() == []
    with pytest.raises(StoreError, match="stage pair-1 of runs/embedded is not complete"):
        list(run.pairs(round=1))
    with pytest.raises(StoreError, match=r"stage train-1 .* is not complete"):
        run.roll_out(["Who?"], 1)
    write_text(
        tmp_path / "recorded.jsonl", "{}"
    )  # takes the place of sampling, and not of a search
    more = ["retrieval.variant=semantic", f"sampling.recorded={tmp_path}/recorded.jsonl"]
    with pytest.raises(StoreError, match=r"stage corpus of .* is not complete"):
        Run.open("embedded", overrides=[*overrides, *more]).roll_out(
            ["?"], Policy(0, tmp_path, "p")
        )
    with pytest.raises(StoreError, match="no completed stages"):
        Run.from_directory(tmp_path)


def test_a_damaged_manifest_is_an_error_and_no_older_output_is_taken(run: Run) -> None:
    (run.stage("pair-1") / "manifest.json").write_text("{")
    with pytest.raises(StoreError, match=r"pair.*manifest\.json"):
        Run.from_directory(run.directory)


@pytest.mark.parametrize("opened", ["configuration", "directory"])
def test_a_damaged_stage_is_named_when_it_is_read(
    run: Run, overrides: tuple[str, ...], opened: str
) -> None:
    file = run.stage("pair-1") / "pairs.parquet"
    file.write_bytes(file.read_bytes()[:-4])
    if opened == "configuration":
        again = Run.open("embedded", overrides=overrides)
    else:
        again = Run.from_directory(run.directory)
    with pytest.raises(
        StoreError, match=r"pair-1 is damaged .*pairs\.parquet has .*--round 1 --force"
    ):
        list(again.pairs(round=1))
    assert next(again.trajectories(round=1)).trajectory_id == "q0-0"


def test_a_policy_is_rolled_out_as_the_stage_samples_it(run: Run) -> None:
    """Seeds belong to round, question and sample, so a part of the questions gives the same."""
    whole = run.roll_out(QUESTIONS[:3], policy=0, samples=2, temperature=1.0)
    assert [(t.question_id, t.sample) for t in whole] == [
        (f"q{n}", sample) for n in range(3) for sample in range(2)
    ]
    policy: Policy = run.policies()[0]
    assert {t.policy for t in whole} == {policy.fingerprint}
    part = run.roll_out(QUESTIONS[1:2], policy, samples=2, temperature=1.0)
    assert [t.output for t in part] == [t.output for t in whole[2:4]]
    [greedy] = run.roll_out(["Who founded Vell?"], policy, temperature=0)
    assert (greedy.question, greedy.answers) == ("Who founded Vell?", [])
    with pytest.raises(InputError, match="occurs twice"):
        run.roll_out(["Who?", "Who?"], policy)
    for asked in (run.roll_out, run.ask):
        with pytest.raises(InputError, match="the questions are the text 'Who'; pass a list"):
            asked("Who", policy)
    with pytest.raises(InputError, match="samples is 0; expected at least 1"):
        run.roll_out(["Who?"], policy, samples=0)


def test_a_round_has_its_own_settings(overrides: tuple[str, ...]) -> None:
    """Trajectories of the last policy have those of the run."""
    limits = ["per_round.1.pairs={margin: 5}", "grammar=hiprag"]
    run = Run.open("embedded", overrides=[*overrides, *limits, "rewards.hiprag.process=0"])
    records = [
        replace(trajectory("q", answer, name=answer), grammar="hiprag", sample=sample)
        for sample, answer in enumerate(("Ostar", "Vell"))
    ]
    scored = run.score(records)
    assert [len(run.select_pairs(scored, round=number)) for number in (1, 2)] == [0, 1]
    for read in (run.pairs, run.trajectories, run.rewards):
        with pytest.raises(ConfigError, match="round is 9, and rounds is 1; choose a round up to"):
            list(read(9))
    with pytest.raises(ConfigError, match="round is 3, and rounds is 1"):
        run.select_pairs(scored, round=3)
    for use in (run.score, run.select_pairs):
        with pytest.raises(ConfigError, match="round is 0; rounds count from 1"):
            use(scored, round=0)


@pytest.mark.slow
def test_the_untrained_policy_is_evaluated_on_any_questions(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "other.jsonl"
    file.write_text('{"question": "Who made it?", "answer": ["Ann"]}\n')
    rows = run.evaluate(["base"], file)
    expected = [("base", name, "other", 1) for name in ("questions", "all-questions", "all")]
    assert [(r["policy"], r["dataset"], r["split"], r["n"]) for r in rows] == expected
    with pytest.raises(ConfigError, match="opened without a configuration"):
        Run.from_directory(run.directory).evaluate(["base"], file)
