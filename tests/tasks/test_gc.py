"""``steep gc``: which outputs no configuration names, and that nothing else is ever removed."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pipeline.core.atomic import write_text
from pipeline.core.errors import InputError
from pipeline.engine.gc import collect
from pipeline.engine.removal import clean
from pipeline.engine.run import run, walk
from pipeline.engine.stage import STAGES, left_by
from pipeline.engine.status import status
from tasks import task_for
from tests.cli.malformed_inputs import accepted, refused
from tests.tasks.counting_tasks import FollowsTens, Second, Waits, background, executions, task
from tests.tasks.small_run import commit_text, leave_configuration
from tests.waiting import exit_status, wait_until


@pytest.fixture(autouse=True)
def _in_workspace(workspace, monkeypatch):
    monkeypatch.chdir(workspace)  # the shared store data/closed_world is below it


def gc(*tasks, runs=None, removing=True):
    return collect(tasks, runs, removing=removing)


def removed(found) -> list[str]:
    return [row.stage for row in found.rows if row.removed]


def contents(folder) -> set[str]:
    paths = (path for path in folder.rglob("*") if path.parent.name != "store")
    return {str(path) for path in paths if path.suffix != ".lock"}


def completed(last):
    """The task, after all stages that its run lacked were completed without running them."""
    for needed in walk(last):
        if not needed.complete():
            commit_text(needed, f"{needed.label} of {last.overrides}")
    return last


def fabricate(name, *overrides):
    """The last task of a complete undivided run of the embedded configuration."""
    return completed(task_for("report", "embedded", (f"name={name}", "shards=1", *overrides)))


def second(*overrides):
    """The output of the stage `Second`, which exists."""
    return completed(task(Second, Path.cwd(), *overrides)).directory


def test_only_the_output_of_other_settings_is_listed_with_size_age_and_reason(workspace):
    second()
    other = second("retrieval.tau=0.3")
    before = contents(workspace / "runs")
    found = gc(task(Second, workspace), removing=False)
    (row,) = found.rows
    assert (row.stage, row.directory, row.removed) == ("second", str(other), False)
    assert row.reason == "setting retrieval.tau: 0.3 -> 0.2"
    assert row.bytes == sum(path.stat().st_size for path in other.iterdir())
    assert 0 <= row.age_seconds < 600
    assert (found.left, contents(workspace / "runs")) == ([], before)
    second("retrieval.top_k=6")
    reasons = {row.stage: row.reason for row in gc(task(Second, workspace), removing=False).rows}
    assert reasons["first"] == "setting retrieval.top_k: 6 -> 5"
    both = task(Second, workspace), task(Second, workspace, "retrieval.tau=0.3")
    assert removed(gc(*both)) == ["first", "second"]
    assert all(stage.complete() for stage in both)


def test_reused_outputs_and_checkpoints_of_the_configuration_are_kept(workspace):
    made = run(task(FollowsTens, workspace, "name=tens.txt", "retrieval.top_k=31"))
    reusing = task(FollowsTens, workspace, "name=tens.txt", "retrieval.top_k=32")
    assert run(reusing) == made
    folders = [
        stage.store.checkpoint_dir(stage.key)
        for stage in (reusing, reusing.clone(overrides=(*reusing.overrides, "retrieval.tau=0.3")))
    ]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "1.txt").write_text("batch")
    found = gc(reusing)
    assert removed(found) == ["follows-tens", "rounded"]
    assert "checkpoints" in found.rows[0].reason
    assert [folder.exists() for folder in folders] == [True, False]
    assert [row.state for row in status(reusing)] == ["done", "reused"]


def test_nothing_is_removed_while_a_run_uses_the_store(workspace):
    """Whatever its settings: it may read the outputs of stages that have ended."""
    second()
    second("retrieval.tau=0.3")
    with background(Waits, workspace, "seed=1") as process:
        wait_until(lambda: "waits" in executions(workspace))
        found = gc(task(Second, workspace))
        assert (removed(found), len(found.rows)) == ([], 1)
        assert found.left[0].endswith("/store: a run uses it")
        (workspace / "release").touch()
        assert exit_status(process) == 0
    assert removed(gc(task(Second, workspace))) == ["second"]


def test_what_steep_did_not_make_and_links_are_left(workspace):
    made = second()
    outside = workspace / "outside"
    outside.mkdir()
    (outside / "manifest.json").write_bytes((made / "manifest.json").read_bytes())
    folder = made.parent
    (folder / "0123456789abcdef").symlink_to(outside)
    (folder / "fedcba9876543210.partial").symlink_to(outside)
    (folder / "thesis").mkdir()
    (folder.parent / "notes" / ("0" * 16)).mkdir(parents=True)
    (folder / ("1" * 16)).mkdir()
    (folder / ("1" * 16) / "manifest.json").write_bytes((made / "manifest.json").read_bytes())
    other = second("retrieval.tau=0.3")
    (other / "link").symlink_to(outside)
    before = contents(workspace)
    found = gc(task(Second, workspace))
    assert [row.directory for row in found.rows] == [str(other)]
    assert found.left == [f"{folder / ('1' * 16)} holds the manifest of another output"]
    gone = {
        str(other),
        *(str(other / name) for name in ("README.md", "manifest.json", "text.txt", "link")),
    }
    assert before - contents(workspace) == gone


@pytest.mark.slow
def test_a_kill_midway_leaves_litter_that_is_removed_later(workspace):
    second()
    other = second("retrieval.tau=0.3")
    code = (
        "import os, sys; from pathlib import Path; from pipeline.engine.gc import collect; "
        "from tests.tasks.counting_tasks import Second, task; root = task(Second, Path.cwd()); "
        "sys.addaudithook(lambda event, _: event == 'os.remove' and os.kill(os.getpid(), 9)); "
        "collect([root], removing=True)"
    )
    killed = subprocess.run([sys.executable, "-c", code], cwd=workspace, check=False)
    assert killed.returncode == -signal.SIGKILL
    rest = [path for path in other.parent.iterdir() if "discarded" in path.name]
    assert (len(rest), other.exists()) == (1, False)
    assert clean(task(Second, workspace)).removed == rest
    assert [row.state for row in status(task(Second, workspace))] == ["done", "done"]


def test_the_configuration_that_a_run_left_names_its_outputs():
    base = fabricate("a")
    leave_configuration(fabricate("a", "dpo.beta=0.3", "rounds=1"))
    assert gc(base).rows == []
    leave_configuration(base)
    assert removed(gc(base)) == ["evaluate", "evaluate-policy", "report", "train"]
    assert all(stage.complete() for stage in walk(base))
    fewer = fabricate("a", "rounds=2")
    reasons = {row.stage: row.reason for row in gc(fewer, removing=False).rows}
    assert "train" not in reasons  # the configuration in the directory has three rounds


def test_shards_are_named_until_their_stage_is_complete():
    divided = ("a", "rounds=1", "sampling.shards=2")
    report = fabricate(*divided)
    sample = next(stage for stage in walk(report) if stage.stage == "sample")
    shutil.rmtree(sample.directory)
    rows = gc(report, removing=False).rows
    assert {(row.stage, row.reason) for row in rows} == {
        ("score-shard", "the complete stage holds what this shard wrote")
    }
    fabricate(*divided)
    assert removed(gc(report)) == ["sample-shard"] * 2 + ["score-shard"] * 2


def test_shards_of_an_evaluation_beside_the_run_are_kept():
    report = completed(task_for("report", "embedded", ("name=a", "rounds=0", "sampling.shards=1")))
    Path("questions").mkdir()
    write_text(Path("questions/questions.parquet"), "")
    beside = {
        "questions": "questions",
        "title": "base",
        "overrides": (*report.overrides, "shards=2"),
    }
    commit_text(report.clone(STAGES["evaluate-any"], **beside).shard(0), "the first of two")
    assert "evaluate-any-shard" not in [row.stage for row in gc(report, removing=False).rows]


def test_a_world_is_kept_while_another_run_may_use_it():
    a, b = fabricate("a", "rounds=0"), fabricate("b", "rounds=0", "data.closed_world.seed=7")
    found = gc(a)
    assert [(row.stage, row.removed) for row in found.rows] == [("world", False)]
    assert "runs/b has no config.yaml" in found.left[0]
    path = leave_configuration(b)
    assert gc(a).rows == []
    path.unlink()
    (b.settings.run_dir / "store").rename("elsewhere")  # b is no run any more
    assert removed(gc(a)) == ["world"]


def test_all_runs_below_a_directory_are_examined_where_they_are():
    reports = [fabricate(name, "rounds=0") for name in "abc"]
    for name in "abc":
        fabricate(name, "rounds=0", "sft.epochs=9")
    for report in reports[:2]:
        leave_configuration(report)
    Path("runs").rename("archive")
    found = gc(runs=Path("archive"))
    assert removed(found) == ["evaluate", "evaluate-policy", "report", "sft"] * 2
    assert {Path(row.directory).parts[:2] for row in found.rows} == {("archive", n) for n in "ab"}
    assert any("archive/c has no config.yaml" in line for line in found.left)


@pytest.mark.parametrize(("name", "moved"), [("latest", False), ("latest", True), ("a", True)])
def test_a_link_to_a_run_is_that_run(name, moved):
    """Beside the run, or to another disk, whose name takes two escapes in JSON."""
    report = fabricate("a", "rounds=0")
    fabricate("a", "rounds=0", "sft.epochs=9")
    leave_configuration(report)
    run_dir = Path("runs/a").absolute()
    if moved:
        disk = Path("\N{GRINNING FACE} \u2028").absolute()
        disk.mkdir()
        run_dir = run_dir.rename(disk / "a")
    Path("runs", name).symlink_to(run_dir)
    link = left_by(Path("runs", name)).clone(STAGES["report"])
    assert (gc(runs=Path("runs"), removing=False).left, gc(link, removing=False).left) == ([], [])
    assert removed(gc(link)) == ["evaluate", "evaluate-policy", "report", "sft"]


@pytest.mark.parametrize("text", ["rounds: many", "name: other", "["])
def test_a_configuration_that_cannot_be_resolved_prevents_removal(text):
    base = fabricate("a", "rounds=0")
    fabricate("a", "rounds=0", "sft.epochs=9")
    path = leave_configuration(base)
    if text == "name: other":
        text = yaml.safe_dump({**yaml.safe_load(path.read_text()), "name": "other"})
    path.write_text(text)
    with pytest.raises(InputError, match=r"the outputs of runs/a are unknown: .*; nothing was rem"):
        gc(base)
    assert len(gc(base, removing=False).rows) == 4


def test_the_command_lists_and_removes():
    fabricate("a", "rounds=0")
    other = fabricate("a", "rounds=0", "sft.epochs=9")
    options = ["gc", "--set", "name=a", "--set", "rounds=0"]
    listed = accepted(*options)
    assert "setting sft.epochs: 9.0 -> " in listed
    assert "4 directories, " in listed
    rows = json.loads(accepted(*options, "--remove", "--json"))
    assert sorted(rows[0]) == [
        *("age_seconds", "bytes", "directory", "reason", "removed", "stage"),
    ]
    assert [row["removed"] for row in rows] == [True] * 4
    assert not other.store.directory(other.key).exists()
    assert "every output is named by a configuration\n" in accepted(*options)
    assert "nowhere: no such directory" in refused("gc", "--runs", "nowhere")
