"""Settings of single rounds: which stages run again, and with which settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import load
from pipeline.core.errors import ConfigError
from tasks.base import StageTask
from tasks.rounds import RoundTask
from tasks.run import run, task_for, walk
from tests.tasks.counting_tasks import ROOT, Counting, executions, task

HIPRAG = str(ROOT / "configs" / "embedded-hiprag.yaml")
THRESHOLD = "per_round.2.pairs.easy_outcome=0.4"


class Paired(Counting, RoundTask):
    stage = "paired"
    entry = "counting_stages:of_round"
    reads = ("pairs",)

    def upstream(self) -> dict[str, StageTask]:
        return {"policy": self.clone(Trained, round=self.round - 1)} if self.round > 1 else {}


class Trained(Counting, RoundTask):
    stage = "trained"
    entry = "counting_stages:of_round"
    reads = ("dpo",)

    def upstream(self) -> dict[str, StageTask]:
        return {"pairs": self.clone(Paired)}


def train(workspace: Path, *overrides: str) -> str:
    """Run three rounds; returns what the last one wrote."""
    last: Any = task(Trained, workspace, *overrides).clone(round=3)
    return (run(last) / "text.txt").read_text()


def test_a_setting_of_round_2_runs_its_pairs_and_what_follows(workspace: Path) -> None:
    train(workspace)
    before = executions(workspace)
    assert before == [f"{stage}-{n}" for n in (1, 2, 3) for stage in ("paired", "trained")]
    text = train(workspace, THRESHOLD)
    assert executions(workspace)[len(before) :] == [
        "paired-2",
        "trained-2",
        "paired-3",
        "trained-3",
    ]
    thresholds = [line.split()[1] for line in text.splitlines() if line.startswith("paired")]
    assert thresholds == ["0.3", "0.4", "0.3"]
    count = len(executions(workspace))
    train(workspace, THRESHOLD)
    train(workspace, "per_round.2.pairs.easy_outcome=0.3")  # the value of the run
    assert len(executions(workspace)) == count


def test_training_reads_its_rounds_block(workspace: Path) -> None:
    train(workspace)
    count = len(executions(workspace))
    train(workspace, "per_round.3.dpo.beta=0.25")
    assert executions(workspace)[count:] == ["trained-3"]


def keys(*overrides: str, config: str = "embedded") -> dict[str, str]:
    """The fingerprints of all stages of an undivided run by label."""
    report = task_for("report", config, ("shards=1", *overrides))
    return {stage.label: stage.key.fingerprint for stage in walk(report)}


def changed(*overrides: str, config: str = "embedded") -> set[str]:
    plain, other = keys(config=config), keys(*overrides, config=config)
    return {label for label in other if other[label] != plain.get(label)}


FROM_PAIR_2 = {"pair-2", "train-2", "sample-3", "score-3", "pair-3", "train-3"} | {
    "evaluate-policy-2", "evaluate-policy-3", "evaluate", "report",
}  # fmt: skip


def test_the_stages_of_a_run_before_the_change_keep_their_fingerprints(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert changed("per_round={}") == changed("per_round.2={}") == set()
    assert changed(THRESHOLD) == FROM_PAIR_2
    assert changed("per_round.2.dpo.eta=[9]") == FROM_PAIR_2 - {"pair-2"}
    sampling = changed("per_round.2.sampling.temperature=0.7")
    assert sampling == FROM_PAIR_2 | {"sample-2", "score-2"}
    questions = "[{dataset: nq, path: nq_sampling.jsonl}]"
    assert changed(f"per_round.2.data.sampling={questions}") == sampling | {"questions-sampling-2"}
    shards = {f"{stage}-shard-2-00{n}" for stage in ("sample", "score") for n in (0, 1)}
    assert changed("per_round.2.sampling.shards=2") == shards


def test_the_report_reads_the_questions_of_a_round_that_has_its_own() -> None:
    own = "per_round.2.data.sampling=[{dataset: nq, path: nq_sampling.jsonl}]"
    report, plain = task_for("report", "embedded", (own,)), task_for("report", "embedded")
    [added] = report.inputs.keys() - plain.inputs.keys()
    assert added == "questions-sampling-2"
    assert report.inputs[added].key == report.inputs["sample-2"].inputs["questions"].key


def test_judges_of_one_round_leave_the_judges_of_policies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    stale = changed("per_round.1.judges.over.noisy={share: 0.1}", config=HIPRAG)
    assert {"judge-1", "score-1", "pair-1", "train-1", "judge-2"} <= stale
    assert not {"sample-1", "judge-policy-0", "evaluate-policy-0"} & stale


def test_a_judge_runs_in_the_rounds_whose_reward_counts_it() -> None:
    unjudged = ("judges=null", "rewards.hiprag.process=0", "evaluation.judges=null")
    judges = "{over: {backend: closed-world}, under: {backend: closed-world}}"
    judged = (f"per_round.2.judges={judges}", "per_round.2.rewards.hiprag.process=0.4")
    report = task_for("report", HIPRAG, (*unjudged, *judged, "rounds=2", "shards=1"))
    assert [stage.label for stage in walk(report) if stage.stage.startswith("judge")] == ["judge-2"]


def steep(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pipeline.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        timeout=300,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "train", "--round", 9),
        ("status", "--why", "sample:9"),
        ("view", "--round", 9),
        ("run", "evaluate-policy", "--round", 9),
    ],
)
def test_a_round_above_rounds_is_refused(tmp_path: Path, arguments: tuple[object, ...]) -> None:
    done = steep(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: round is 9, and rounds is 3; choose a round up to 3, or")
    assert "--set rounds=9" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_round_after_the_pairs_at_which_a_run_stops_is_refused() -> None:
    with pytest.raises(ConfigError, match="round is 2, and until is pair"):
        task_for("pair", "embedded", ("until=pair",), round=2)
    assert task_for("pair", "embedded", ("until=pair",), round=1).label == "pair-1"


WORLD = "data.closed_world={documents: 300, musique_train: 9, musique_sampling: 3, musique_dev: 3, musique_test: 3, hotpotqa_sampling: 3, hotpotqa_dev: 3, hotpotqa_test: 3, wiki2_test: 3, nq_sampling: 3, nq_dev: 3, nq_test: 3}"


def test_a_run_writes_its_configuration_which_gives_the_same_stages(tmp_path: Path) -> None:
    """Relative directories stay relative; a second run leaves the file as it is."""
    overrides = (WORLD, THRESHOLD, "runs_dir=./out", "graph.endpoint={base_url: http://x/v1, "
                 "model: m, api_key_env: STEEP_TEST_KEY}")  # fmt: skip
    options = [part for override in overrides for part in ("--set", override)]
    os.environ["STEEP_TEST_KEY"] = "sk-secret"
    try:
        done = steep("run", "world", *options, cwd=tmp_path)
    finally:
        del os.environ["STEEP_TEST_KEY"]
    assert done.returncode == 0, done.stderr
    file = tmp_path / "out" / "embedded" / "config.yaml"
    assert "sk-secret" not in file.read_text()
    kept = json.loads(file.with_name("dtypes.json").read_text())
    types = tuple(f"{name}={dtype}" for name, dtype in kept.items())  # for auto
    assert load(file) == load("embedded", (*overrides, *types))
    written = file.stat().st_mtime_ns
    rows = [
        json.loads(steep("status", "--json", *arguments, cwd=tmp_path).stdout)
        for arguments in (options, ["--config", "out/embedded/config.yaml"])
    ]
    assert rows[0] == rows[1]
    again = steep("run", "world", "--config", "out/embedded/config.yaml", cwd=tmp_path)
    assert (again.returncode, file.stat().st_mtime_ns) == (0, written)
    steep("run", "world", *options, "--set", "seed=7", cwd=tmp_path)
    assert load(file).seed == 7


def test_a_data_directory_of_the_command_line_is_kept_as_an_absolute_path(tmp_path: Path) -> None:
    data, elsewhere = tmp_path / "data sets", tmp_path / "elsewhere"
    data.mkdir()
    elsewhere.mkdir()
    (data / "documents.jsonl").write_text('{"title": "A", "text": "B is C."}\n')
    (data / "questions.jsonl").write_text('{"question": "Q?", "answer": ["a"]}\n')
    own = tmp_path / "own.yaml"
    own.write_text(
        f"base: {ROOT}/configs/embedded.yaml\nruns_dir: {tmp_path}/runs\n"
        "data: {closed_world: null, sft: [], validation: [], test: [],\n"
        "       sampling: [{dataset: nq, path: questions.jsonl}]}\n"
        "corpus: {files: [{path: documents.jsonl, format: jsonl}]}\n"
    )
    done = steep("run", "corpus", "--config", own, "--data", "data sets", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    file = tmp_path / "runs" / "own" / "config.yaml"
    assert load(file).data.root == str(data)
    again = steep("run", "corpus", "--config", file, cwd=elsewhere)
    assert again.stdout == done.stdout.splitlines()[-1] + "\n"  # nothing runs


def test_a_run_that_a_missing_file_stops_writes_no_configuration(tmp_path: Path) -> None:
    done = steep("run", "corpus", "--config", "musique-sample", "--data", ".", cwd=tmp_path)
    assert done.returncode == 2
    assert not list(tmp_path.rglob("config.yaml"))
