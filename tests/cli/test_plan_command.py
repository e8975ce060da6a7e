"""``steep plan``: its tables, its JSON, its refusals, and what it imports."""

import json
import subprocess
import sys

import pytest

from pipeline.cli.plan import amount_of, duration, plan_lines, size
from tasks.run import task_for
from tests.cli.test_cli import ROOT, refused, steep
from tests.tasks.planning.finished_runs import finish_all, plan, report


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def options(folder, *overrides):
    runs = (
        f"runs_dir={folder / 'runs'}",
        f"cache_dir={folder / 'runs/cache'}",
        "rounds=1",
        "shards=1",
    )
    return [part for override in (*runs, *overrides) for part in ("--set", override)]


def test_the_plan_of_a_second_run_goes_by_the_first(folder):
    finish_all(report(folder))
    done = steep("plan", *options(folder, "seed=1", "name=second"), cwd=folder)
    assert done.returncode == 0, done.stderr
    rows = {line.split("│")[1].strip(): line for line in done.stdout.splitlines() if "│" in line}
    assert "1 min 46 s" in rows["sample-1"]
    assert "1,920" in rows["sample-1"]
    assert "48,000" in rows["sample-1"]
    assert "embedded sample-1" in rows["sample-1"]
    total = done.stdout.splitlines()[-1]
    assert total.startswith("total: about ")
    assert "2,720 trajectories" in total  # 1,920 sampled, and 400 for each of two policies
    assert not list((folder / "runs" / "second").rglob("manifest.json"))


def test_work_in_another_number_of_shards_is_told(folder):
    index = task_for("index", str(ROOT / "configs/embedded.yaml"), options(folder)[1::2])
    shard = task_for("index", index.config, (*index.overrides, "shards=3")).shard(1)
    checkpoint = shard.store.checkpoint_dir(shard.key) / "chunks.npy"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    done = steep("plan", "index", "--json", *options(folder), cwd=folder)
    assert "index" in [stage["label"] for stage in json.loads(done.stdout)["stages"]]
    assert "warning: index: checkpoints or outputs of 1 of 3 shards are there" in done.stderr


def test_json_has_every_stage_and_the_wall_time(folder):
    finish_all(report(folder))
    done = steep("plan", "sft", "--json", *options(folder, "sft.epochs=2"), cwd=folder)
    made = json.loads(done.stdout)
    assert [stage["state"] for stage in made["stages"]] == ["done"] * 7 + ["run"]
    assert made["wall_seconds"] == pytest.approx(150)  # 10 s to start, 70 s for one epoch
    assert made["unknown"] == []


def test_a_plan_without_known_times_is_two_lines(folder):
    """Stages by name; a table would say "unknown" in every row."""
    done = steep("plan", *options(folder, "rounds=2", "shards=2"), cwd=folder)
    assert done.returncode == 0
    stages, unknown = done.stdout.splitlines()
    assert stages.startswith("39 stages would run: world, corpus, graph, index (3), ")
    assert ", sample (6), score (6), pair (2), train (2), evaluate-policy (9), " in stages
    assert unknown.startswith("the time is unknown: ")
    assert "total" not in done.stdout


def test_a_finished_run_needs_nothing(folder):
    finish_all(report(folder))
    assert plan_lines(plan(report(folder))) == ["every stage is done; nothing would run"]


def test_trajectories_of_joined_shards_are_counted_once(folder):
    finish_all(report(folder))
    made = plan(report(folder, "sampling.shards=4", "sampling.temperature=0.7"))
    sampled = {
        stage.label: amount_of(stage, "trajectories")
        for stage in made.running
        if stage.label.startswith("sample")
    }
    assert sampled.pop("sample-1") is None
    assert sum(sampled.values()) == 1920


def test_an_unknown_stage_is_refused(folder):
    refused(steep("plan", "smaple", cwd=folder), "no stage 'smaple'")


def test_a_plan_imports_no_heavy_package(folder):
    finish_all(report(folder))
    code = (
        "import sys; from pipeline.cli.app import app\n"
        f"sys.argv = ['steep', 'plan', *{options(folder, 'seed=1', 'name=second')!r}]\n"
        "try:\n    app()\nexcept SystemExit as end:\n    assert not end.code\n"
        "heavy = {'torch', 'vllm', 'transformers', 'datasets', 'faiss', 'pandas', 'scipy', 'pyarrow'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=folder,
        check=True,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (3599, "59 min 59 s"),
        (12060, "3 h 21 min"),
    ],
)
def test_durations_are_for_people(seconds, text):
    assert duration(seconds) == text


def test_sizes_are_for_people():
    assert [size(number) for number in (940, 2.3e6, 5e9, 7e13)] == [
        "940 B",
        "2.3 MB",
        "5.0 GB",
        "70.0 TB",
    ]
