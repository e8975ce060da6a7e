"""A stage is declared in one place: everything else follows from `pipeline.engine.stage.STAGES`.

`tests/test_additions.py` adds one and runs it.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

from pipeline.engine.stage import STAGES, LightTask, StageTask


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
