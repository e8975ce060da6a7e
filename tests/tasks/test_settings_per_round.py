"""Settings of single rounds: which stages run again, and with which settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.config import load
from pipeline.engine.run import keep_dtypes, run, walk, write_resolved
from pipeline.engine.stage import RoundTask, left_by, resolved
from tasks import task_for
from tests.tasks.counting_tasks import ROOT, Counting, task
from tests.tasks.declared import changed

HIPRAG = str(ROOT / "configs" / "embedded-hiprag.yaml")
THRESHOLD = "per_round.2.pairs.easy_outcome=0.4"


class Paired(Counting, RoundTask):
    stage = "paired"
    entry = "counting_stages:of_round"
    reads = ("pairs",)


def test_a_stage_is_run_with_the_settings_of_its_round(workspace: Path) -> None:
    paired = [task(Paired, workspace, THRESHOLD).clone(round=number) for number in (1, 2, 3)]
    thresholds = [(run(stage) / "text.txt").read_text() for stage in paired]
    assert thresholds == ["0.3", "0.4", "0.3"]


FROM_PAIR_2 = {"pair-2", "train-2", "sample-3", "score-3", "pair-3", "train-3"} | {
    "evaluate-policy-2", "evaluate-policy-3", "evaluate", "report",
}  # fmt: skip


@pytest.mark.usefixtures("elsewhere")
def test_the_stages_of_a_run_before_the_change_keep_their_fingerprints() -> None:
    assert changed("per_round={}") == changed("per_round.2={}") == set()
    assert changed(THRESHOLD) == FROM_PAIR_2
    assert changed("per_round.2.dpo.eta=[9]") == FROM_PAIR_2 - {"pair-2"}
    sampling = changed("per_round.2.sampling.temperature=0.7")
    assert sampling == FROM_PAIR_2 | {"sample-2", "score-2"}
    questions = "[{dataset: nq, path: nq_sampling.jsonl}]"
    assert changed(f"per_round.2.data.sampling={questions}") == sampling | {
        "questions-sampling-2", "coverage",
    }  # fmt: skip
    shards = {f"{stage}-shard-2-00{n}" for stage in ("sample", "score") for n in (0, 1)}
    assert changed("per_round.2.sampling.shards=2") == shards


def test_a_judge_runs_in_the_rounds_whose_reward_counts_it() -> None:
    unjudged = ("judges=null", "rewards.hiprag.process=0", "evaluation.judges=null")
    judges = "{over: {backend: closed-world}, under: {backend: closed-world}}"
    judged = (f"per_round.2.judges={judges}", "per_round.2.rewards.hiprag.process=0.4")
    report = task_for("report", HIPRAG, (*unjudged, *judged, "rounds=2", "shards=1"))
    assert [stage.label for stage in walk(report) if stage.stage.startswith("judge")] == ["judge-2"]


def test_a_run_writes_its_configuration_which_gives_the_same_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative directories stay relative; a second run leaves the file as it is."""
    endpoint = "{base_url: http://x/v1, model: m, api_key_env: STEEP_TEST_KEY}"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEEP_TEST_KEY", "sk-secret")
    report = task_for(
        "report", "embedded", (THRESHOLD, "runs_dir=./out", f"graph.endpoint={endpoint}")
    )
    keep_dtypes(resolved(report))
    file = write_resolved(report.settings)
    assert "sk-secret" not in file.read_text()
    again = task_for("report", str(file))
    assert {one.label: one.key for one in walk(again)} == {
        one.label: one.key for one in walk(report)
    }
    written = file.stat().st_mtime_ns
    write_resolved(again.settings)
    assert file.stat().st_mtime_ns == written


def test_a_configuration_is_read_again_by_a_process_that_has_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook: the file of a run changes, or another folder has a file of its name."""
    for number, name in enumerate(("first", "first", "second")):
        run_dir = tmp_path / name / "runs" / "embedded"
        run_dir.mkdir(parents=True, exist_ok=True)
        values = load("embedded", (f"seed={number}",)).model_dump(mode="json")
        (run_dir / "config.yaml").write_text(json.dumps(values))  # JSON is YAML
        monkeypatch.chdir(tmp_path / name)
        assert left_by(Path("runs/embedded")).settings.seed == number
        assert task_for("report", "runs/embedded/config.yaml").settings.seed == number
