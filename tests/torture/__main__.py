"""``python -m tests.torture``: run the fault and fuzz suite, print a table and write JSON.

Exit status 1 when a part found a problem.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from pipeline.core.atomic import write_json
from pipeline.core.errors import InputError, SteepError
from tests.torture import damage, disk, inputs, kills, nodes
from tests.torture.figures import Figures
from tests.torture.runs import EMBEDDED, PROGRAPH, SMALL, RunFolder

PARTS = ("inputs", "kills", "damage", "disk", "ray")


def main(
    parts: Annotated[str, typer.Option(help="comma-separated: " + ", ".join(PARTS))] = ",".join(
        PARTS
    ),
    kill: Annotated[int, typer.Option(min=1, help="kills over all stages")] = 100,
    case: Annotated[int, typer.Option(min=1, help="generated bad inputs")] = 5000,
    damaged: Annotated[int, typer.Option(min=1, help="damaged outputs")] = 100,
    failure: Annotated[int, typer.Option(min=2, help="runs on full and read-only disks")] = 20,
    loss: Annotated[int, typer.Option(min=1, help="lost nodes of a Ray cluster")] = 4,
    embedded: Annotated[
        bool, typer.Option(help="lose nodes of configs/embedded.yaml instead of a small run")
    ] = False,
    prograph: Annotated[
        bool,
        typer.Option(help="kill, damage and fill the disk of a run of ProGraph-R1, not TeaRAG"),
    ] = False,
    seed: Annotated[int, typer.Option(help="seed of all random choices")] = 0,
    folder: Annotated[Path | None, typer.Option(help="working folder; default: temporary")] = None,
    output: Annotated[Path, typer.Option(help="JSON file")] = Path("runs/torture.json"),
) -> None:
    """Run the parts, print one line each and every problem, and write JSON."""
    names = [name.strip() for name in parts.split(",")]
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise InputError(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory() as temporary:
        root = (folder or Path(temporary)).resolve()
        reference = RunFolder(root / "reference", (), PROGRAPH if prograph else SMALL)
        divided = RunFolder(root / "divided", nodes.DIVIDED, EMBEDDED if embedded else SMALL)
        run: dict[str, Callable[[], Figures]] = {
            "inputs": lambda: inputs.run(seed, case),
            "kills": lambda: kills.run(root, reference, seed, kill),
            "damage": lambda: damage.run(reference, seed, damaged),
            "disk": lambda: disk.run(root, reference, seed, failure),
            "ray": lambda: nodes.run(root, divided, seed, loss),
        }
        results = []
        for name in PARTS:
            if name in names:
                started = time.monotonic()
                figures = run[name]()
                figures.facts["seconds"] = round(time.monotonic() - started)
                results.append(figures)
                _show(figures)
    write_json(output, [dataclasses.asdict(figures) for figures in results])
    raise typer.Exit(int(any(figures.problems for figures in results)))


def _show(figures: Figures) -> None:
    table = Table(figures.part, f"{figures.cases:,} cases", f"{len(figures.problems)} problems")
    for name, fact in figures.facts.items():
        table.add_row(name, json.dumps(fact), "")
    console = Console(width=160)
    console.print(table)
    for problem in figures.problems[:50]:
        console.print(problem, markup=False)


if __name__ == "__main__":
    try:
        typer.run(main)
    except SteepError as error:
        raise SystemExit(f"error: {error}") from None
