"""The run that comes with steep: its pages can be read by the code of today, and it is what the variant makes."""

from __future__ import annotations

import ast
import filecmp
import re
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.demonstration import main as copy
from pipeline import Run
from pipeline.config import load
from pipeline.core.errors import InputError
from pipeline.core.input_files import leaves
from pipeline.core.shipped import DEMONSTRATION
from tests.browse.linked_pages import linked_pages
from tests.browse.test_command import ROOT, started
from tests.cli.malformed_inputs import steep
from tests.waiting import LIMIT

# `dtype: auto` is a number format of the machine that made the run.
OF_THE_MACHINE = {"index.embedder.dtype", "engine.dtype", "sft.dtype", "dpo.dtype"}


def files() -> dict[Path, int]:
    """The files of the demonstration run, with the time of the last change of each."""
    return {path: path.stat().st_mtime_ns for path in DEMONSTRATION.rglob("*") if path.is_file()}


def test_the_demonstration_run_is_shown_in_a_folder_without_a_configuration(tmp_path: Path) -> None:
    before = files()
    with (
        started("--demo", folder=tmp_path) as lines,
        httpx.Client(base_url=lines[-1].split()[0], follow_redirects=True, timeout=LIMIT) as client,
    ):
        assert "made by steep run --variant demo" in lines[0]
        kinds = linked_pages(client, most=2)
        assert kinds.keys() >= {
            "/pairs", "/pair/round", "/trajectories", "/trajectory/round", "/trajectory/policy",
            "/chunk", "/compare", "/compare/question", "/ask", "/report.html",
        }  # fmt: skip
        pairs = client.get("/run/demo/pairs").text
        assert len(re.findall(r'href="/run/demo/pair/round-\d/\d+', pairs)) > 20
        assert "Why this pair" in client.get("/run/demo/pair/round-2/0").text
        assert "it cannot be asked; make them with: steep run" in client.get("/run/demo/ask").text
    assert files() == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "option", [("--config", "embedded"), ("--variant", "demo"), ("--set", "seed=1")]
)
def test_it_is_not_opened_with_a_configuration(option: tuple[str, str]) -> None:
    status, _, complaint = steep(["browse", "--demo", *option])
    assert status == 2
    assert complaint == f"error: steep browse: {option[0]} cannot be used with --demo\n"


def test_it_is_small_and_in_the_wheel_and_names_no_directory_of_a_machine() -> None:
    content = {path: path.read_bytes() for path in files()}
    assert sum(map(len, content.values())) <= 3_000_000
    text = b"\n".join(content[path] for path in content if path.suffix != ".parquet")
    assert not re.search(rb"/(work|home|root|tmp|Users)/", text)
    setup = ast.parse((ROOT / "setup.py").read_text())
    patterns = next(
        ast.literal_eval(node.value)
        for node in setup.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SHIPPED"
    )
    assert set(content) <= {path for pattern in patterns for path in ROOT.glob(pattern)}


def test_its_settings_are_those_of_the_variant() -> None:
    def settings(config: str) -> dict[str, Any]:
        return dict(leaves(load(config).model_dump(mode="json")))

    made, today = settings(str(DEMONSTRATION / "config.yaml")), settings("demo")
    differing = {key for key in made.keys() | today.keys() if made.get(key) != today.get(key)}
    assert differing <= OF_THE_MACHINE


def test_its_records_are_read_by_the_python_interface() -> None:
    run = Run.from_directory(DEMONSTRATION)
    for number in (1, 2):
        scored = {one.trajectory_id: one for one in run.trajectories(number, stage="score")}
        pairs = list(run.pairs(number))
        assert pairs
        assert {pair.chosen_id for pair in pairs} <= scored.keys()
        assert all(one.rewards for one in scored.values())
    averages = [row for row in run.metrics() if (row["dataset"], row["split"]) == ("all", "test")]
    assert [row["policy"] for row in averages] == ["sft", "round-1", "round-2"]


def test_it_is_copied_from_a_run_and_never_over_one(tmp_path: Path) -> None:
    run, target = tmp_path / "run", tmp_path / "demo"
    shutil.copytree(DEMONSTRATION, run)
    copy(run, target)
    assert not filecmp.dircmp(run, target).diff_files
    before = sorted(target.rglob("*"))
    with pytest.raises(InputError, match=r"run exists; name a new directory"):
        copy(target, run)
    with pytest.raises(InputError, match=r"there is no run .*nowhere"):
        copy(tmp_path / "nowhere", tmp_path / "other")
    (run / "report.html").unlink()
    with pytest.raises(InputError, match=r"has no report\.html"):
        copy(run, tmp_path / "other")
    assert sorted(target.rglob("*")) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo", "run"]
