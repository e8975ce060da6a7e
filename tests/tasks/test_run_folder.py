"""The folder of a run: what another program left there is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config import load
from pipeline.core.errors import StoreError
from pipeline.engine.run import write_resolved


@pytest.mark.parametrize("name", ["config.yaml", "metrics.json", "report.json", "report.html"])
def test_a_folder_with_files_of_something_else_is_no_run(tmp_path: Path, name: str) -> None:
    settings = load("embedded", [f"runs_dir={tmp_path}", "name=mine"])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / name).write_text("precious: 1\n")
    with pytest.raises(StoreError, match=f"{name} is no file of a run"):
        write_resolved(settings)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == [name]
    assert (tmp_path / "mine" / name).read_text() == "precious: 1\n"


def test_the_configuration_of_an_earlier_run_is_replaced(tmp_path: Path) -> None:
    named = [f"runs_dir={tmp_path}", "name=mine"]
    path = write_resolved(load("embedded", named))
    (tmp_path / "mine" / "metrics.json").write_text("[]")  # which the run has written since
    write_resolved(load("embedded", [*named, "seed=8"]))
    assert "\nseed: 8\n" in path.read_text()
