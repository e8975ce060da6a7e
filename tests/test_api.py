"""The Python interface, on a small finished run with fabricated records and a random model."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.api import Policy, Run
from pipeline.core.atomic import write_json, write_text
from pipeline.core.errors import ConfigError, InputError, StoreError
from pipeline.core.record_io import write_parquet
from pipeline.core.records import Pair, Question
from pipeline.engine.run import walk
from pipeline.engine.stage import StageTask
from pipeline.training.lineage import Lineage
from tasks import task_for
from tests.llm.small_models import small_adapter
from tests.smallest import write_paired, write_scored
from tests.stages.fabricated_run import trajectory

TERMS = {
    "outcome": 1.0, "format": 1.0, "consistency": 1.0, "subquery": 0.5, "context": 0.5,
    "summary": 0.5, "process": 0.5, "total": 2.5,
    "memory": {"subquery": [0.5], "context": [0.5], "summary": [0.5]},
}  # fmt: skip
METRICS = [{"policy": "sft", "dataset": "average", "f1": 0.5}]
QUESTIONS = [Question(f"q{n}", "toy", f"Q{n}?", ["Rome"], "single") for n in range(3)]


def settings_of(model: Path) -> list[str]:
    return [
        f"model.base={model}",
        "engine={kind: transformers, dtype: float32, max_model_len: 512}",
        "retrieval.variant=none",
        "sampling={samples: 2, max_segment_tokens: 6, max_total_tokens: 256, batch: 2, in_flight: 4}",
        "rounds=1",
    ]


@pytest.fixture
def overrides(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    return settings_of(model)


@pytest.fixture(scope="module")
def finished(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which every stage is complete; round 1 has more trajectories than one batch."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for task in walk(task_for("report", "embedded", tuple(settings_of(model)))):
            written = task.settings.run_dir / "written" / task.label
            written.mkdir(parents=True)
            WRITERS.get(task.stage, write_nothing)(written, task, model)
            task.directory.parent.mkdir(parents=True, exist_ok=True)
            task.store.commit(task.key, written, {"counts": {"rows": 1}})
    return folder


@pytest.fixture
def run(overrides: list[str], finished: Path, tmp_path: Path) -> Run:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return Run.open("embedded", overrides=overrides)


def write_nothing(folder: Path, task: StageTask, model: Path) -> None:
    (folder / "nothing.txt").write_text("")


def write_questions(folder: Path, task: StageTask, model: Path) -> None:
    write_parquet(folder / "questions.parquet", QUESTIONS, Question)


def write_policy(folder: Path, task: StageTask, model: Path) -> None:
    small_adapter(model, folder / "adapter")
    number = task.round_number or 0
    parent = None if number == 0 else f"policy-{number - 1}"
    Lineage(
        f"policy-{number}", str(model), "", parent, parent, number, "dpo", {}, seed=0, counts={}
    ).write(folder)


def write_trajectories(folder: Path, task: StageTask, model: Path) -> None:
    rewards = TERMS if task.stage == "score" else None
    records = [
        trajectory(f"q{n // 2}", "Ostar", name=f"q{n // 2}-{n % 2}", rewards=rewards)
        for n in range(600)
    ]
    records[-1] = replace(records[-1], stop="retrieval_error", rewards=None)
    write_scored(folder / "trajectories.parquet", records)


def write_pairs(folder: Path, task: StageTask, model: Path) -> None:
    pair = Pair(
        "q0", [], [], [], "q0-0", "q0-1", "easy", TERMS, TERMS, "policy-0", 1, [], [], [], [], []
    )
    write_paired(folder / "pairs.parquet", [pair])


def write_metrics(folder: Path, task: StageTask, model: Path) -> None:
    write_json(folder / "metrics.json", METRICS)


WRITERS: dict[str, Callable[[Path, StageTask, Path], None]] = {
    "questions-test": write_questions,
    "sft": write_policy,
    "train": write_policy,
    "sample": write_trajectories,
    "score": write_trajectories,
    "evaluate-policy": write_trajectories,
    "pair": write_pairs,
    "evaluate": write_metrics,
}


def test_records_of_a_run_are_read(run: Run) -> None:
    assert [question.question_id for question in run.questions("test")] == ["q0", "q1", "q2"]
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
    run: Run, overrides: list[str]
) -> None:
    changed = task_for("sample", "embedded", (*overrides, "sampling.samples=3"), round=1)
    folder = run.directory / "written" / "changed"
    folder.mkdir()
    write_trajectories(folder, changed, run.directory)
    started = {"started": "2026-11-30T12:00:00Z"}
    changed.store.commit(changed.key, folder, {"counts": {"rows": 1}, **started})
    os.utime(run.stage("sample-1") / "manifest.json", (2**31, 2**31))  # as in a copy
    newest = Run.from_directory(run.directory)
    assert newest.stage("sample-1") == changed.directory
    assert newest.stage("sft") == run.stage("sft")
    assert Run.open("embedded", overrides=overrides).stage("sample-1") == run.stage("sample-1")


def test_a_stage_that_is_not_complete_is_named(overrides: list[str], tmp_path: Path) -> None:
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
    run: Run, overrides: list[str], opened: str
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
    whole = run.roll_out(QUESTIONS, policy=0, samples=2, temperature=1.0)
    assert [(t.question_id, t.sample) for t in whole] == [
        (f"q{n}", sample) for n in range(3) for sample in range(2)
    ]
    assert {t.policy for t in whole} == {"policy-0"}
    policy: Policy = run.policies()[0]
    part = run.roll_out(QUESTIONS[1:2], policy, samples=2, temperature=1.0)
    assert [t.output for t in part] == [t.output for t in whole[2:4]]
    [greedy] = run.roll_out(["Who founded Vell?"], policy, temperature=0)
    assert (greedy.question, greedy.answers) == ("Who founded Vell?", [])
    with pytest.raises(InputError, match="occurs twice"):
        run.roll_out(["Who?", "Who?"], policy)
    for asked in (run.roll_out, run.ask):
        with pytest.raises(InputError, match="the questions are the text 'Who'; pass a list"):
            asked("Who", policy)
    for samples in (0, -1):
        with pytest.raises(InputError, match=f"samples is {samples}; expected at least 1"):
            run.roll_out(["Who?"], policy, samples=samples)


def test_a_round_has_its_own_settings(overrides: list[str]) -> None:
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
    for number in (0, -1):
        for use in (run.score, run.select_pairs):
            with pytest.raises(ConfigError, match=f"round is {number}; rounds count from 1"):
                use(scored, round=number)
        with pytest.raises(ConfigError, match="rounds count from 1"):
            list(run.pairs(number))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "other.jsonl"
    path.write_text('{"question": "Who made it?", "answer": ["Ann"]}\n')
    return path


@pytest.mark.slow
def test_the_untrained_policy_is_evaluated_on_any_questions(run: Run, file: Path) -> None:
    rows = run.evaluate(["base"], file)
    expected = [("base", name, "other", 1) for name in ("questions", "all-questions", "all")]
    assert [(r["policy"], r["dataset"], r["split"], r["n"]) for r in rows] == expected


def test_a_policy_of_another_base_model_is_not_evaluated(run: Run, file: Path) -> None:
    """The run's own policies name another base in their lineage."""
    with pytest.raises(InputError, match=r"set model\.base to that model"):
        run.evaluate([0], file)
    with pytest.raises(ConfigError, match="opened without a configuration"):
        Run.from_directory(run.directory).evaluate(["base"], file)
