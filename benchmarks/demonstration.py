"""Make ``data/demo``, the run that ships with steep, from a finished run of the variant ``demo``.

    make run VARIANT=demo && .venv/bin/python -m benchmarks.demonstration runs/demo data/demo

Input: a run. Output: its settings, its report, and the outputs that the browser and `pipeline.api`
read, without models, indexes, and samples without rewards.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from pipeline.core.errors import InputError
from pipeline.engine.store import newest_outputs

STAGES = ("corpus", "graph", "questions-sampling", "questions-test", "score", "pair",
          "evaluate-policy", "evaluate")  # fmt: skip
FILES = ("config.yaml", "report.html", "report.json")
LARGEST = 3_000_000  # bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    copy(arguments.run, arguments.target)


def copy(run: Path, target: Path) -> None:
    """Write ``target`` anew. Raises InputError for a run that is too large."""
    shutil.rmtree(target, ignore_errors=True)
    for directory in newest_outputs(run / "store").values():
        stage = directory.parent.name
        if stage in STAGES:
            shutil.copytree(directory, target / "store" / stage / directory.name)
    for name in FILES:
        shutil.copy(run / name, target)
    files = [path for path in target.rglob("*") if path.is_file()]
    if (size := sum(path.stat().st_size for path in files)) > LARGEST:
        raise InputError.at(target, f"has {size:,} bytes; expected at most {LARGEST:,}")


if __name__ == "__main__":
    main()
