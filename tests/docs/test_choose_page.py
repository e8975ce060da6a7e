"""The table of *Choose a configuration* has the figures that ``steep plan`` gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.config.variants import variants
from pipeline.core.shipped import CONFIGURATIONS
from tests.cli.malformed_inputs import accepted

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "choose.md"
GIB = 2**30


def rows(page: Path = PAGE) -> dict[str, list[str]]:
    """The cells of each row of a page's table, by its name in the first column."""
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if line[:3] == "| `"]
    cells = [[cell.strip("` ") for cell in line.strip("|").split("|")] for line in lines]
    return {name: rest for name, *rest in cells}


def test_every_shipped_configuration_for_gpus_has_a_row() -> None:
    shipped = {
        file.stem
        for file in CONFIGURATIONS.glob("*.yaml")
        if not file.stem.startswith(
            ("embedded", "real-passages", "musique-sample", "smollm2", "variants")
        )
    }
    assert shipped == set(rows()) - set(variants())


@pytest.mark.parametrize("name", rows())
def test_a_row_has_the_figures_of_the_plan(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    machine, _, _, memory, hours, disk, money = rows()[name]
    option = "--variant" if name in variants() else "--config"
    printed = accepted("plan", option, name, "--machine", machine, "--json")
    plan = json.loads(printed)["plan"]
    assert float(memory) == pytest.approx(
        max(stage["device_bytes"] for stage in plan["stages"]) / GIB, rel=0.02
    )
    assert float(hours) == pytest.approx(plan["gpu_hours"], rel=0.02)
    assert float(disk.replace(",", "")) == pytest.approx(plan["disk_bytes"] / GIB, rel=0.03)
    costs = [one["cost"] for stage in plan["stages"] for one in stage["endpoints"]]
    assert float(money or 0) == pytest.approx(sum(costs), rel=0.02)
