"""``steep gc`` on fabricated runs of whole configurations, with the ``config.yaml`` that runs leave."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from luigi.task_register import Register

from pipeline.core.errors import InputError
from tasks.base import load_config
from tasks.gc import collect
from tasks.run import task_for, walk
from tests.tasks.counting_tasks import ROOT


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def fabricate(name, *overrides):
    """The report task of an undivided run of the embedded configuration, all outputs of which exist."""
    report = task_for("report", "embedded", (f"name={name}", "shards=1", *overrides))
    for task in walk(report):
        if not task.complete():
            written = Path("written")
            written.mkdir()
            (written / "text.txt").write_text(f"{task.label} of {name} {overrides}")
            task.directory.parent.mkdir(parents=True, exist_ok=True)
            task.store.commit(task.key, written, {"counts": {"rows": 1}})
    return report


def leave_configuration(report):
    path = report.settings.run_dir / "config.yaml"
    path.write_text(yaml.safe_dump(report.settings.model_dump(mode="json")))
    return path


def labels(report) -> list[str]:
    return [task.label for task in walk(report) if task.complete()]


def removed(found) -> list[str]:
    return [row.stage for row in found.rows if row.removed]


def gc(*reports, runs=None, removing=True):
    # As in a new process: loaded configurations and their tasks are remembered by path.
    load_config.cache_clear()
    Register.clear_instance_cache()
    return collect(reports, runs, removing=removing, recent_minutes=0)


def test_the_configuration_that_a_run_left_names_its_outputs():
    base = fabricate("a")
    experiment = fabricate("a", "dpo.beta=0.3", "rounds=1")
    leave_configuration(experiment)
    whole = labels(experiment)
    assert gc(base).rows == []
    leave_configuration(base)
    found = gc(base)
    assert removed(found) == ["evaluate", "evaluate-policy", "report", "train"]
    assert labels(base) == [task.label for task in walk(base)]
    assert set(whole) - set(labels(experiment)) == {
        *("train-1", "evaluate-policy-1", "evaluate", "report"),
    }


def test_fewer_rounds_leave_the_later_ones_unnamed():
    fabricate("a", "rounds=2")
    shorter = fabricate("a", "rounds=1")
    reasons = {row.stage: row.reason for row in gc(shorter, removing=False).rows}
    assert reasons["train"] == "no configuration has this stage with number 2"
    assert reasons["report"].startswith("setting rounds: 2 -> 1")


def test_stages_that_the_report_does_not_need_are_named_too():
    report = fabricate("a", "rounds=0")
    hyper_index = task_for("hyper-index", "embedded", ("name=a", "shards=1", "rounds=0"))
    for task in walk(hyper_index):
        if not task.complete():
            Path("written").mkdir()
            Path("written/text.txt").write_text("facts")
            task.directory.parent.mkdir(parents=True, exist_ok=True)
            task.store.commit(task.key, Path("written"), {"counts": {"rows": 1}})
    assert gc(report).rows == []
    assert hyper_index.complete()


def test_shards_are_named_until_their_stage_is_complete():
    divided = ("a", "rounds=1", "sampling.shards=2")
    report = fabricate(*divided)
    sample = next(task for task in walk(report) if task.stage == "sample")
    shutil.rmtree(sample.directory)
    assert {row.stage for row in gc(report, removing=False).rows} == {"score-shard"}
    joined = {"the complete stage holds what this shard wrote"}
    assert {row.reason for row in gc(report, removing=False).rows} == joined
    fabricate(*divided)
    assert removed(gc(report)) == ["sample-shard"] * 2 + ["score-shard"] * 2
    whole = [task.label for task in walk(report)]
    assert labels(report) == whole


def test_shards_of_another_number_are_not_named():
    report = fabricate("a", "rounds=1", "sampling.shards=2")
    sample = next(task for task in walk(report) if task.stage == "sample")
    shutil.rmtree(sample.directory)
    other = task_for("report", "embedded", ("name=a", "shards=1", "rounds=1", "sampling.shards=3"))
    assert removed(gc(other)) == ["sample-shard"] * 2 + ["score-shard"] * 2


def test_a_world_is_kept_while_another_run_may_use_it():
    a, b = fabricate("a", "rounds=0"), fabricate("b", "rounds=0", "data.closed_world.seed=7")
    found = gc(a)
    assert [(row.stage, row.removed) for row in found.rows] == [("world", False)]
    assert "runs/b has no config.yaml" in found.left[0]
    path = leave_configuration(b)
    assert gc(a).rows == []
    assert len(labels(b)) == len(list(walk(b)))
    path.unlink()
    (b.settings.run_dir / "store").rename("elsewhere")  # b is no run any more
    assert removed(gc(a)) == ["world"]


def test_all_runs_below_a_directory_are_examined():
    a, b, c = (fabricate(name, "rounds=0") for name in "abc")
    for name in "abc":
        fabricate(name, "rounds=0", "dpo.beta=0.3", "sft.epochs=9")
    for report in (a, b):
        leave_configuration(report)
    found = gc(runs=Path("runs"))
    assert len(found.rows) == 2 * len({"sft", "evaluate-policy", "evaluate", "report"})
    assert {Path(row.directory).parts[1] for row in found.rows} == {"a", "b"}
    assert all(row.removed for row in found.rows)
    assert any("runs/c has no config.yaml" in line for line in found.left)
    assert len(labels(a)) == len(labels(b)) == len(labels(c))


def test_a_run_that_was_moved_is_examined_where_it_is():
    report = fabricate("a", "rounds=0")
    fabricate("a", "rounds=0", "sft.epochs=9")
    leave_configuration(report)
    Path("runs").rename("archive")
    found = gc(runs=Path("archive"))
    assert removed(found) == ["evaluate", "evaluate-policy", "report", "sft"]
    assert {Path(row.directory).parts[0] for row in found.rows} == {"archive"}


@pytest.mark.parametrize("text", ["rounds: many", "name: other", "["])
def test_a_configuration_that_cannot_be_resolved_prevents_removal(text):
    base = fabricate("a", "rounds=0")
    fabricate("a", "rounds=0", "sft.epochs=9")
    path = leave_configuration(base)
    if text == "name: other":
        values = {**yaml.safe_load(path.read_text()), "name": "other"}
        text = yaml.safe_dump(values)
    path.write_text(text)
    assert len(gc(base, removing=False).rows) == 4
    with pytest.raises(InputError, match=r"what runs/a names is unknown: .*; nothing was removed"):
        gc(base)
    assert len(gc(base, removing=False).rows) == 4


def test_missing_data_prevents_removal(tmp_path):
    base = fabricate("a", "rounds=0")
    fabricate("a", "rounds=0", "sft.epochs=9")
    path = leave_configuration(base)
    values = yaml.safe_load(path.read_text())
    values["data"] = {**values["data"], "closed_world": None, "root": str(tmp_path / "gone")}
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(InputError, match="gone"):
        gc(base)


def steep(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.cli", "gc", *arguments],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"},
        check=False,
        timeout=300,
    )
    assert "Traceback" not in done.stdout + done.stderr
    return done


def test_the_command_lists_and_removes_with_sizes():
    fabricate("a", "rounds=0")
    other = fabricate("a", "rounds=0", "sft.epochs=9")
    cache = Path("runs/cache/content.sqlite")
    cache.parent.mkdir()
    cache.write_bytes(b"0" * 3000)
    options = ("--set", "name=a", "--set", "rounds=0")
    listed = steep(*options)
    assert listed.returncode == 0
    assert "setting sft.epochs: 9.0 -> " in listed.stdout
    assert "cache runs/cache/content.sqlite: 3.0 kB, used by all runs and kept" in listed.stdout
    assert "4 directories, " in listed.stdout
    assert "nothing can be removed from runs/a/store: " in listed.stdout  # written just now
    rows = json.loads(steep(*options, "--recent", "0", "--remove", "--json").stdout)
    assert sorted(rows[0]) == [
        *("age_seconds", "bytes", "directory", "reason", "removed", "stage"),
    ]
    assert [row["removed"] for row in rows] == [True] * 4
    assert str(other.store.directory(other.key)) in [row["directory"] for row in rows]
    assert not other.store.directory(other.key).exists()
    assert "every output is named by a configuration\n" in steep(*options).stdout
    assert cache.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--runs", "nowhere"), "nowhere: no such directory"),
        (("--config", "gone.yaml", "--remove"), "gone.yaml: no such configuration file"),
        (("--recent", "-1"), "Invalid value for '--recent'"),
    ],
)
def test_what_cannot_be_examined_is_refused(arguments, message):
    done = steep(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
