"""The map of the papers' tables: complete, true to the configurations, and every command can be run."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path

import pytest

from pipeline.config import Config, load
from pipeline.core.yaml_files import read_yaml
from tasks.paper_tables import SOURCE, Row, page, rows
from tasks.run import PER_POLICY, PER_SPLIT, STAGES, task_for, walk

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "configs"
ROWS = rows()
RUNS = sorted({run for row in ROWS for run in (row.embedded, row.published) if run is not None})
KEYS = {
    "row", "file", "settings", "published", "embedded", "command", "read", "note", "missing",
}  # fmt: skip
FLOATING = {"name"}


def loaded(name: str, settings: tuple[str, ...] = ()) -> Config:
    return load(CONFIGS / f"{name}.yaml", (*settings, "data.root=/data"))


def test_the_page_is_that_of_the_list() -> None:
    assert (ROOT / "docs/tables.md").read_text(encoding="utf-8") == page() + "\n"
    assert "tables.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def test_the_list_has_only_keys_that_the_page_reads() -> None:
    for paper in read_yaml(SOURCE):
        for table in paper["tables"]:
            for row in table["rows"]:
                assert row.keys() <= KEYS, row
                assert len({"missing", "command", "file"} & row.keys()) <= 1, row


def numbers(paper: str, kind: str) -> set[int]:
    """The numbers of all tables, or all figures, of a paper on the page."""
    found: set[int] = set()
    for table in {row.table for row in ROWS if row.paper.startswith(paper)}:
        listed = re.match(rf"{kind}s? ([\d, a-z]+):", table)
        for part in re.split(r", | and ", listed[1]) if listed else ():
            first, _, last = part.partition(" to ")
            found |= set(range(int(first), int(last or first) + 1))
    return found


@pytest.mark.parametrize(
    ("paper", "tables", "figures"), [("TeaRAG", 11, 13), ("HiPRAG", 6, 8), ("ProGraph-R1", 6, 1)]
)
def test_every_table_and_figure_of_a_paper_is_listed(paper: str, tables: int, figures: int) -> None:
    assert numbers(paper, "table") == set(range(1, tables + 1))
    assert numbers(paper, "figure") == set(range(1, figures + 1))


def test_every_file_of_an_ablation_or_a_baseline_has_a_row() -> None:
    files = {
        f"{folder}/{path.stem}"
        for folder in ("ablations", "baselines")
        for path in (CONFIGS / folder).glob("*.yaml")
    }
    assert files <= {name for name, _ in RUNS}


@pytest.mark.parametrize("run", RUNS, ids=lambda run: " ".join((run[0], *run[1])))
def test_every_configuration_of_a_row_is_valid(run: tuple[str, tuple[str, ...]]) -> None:
    name, settings = run
    assert not any(" " in setting for setting in settings)  # make splits SET at spaces
    config = loaded(name, settings)
    if not settings and name.startswith("ablations/"):
        assert config.name == name.removeprefix("ablations/")


@pytest.mark.parametrize("row", [row for row in ROWS if row.settings], ids=lambda row: row.row)
def test_the_file_of_a_row_changes_what_the_row_says(row: Row) -> None:
    if row.embedded is None:
        assert row.published is not None
        return
    changed, original = loaded(*row.embedded), loaded(row.base)
    expected = loaded(row.base, row.settings)
    assert changed.model_dump(exclude=FLOATING) == expected.model_dump(exclude=FLOATING)
    assert changed.model_dump(exclude=FLOATING) != original.model_dump(exclude=FLOATING) or (
        row.row.endswith("(λ_p = 0.4)")  # the value of the paper
    )


def test_a_file_of_the_closed_world_changes_only_stages_that_follow(tmp_path: Path) -> None:
    """Every ablation of TeaRAG resolves to stages, and shares the graph with the run of the paper."""
    overrides = (f"runs_dir={tmp_path}", "rounds=1")
    whole = {task.label: task.key for task in walk(task_for("report", "embedded", overrides))}
    for name in ("tearag-outcome", "tearag-graph", "tearag-top-k-1", "tearag-eta-0"):
        report = task_for("report", str(CONFIGS / f"ablations/{name}.yaml"), overrides)
        keys = {task.label: task.key for task in walk(report)}
        assert keys["graph"] == whole["graph"]
        assert keys["train-1"] != whole["train-1"]


@pytest.mark.parametrize(
    "command", sorted({row.command for row in ROWS if row.command}), ids=lambda text: text
)
def test_every_command_of_a_row_exists(command: str) -> None:
    from typer.main import get_command

    from pipeline.cli.app import app

    program, verb, *rest = shlex.split(command)
    assert program == "steep"
    assert verb in get_command(app).commands  # type: ignore[attr-defined]
    overrides = tuple(value for flag, value in itertools.pairwise(rest) if flag == "--set")
    loaded("embedded", overrides)
    if verb == "run":
        assert rest[0] in {*STAGES, *PER_POLICY, *PER_SPLIT}
