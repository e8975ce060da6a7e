"""Make ``data/demo``, the run that ships with steep, from a finished run of the variant ``demo``.

    make run VARIANT=demo && rm -r data/demo
    .venv/bin/python -m benchmarks.demonstration runs/demo data/demo

Input: a run. Output: its settings, its report, and the outputs that the browser and `pipeline.api`
read, without models, indexes, and samples without rewards.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.commands import launch
from pipeline.core.errors import InputError
from pipeline.engine.store import newest_outputs
from pipeline.look.report.finished_run import find_run
from pipeline.training.export.directory import new_directory

STAGES = ("corpus", "graph", "questions-sampling", "questions-test", "score", "pair",
          "evaluate-policy", "evaluate")  # fmt: skip
FILES = ("config.yaml", "report.html", "report.json", "metrics.json")
LARGEST = 3_000_000  # bytes


def main(
    run: Annotated[Path, typer.Argument(help="directory of the finished run")],
    target: Annotated[Path, typer.Argument(help="new directory")],
) -> None:
    """Copy what the demonstration shows of a run.

    Raises InputError for a run that is not there, has no report or is too large, and for a target
    that exists.
    """
    run = find_run(str(run))
    if lacking := [name for name in FILES if not (run / name).is_file()]:
        raise InputError.at(run, f"has no {', '.join(lacking)}; finish the run")
    with new_directory(target) as output:
        for directory in newest_outputs(run / "store").values():
            stage = directory.parent.name
            if stage in STAGES:
                shutil.copytree(directory, output / "store" / stage / directory.name)
        for name in FILES:
            shutil.copy(run / name, output)
        files = [path for path in output.rglob("*") if path.is_file()]
        if (size := sum(path.stat().st_size for path in files)) > LARGEST:
            raise InputError.at(run, f"gives {size:,} bytes; expected at most {LARGEST:,}")


if __name__ == "__main__":
    launch(main)
