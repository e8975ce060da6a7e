"""``steep fork`` on a run with fabricated outputs."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.engine.run import walk
from tasks import task_for
from tests.cli.malformed_inputs import accepted, refused
from tests.tasks.small_run import commit_text


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of runs, with a finished one."""
    folder = tmp_path_factory.mktemp("finished")
    with contextlib.chdir(folder):
        for task in walk(task_for("report", "embedded")):
            commit_text(task, task.label)
    return folder / "runs"


@pytest.fixture
def finished(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[Path, bytes]]:
    """The files of the finished run with their content; a fork of it is removed after the test."""
    monkeypatch.chdir(runs.parent)
    yield {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}
    shutil.rmtree(runs / "other", ignore_errors=True)


def not_done(*settings: str) -> set[str]:
    options = [word for setting in ("name=other", *settings) for word in ("--set", setting)]
    rows = json.loads(accepted("status", "--json", *options))
    return {row["label"] for row in rows if row["state"] != "done"}


def test_a_fork_has_the_finished_stages_and_no_results(finished: dict[Path, bytes]) -> None:
    assert accepted("fork", "embedded", "other").startswith("runs/other has ")
    assert not_done() == {"evaluate", "report"}
    assert not_done("per_round.3.pairs.easy_outcome=0.4") == {
        "pair-3", "train-3", "evaluate-policy-3", "evaluate", "report",
    }  # fmt: skip
    assert "runs/other has no complete evaluation" in refused("compare", "other", "embedded")
    assert {path: path.read_bytes() for path in finished} == finished
    linked = [path for path in finished if path.stat().st_nlink > 1]
    assert linked
    assert not [path for path in linked if path.parts[3] in ("evaluate", "report")]


@pytest.mark.parametrize(
    ("folder", "run", "shown"),
    [
        ("runs/embedded", ".", "../other"),
        ("runs/embedded/store", "..", "../../other"),
        (".", "runs/embedded/../embedded", "runs/other"),
    ],
)
def test_a_fork_is_beside_its_run_however_that_is_named(
    finished: dict[Path, bytes], folder: str, run: str, shown: str
) -> None:
    with contextlib.chdir(folder):
        assert accepted("fork", run, "other").startswith(f"{shown} has ")
    assert not_done() == {"evaluate", "report"}


def test_a_fork_on_another_file_system_is_refused_in_one_sentence(
    finished: dict[Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source, None, target)

    monkeypatch.setattr(os, "link", refuse)
    complaint = refused("fork", "embedded", "other")
    assert "cannot be linked: [Errno 18] Invalid cross-device link: " in complaint
    assert complaint.count("Errno") == 1
    assert sorted(path.name for path in Path("runs").iterdir()) == ["embedded"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("embedded", "embedded"), "runs/embedded exists"),
        (("embedded", "a/b"), "NAME: expected at most 100 letters"),
        (("embedded", ".."), "NAME: expected at most 100 letters"),
        (("none", "new"), "there is no run 'none'"),
    ],
)
def test_a_fork_that_cannot_be_is_refused(
    finished: dict[Path, bytes], words: tuple[str, str], complaint: str
) -> None:
    assert complaint in refused("fork", *words)
    assert sorted(path.name for path in Path("runs").iterdir()) == ["embedded"]
