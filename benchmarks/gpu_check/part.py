"""The process of one part of the GPU check.

``python -m benchmarks.gpu_check.part NAME DEVICE SHAPES WORKSPACE OUTPUT`` writes
``{"state": "done" | "failed", "reason": …, "figures": […]}`` to OUTPUT. Figures that were measured
before a failure are kept.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.catalogue import PARTS
from benchmarks.gpu_check.figures import Figures, Place


def main(name: str, device: Any, shapes: Any, workspace: str, output: str) -> int:
    """Run a part; returns the exit status."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    tempfile.tempdir = workspace  # files that parts leave behind are removed with the workspace
    (part,) = (part for part in PARTS if part.name == name)
    module, _, function = part.function.partition(".")
    figures = Figures()
    state, reason = "done", ""
    try:
        run = getattr(import_module(f"benchmarks.gpu_check.{module}"), function)
        dtype: Any = "bfloat16" if device == "cuda" else "float32"
        run(Place(device, shapes, workspace, part.model, dtype), figures)
    except Exception as error:  # noqa: BLE001 - any exception of a library ends this part alone
        traceback.print_exc()
        state, reason = "failed", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    result = {"state": state, "reason": reason, "figures": figures.as_json()}
    Path(output).write_text(json.dumps(result), encoding="utf-8")
    return 0 if state == "done" else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
