"""Evaluations beside a run: any policy on any questions, each once, and nothing else runs."""

from __future__ import annotations

import json
import shutil
from contextlib import chdir
from dataclasses import asdict
from pathlib import Path

import pytest

from pipeline.core.errors import InputError, StoreError
from pipeline.core.model_files import model_hash
from pipeline.core.record_io import read_records, write_parquet
from pipeline.core.records import Question, Trajectory
from pipeline.engine.run import RunFailed
from pipeline.engine.run import run as run_task
from pipeline.engine.stage import StageTask
from pipeline.serving.evaluations import evaluate
from pipeline.serving.named_policies import find_policy
from pipeline.training.lineage import policy_fingerprint
from tasks import task_for
from tasks.evaluate_any import EvaluateAny
from tasks.policy import policy
from tests.cli.malformed_inputs import steep
from tests.tasks.counting_tasks import ROOT
from tests.tasks.small_run import (
    QUESTIONS,
    commit_policy,
    finished_run,
    leave_configuration,
    settings,
)


@pytest.fixture(scope="module")
def overrides(model: Path) -> tuple[str, ...]:
    return settings(model, 512, "sampling.max_total_tokens=256", "rounds=2", "shards=1")


@pytest.fixture(scope="module")
def finished(
    overrides: tuple[str, ...], model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder of complete indexes, SFT and round 1; round 2, samples, scores and pairs are missing."""
    folder = tmp_path_factory.mktemp("finished")
    with chdir(folder):
        finished_run(overrides, model, [0, 1])
    return folder


@pytest.fixture
def run(
    overrides: tuple[str, ...], finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> StageTask:
    """The stage ``evaluate`` in a copy of that folder, which is the working directory."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return task_for("evaluate", "embedded", overrides)


def executions(task: StageTask) -> list[str]:
    """The stages of the run's store that have a complete output, one entry for each output."""
    manifests = task.settings.run_dir.glob("store/*/*/manifest.json")
    return sorted(path.parent.parent.name for path in manifests)


@pytest.mark.slow
def test_an_evaluation_runs_once_for_a_policy_and_questions_of_the_same_content(
    run: StageTask, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other names, formats and settings that decide nothing run nothing; other questions do."""
    before = executions(run)
    done = evaluate(run, ["base", "sft"], limit=2)
    assert executions(run) == sorted([*before, "evaluate-any", "evaluate-any"])
    assert capsys.readouterr().out.count(" runs (log: ") == 2
    assert [row["n"] for row in done.rows if row["dataset"] == "all"] == [2, 2]
    assert {row["split"] for row in done.rows} == {"test-first-2"}
    assert {(test["before"], test["after"]) for test in done.tests} == {("base", "sft")}

    leave_configuration(run)
    copy = tmp_path / "copied adapter"
    shutil.copytree(policy(run, 0).directory / "adapter", copy)
    lines = tmp_path / "same.jsonl"
    lines.write_text("".join(json.dumps(asdict(question)) + "\n" for question in QUESTIONS[:2]))
    other = task_for("evaluate", "embedded", (*run.overrides, "pairs.margin=0.2"))
    again = evaluate(other, [str(copy), "embedded:sft"], lines)
    assert set(again.directories.values()) == {done.directories["sft"]}
    named = [row["policy"] for row in again.rows if row["dataset"] == "all"]
    assert named == [str(copy), "embedded:sft"]
    assert "runs (log" not in capsys.readouterr().out

    (done.directories["sft"] / "rows.json").write_text("{}")
    remake = r"steep evaluate --policy \S+ --questions \S+parquet --force --config embedded "
    with pytest.raises(StoreError, match=rf"evaluate-sft is damaged .*: {remake}"):
        evaluate(run, ["sft"], limit=2)

    fewer = evaluate(run, ["sft"], lines, limit=1)
    assert capsys.readouterr().out.count(" runs (log: ") == 1
    assert [row["n"] for row in fewer.rows] == [1, 1, 1]
    assert executions(run) == sorted([*before, *["evaluate-any"] * 3])


@pytest.mark.slow
def test_several_samples_of_policies_are_measured_once_beside_greedy_evaluations(
    run: StageTask, tmp_path: Path
) -> None:
    """A random model is never right, and without retrieval all that it writes is the answer."""
    before = executions(run)
    words = [word for setting in run.overrides for word in ("--set", setting)]
    asked = ["evaluate", "--policy", "base", "--policy", "sft", "--limit", "2", *words]
    status, printed, _ = steep([*asked, "--samples", "3", "-o", "rows.json"])
    assert status == 0
    assert "\n3 trajectories per question at temperature 1\n" in printed
    assert "pass@2" in printed
    assert "majority@3" in printed
    assert executions(run) == sorted([*before, "evaluate-any", "evaluate-any"])
    rows = json.loads(Path("rows.json").read_text())
    assert [row["n"] for row in rows if row["dataset"] == "all"] == [2, 2]
    assert {(row["pass@2"], row["pass@3"], row["majority@3"]) for row in rows} == {(0.0, 0.0, 0.0)}
    kept = Path("runs/embedded/evaluations")
    assert json.loads((kept / "sft-test-first-2-3-samples.json").read_text()) == [
        row for row in rows if row["policy"] == "sft"
    ]
    tests = json.loads((kept / "comparisons/test-first-2-3-samples.json").read_text())
    assert {"pass@3", "majority@3", "distinct_queries"} < {test["measure"] for test in tests}
    again = evaluate(run, ["base", "sft"], limit=2, samples=3)
    assert again.rows == rows
    assert executions(run) == sorted([*before, "evaluate-any", "evaluate-any"])
    sampled = read_records(again.directories["base"] / "trajectories.parquet", Trajectory)
    assert [(t.question_id, t.sample) for t in sampled] == [
        (f"q{n}", k) for n in range(2) for k in range(3)
    ]
    assert {row["distinct_answers"] > 1 for row in rows if row["policy"] == "base"} == {True}
    greedy = evaluate(run, ["base"], limit=2)
    assert greedy.directories["base"] != again.directories["base"]
    assert "pass@2" not in greedy.rows[0]


def test_samples_decide_the_fingerprint_with_their_temperature_and_one_sample_does_not(
    overrides: tuple[str, ...], tmp_path: Path
) -> None:
    write_parquet(tmp_path / "questions.parquet", QUESTIONS, Question)

    def fingerprint(samples: int | None, *more: str) -> str:
        task = task_for("evaluate", "embedded", (*overrides, *more))
        several = {} if samples is None else {"samples": samples}
        one: StageTask = task.clone(EvaluateAny, questions=str(tmp_path), title="", **several)
        return one.key.fingerprint

    assert fingerprint(None) == fingerprint(1) != fingerprint(2) != fingerprint(3)
    others = ("sampling.samples=5", "sampling.temperature=0.5")
    assert fingerprint(1, *others) == fingerprint(1)
    assert fingerprint(2, others[0]) == fingerprint(2) != fingerprint(2, others[1])
    hot = "evaluation.temperature=0.5"
    assert fingerprint(2, hot) == fingerprint(2, hot, "sampling.temperature=0.7")
    assert fingerprint(2, hot) == fingerprint(2, others[1])
    assert fingerprint(2, "shards=3") == fingerprint(2)


def test_a_policy_has_the_names_of_files_and_of_pages(run: StageTask) -> None:
    for name in ("1", "round-1", "policy-1", "policy 1", "Policy 1"):
        assert find_policy(run, name).name == "round-1"
    for name in ("0", "sft", "Policy 0 (SFT)"):
        assert find_policy(run, name).name == "sft"


def test_what_is_missing_is_named_with_its_command_and_nothing_runs(
    run: StageTask, overrides: tuple[str, ...]
) -> None:
    before = executions(run)
    semantic = ("retrieval.variant=semantic", "index.faiss=hnsw")
    for more, names, error, words in (
        ((), ["2"], StoreError, r"train-2 is not complete; .*steep run train --round 2"),
        ((), ["3"], InputError, "policy 3, and rounds is 2"),
        ((), ["nothing"], InputError, r"expected the number of a policy \(0: SFT\), base, RUN:N"),
        (semantic, ["base"], StoreError, r"^index of .* is not complete.*`steep run index "),
        (("sft.epochs=7",), (), StoreError, r"no policy of .* is trained; .*steep run sft"),
    ):
        with pytest.raises(error, match=words):
            evaluate(task_for("evaluate", "embedded", (*overrides, *more)), names)
    assert executions(run) == before


def test_unusable_policies_are_refused_before_anything_runs(run: StageTask, tmp_path: Path) -> None:
    before = executions(run)
    trained = policy(run, 0).directory

    def copied(name: str) -> Path:
        return Path(shutil.copytree(trained, tmp_path / name))

    def refused(directory: Path, problem: str) -> None:
        with pytest.raises(InputError, match=problem):
            evaluate(run, ["base", str(directory)], limit=1)

    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "holds no policy; expected lineage.json with adapter/")
    shutil.copytree(
        policy(run, 1).directory / "adapter", copied("mixed") / "adapter", dirs_exist_ok=True
    )
    refused(tmp_path / "mixed", "differs from .*lineage.json")
    lineage = json.loads((copied("other base") / "lineage.json").read_text())
    changed = json.dumps({**lineage, "base_sha": "another"})
    (tmp_path / "other base" / "lineage.json").write_text(changed)
    refused(tmp_path / "other base", "with content another, and model.base .* set model.base")
    assert executions(run) == before


def test_an_adapter_that_changed_since_its_evaluation_was_planned_is_not_evaluated(
    run: StageTask, tmp_path: Path
) -> None:
    adapter = shutil.copytree(policy(run, 0).directory / "adapter", tmp_path / "adapter")
    questions = task_for("questions-test", "embedded", tuple(run.overrides)).directory
    planned = run.clone(EvaluateAny, policy=str(adapter), questions=str(questions), title="adapter")
    assert planned.key.files["policy"] == policy_fingerprint(
        adapter, model_hash(Path(run.settings.model.base))
    )
    before = executions(run)
    shutil.copytree(policy(run, 1).directory / "adapter", adapter, dirs_exist_ok=True)
    with pytest.raises(RunFailed, match=rf"{adapter}: changed before the stage started"):
        run_task(planned, check=False)
    assert executions(run) == before


def test_the_policy_of_another_run_is_that_of_its_configuration(
    run: StageTask, overrides: tuple[str, ...], model: Path
) -> None:
    with pytest.raises(InputError, match=r"the directory of a run with its config.yaml; expected"):
        find_policy(run, "embedded:sft")
    commit_policy(
        policy(task_for("evaluate", "embedded", (*overrides, "sft.epochs=2")), 0), model, seed=2
    )
    leave_configuration(run)
    found = find_policy(run, "embedded:sft")
    assert found.directory is not None
    assert found.directory.resolve() == policy(run, 0).directory.resolve()
    assert (found.name, found.number) == ("embedded:sft", None)
    assert find_policy(run, "runs/embedded:1").name == "embedded:round-1"
    with pytest.raises(StoreError, match="train-2 is not complete"):
        find_policy(run, "embedded:2")
