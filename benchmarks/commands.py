"""Rows ``no-op``, ``status``, ``pairs``, ``run`` and ``bill``: how long commands and runs take.

Work: ``steep run`` and ``steep status`` of a run that is complete, ``steep pair`` over its scored
trajectories, and a whole run from an empty store and cache. Each command is a separate process,
measured in wall time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import typer

from benchmarks.timing import Row, alternate
from pipeline.api import Run
from pipeline.core.errors import SteepError, StoreError


def rows(names: Sequence[str], directory: Path, repeats: int) -> list[Row]:
    """Rows ``no-op``, ``status`` and ``pairs`` of the finished run in ``directory``.

    Raises StoreError when the directory has no run, and for ``no-op`` when the run is not complete
    under this version of the code.
    """
    runs_dir = f"runs_dir={directory.absolute().parent}"
    options = ("--config", str(directory / "config.yaml"), "--set", runs_dir)
    run = _finished(directory, options, complete="no-op" in names)
    scored = run.stage("score-1") / "trajectories.parquet"
    count = sum(1 for _ in run.rewards(1))
    commands = {
        "no-op": (("run", *options), "steep run of a complete run", "< 3"),
        "status": (("status", *options), "steep status of a finished run", ""),
        "pairs": (
            ("pair", str(scored), "--output", os.devnull),
            f"steep pair over {count:,} trajectories",
            "",
        ),
    }
    chosen = {name: commands[name] for name in commands if name in names}
    seconds = alternate(
        {name: lambda words=words: steep(*words) for name, (words, _, _) in chosen.items()},  # type: ignore[misc]
        repeats,
        perf_counter,
    )
    return [
        Row(name, work, "–", seconds[name], None, "wall s", goal)
        for name, (_, work, goal) in chosen.items()
    ]


def bill() -> list[Row]:
    """Rows ``bill``: A100 hours that `steep plan` computes, against the paper's and a day.

    The paper's 681 minutes on 8 GPUs (TeaRAG, table 9) are wall time: training, sampling, rewards.
    """
    measured = []
    for config, machine, stages, peer, hours, goal in (
        ("tearag-llama3-8b", "8x80", ("sft", "sample", "score", "train"),
         "the paper's training, wall time", 681 / 60 * 8, ""),
        ("tearag-qwen3-4b-one-gpu", "1x80", (), "–", None, "≤ 24"),
    ):  # fmt: skip
        plan = json.loads(steep("plan", "--config", config, "--machine", machine, "--json"))["plan"]
        rows = [row for row in plan["stages"] if not stages or row["stage"] in stages]
        planned = sum(row["gpu_hours"] for row in rows)
        named = ", ".join(
            f"{row['stage']} {row['gpu_hours']:.1f}" for row in rows if row["gpu_hours"] >= 0.05
        )
        measured.append(
            Row(
                "bill", f"{config}, computed: {named}", peer, [planned],
                None if hours is None else [hours], "A100 hours", goal,
            )
        )  # fmt: skip
    return measured


def whole_run(config: str = "embedded", *overrides: str) -> list[Row]:
    """Row ``run``: one run from an empty store and cache, with its EM."""
    with tempfile.TemporaryDirectory(prefix="run-") as name:
        words = [
            "--config",
            config,
            "--set",
            f"runs_dir={name}",
            "--set",
            f"cache_dir={name}/cache",
        ]
        words += [word for override in overrides for word in ("--set", override)]
        started = perf_counter()
        steep("run", *words)
        seconds = perf_counter() - started
        [folder] = (path.parent for path in Path(name).glob("*/config.yaml"))
        metrics = Run.from_directory(folder).metrics()
    em = [f"{100 * row['em']:.1f}" for row in averages(metrics)]
    work = f"{config} from an empty store, {os.cpu_count()} cores; EM {', '.join(em)}"
    goal = "≤ 360 on two cores with AVX512-BF16 or AMX"
    return [Row("run", work, "–", [seconds], None, "wall s", goal)]


def averages(metrics: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows of averages over data sets; of the whole split, not of its part test/unseen."""
    whole = ("all", metrics[0]["split"])
    return [row for row in metrics if (row["dataset"], row["split"]) == whole]


def launch(main: Callable[..., None]) -> None:
    """Run the command of a benchmark; an error of the project ends it with its exit status."""
    try:
        typer.run(main)
    except SteepError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        sys.exit(error.exit_status)


def steep(*words: str) -> str:
    """The output of a command, with compiled modules. Raises CalledProcessError when it fails."""
    command = [sys.executable, "-m", "pipeline.cli", *words]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env).stdout


def _finished(directory: Path, options: Sequence[str], *, complete: bool) -> Run:
    """The run in ``directory``; with ``complete`` no stage of it would run again."""
    from tasks import task_for

    if (directory / "config.yaml").is_file():
        run = Run.from_directory(directory)
        if not complete or task_for("report", options[1], (options[3],)).complete():
            return run
    raise StoreError(f"{directory} holds no run that is complete under this version; make run")
