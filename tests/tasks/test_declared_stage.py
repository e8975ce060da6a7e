"""A stage is declared in one place: everything else follows from `pipeline.engine.stage.STAGES`.

`tests/test_additions.py` adds one and runs it.
"""

from __future__ import annotations

import ast
import sys
from typing import Any

import pytest

from pipeline.engine.stage import STAGES, LightTask, StageTask
from tests.tasks.counting_tasks import ROOT


@pytest.mark.parametrize("missing", ["help", "reads", "opens", "work"])
def test_a_declaration_without_a_part_is_refused_with_the_part(missing: str) -> None:
    parts: dict[str, Any] = {
        "stage": "partial", "help": "nothing", "reads": ("seed",),
        "opens": LightTask.opens, "work": LightTask.work,
    }  # fmt: skip
    del parts[missing]
    with pytest.raises(TypeError, match=f"^Partial declares no {missing}; add"):
        type(StageTask)("Partial", (StageTask,), parts)
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
            text = path.read_text(encoding="utf-8")
            quoted = ".stage" in text or sum(f'"{name}"' in text for name in names) > 2
            if str(path) in declaring or not quoted:
                continue
            if any(names_stages(node, names) for node in ast.walk(ast.parse(text))):
                found.add(path.relative_to(ROOT).as_posix())
    assert found == set()
