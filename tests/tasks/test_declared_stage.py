"""A stage is declared in one place: everything else follows from `pipeline.engine.stage.STAGES`."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import ConfigError
from pipeline.core.gpus import nominal_gpu
from pipeline.engine.check.collect import check_tasks
from pipeline.engine.check.machine import Machine
from pipeline.engine.needs import needs
from pipeline.engine.opened import Needs
from pipeline.engine.plan.plan import make_plan
from pipeline.engine.plan.sizes import Sizes
from pipeline.engine.run import run
from pipeline.engine.stage import STAGES, LightTask, StageTask
from pipeline.engine.status import status
from tasks import task_for
from tests.tasks.counting_tasks import ROOT

SIZES = Sizes(dict.fromkeys(("sft", "sampling", "validation", "test"), 10.0), chunks=100.0)


@pytest.fixture
def declared() -> Iterator[None]:
    """Declare the stage ``doubles`` for the time of a test."""
    sys.modules.pop("tests.tasks.doubling_stage", None)
    importlib.import_module("tests.tasks.doubling_stage")
    yield
    STAGES.pop("doubles", None)


def doubles(workspace: Path, *overrides: str) -> StageTask:
    runs = (f"runs_dir={workspace / 'runs'}", "shards=1", "engine.kind=transformers")
    return task_for("doubles", str(ROOT / "configs/embedded.yaml"), (*runs, *overrides))


@pytest.mark.usefixtures("declared")
def test_a_declared_stage_is_planned_and_leased(workspace: Path) -> None:
    divided = doubles(workspace, "engine.kind=vllm", "engine.tensor_parallel_size=2")
    assert needs(divided) == Needs(2, 2, "engine.tensor_parallel_size")
    assert needs(doubles(workspace)) == Needs(1, 1, "engine.kind")
    (stage,) = make_plan([divided], SIZES, [nominal_gpu(80)] * 2).stages
    assert (stage.stage, stage.gpus, stage.work.seconds) == ("doubles", 2, 3600.0)
    assert stage.work.disk == 1e6


@pytest.mark.usefixtures("declared")
def test_a_declared_stage_is_checked_by_what_it_opens_and_by_itself(workspace: Path) -> None:
    refused = doubles(workspace, "name=odd", "model.base=nobody/absent")
    faults = check_tasks([refused], Machine(())).faults
    assert "name is odd; choose another" in faults
    assert any(fault.startswith("model.base: nobody/absent is not in") for fault in faults)
    assert check_tasks([doubles(workspace)], Machine(())).faults == ()


@pytest.mark.usefixtures("declared")
def test_a_declared_stage_is_run_shown_and_removed(workspace: Path) -> None:
    states = {row.label: row.state for row in status(doubles(workspace))}
    assert states == {"first": "missing", "doubles": "missing"}
    assert (run(doubles(workspace)) / "doubled.txt").read_text() == "10"
    rows = {row.label: row for row in status(doubles(workspace))}
    assert (rows["doubles"].state, rows["doubles"].counts) == ("done", {"numbers": 1})
    del STAGES["doubles"]
    with pytest.raises(ConfigError, match="no stage 'doubles'"):
        doubles(workspace)


def test_a_declaration_without_a_part_is_refused_with_the_part() -> None:
    parts: dict[str, Any] = {
        "stage": "partial", "help": "nothing", "reads": ("seed",),
        "opens": LightTask.opens, "work": LightTask.work,
    }  # fmt: skip
    for missing in ("help", "reads", "opens", "work"):
        rest = {name: value for name, value in parts.items() if name != missing}
        with pytest.raises(TypeError, match=f"^Partial declares no {missing}; add"):
            type(StageTask)("Partial", (StageTask,), rest)
    assert "partial" not in STAGES


def test_the_file_of_every_stage_has_the_function_that_runs_it() -> None:
    """A part without a function of its own falls back to ``run``, so ``run`` must be there."""
    kinds = [kind for kind in STAGES.values() if kind.__module__.startswith("tasks.")]
    without = [k.stage for k in kinds if not hasattr(sys.modules[k.__module__], "run")]
    assert without == []


def names_stages(node: ast.AST, names: frozenset[str]) -> bool:
    """Whether a collection has the names of three stages, or ``.stage`` is compared with a string."""
    if isinstance(node, ast.Compare):
        sides = (node.left, *node.comparators)
        texts = any(
            isinstance(side, ast.Constant) and isinstance(side.value, str) for side in sides
        )
        return texts and any(isinstance(s, ast.Attribute) and s.attr == "stage" for s in sides)
    items: list[Any] = getattr(node, "elts", [])
    if isinstance(node, ast.Dict):
        items = [*node.keys, *node.values]
    found = {item.value for item in items if isinstance(item, ast.Constant)}
    return len(found & names) > 2


def test_no_other_module_lists_stages() -> None:
    """The modules that declare stages name their own."""
    kinds = [kind for kind in STAGES.values() if kind.__module__.startswith("tasks.")]
    declaring = {str(sys.modules[kind.__module__].__file__) for kind in kinds}
    names = frozenset(kind.stage for kind in kinds)
    assert len(names) > 30
    found = set()
    for folder in ("tasks", "pipeline"):
        for path in (ROOT / folder).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            if str(path) not in declaring and any(names_stages(n, names) for n in ast.walk(tree)):
                found.add(path.relative_to(ROOT).as_posix())
    assert found == set()
