"""Outputs of a finished run with invented seconds and counts, committed to the store as stages do."""

from pathlib import Path

from tasks.base import StageTask
from tasks.execution.leases import Capacity
from tasks.planning.machine import here
from tasks.planning.plan import Plan, make_plan
from tasks.run import task_for, walk

ROOT = Path(__file__).resolve().parents[3]
HERE = min(here())

WORLD = {"nq_sampling": 90, "documents": 1500}
# Wall seconds and counts of each stage. The seconds of a stage that starts an engine include 10 for it.
STAGES = {
    "world": (1.0, {"corpus": 1500}, {}),
    "corpus": (2.0, {"documents": 1500, "chunks": 1500}, {}),
    "questions-sft": (2.0, {"questions": 2400, "overlaps": 0}, {}),
    "questions-sampling": (0.4, {"questions": 240, "overlaps": 0}, {}),
    "questions-validation": (0.3, {"questions": 300}, {}),
    "questions-test": (0.3, {"questions": 400}, {}),
    "graph": (3.0, {"triplets": 5000, "entities": 2000}, {"chunks": 1500}),
    "index": (
        85.0,
        {"chunks": 1500, "entities": 2000, "triplets": 5000},
        {"embedded_texts": 8500, "start_seconds": 0.0},
    ),
    "sft-data": (4.0, {"train": 700, "test": 125}, {"questions": 2400}),
    "sft": (
        80.0,
        {"examples": 700, "tokens": 600_000},
        {"start_seconds": 10.0, "training_tokens": 600_000},
    ),
    "sample": (
        106.0,
        {"questions": 240, "trajectories": 1920},
        {"generated_tokens": 192_000, "start_seconds": 10.0, "reranked_pairs": 48_000},
    ),
    "score": (24.0, {"trajectories": 1920}, {}),
    "pair": (1.0, {"pairs": 200, "trajectories": 1920}, {}),
    "train": (
        50.0,
        {"pairs": 200, "tokens": 250_000},
        {"start_seconds": 10.0, "training_tokens": 500_000},
    ),
    "evaluate-policy": (
        50.0,
        {"questions": 400, "trajectories": 400},
        {"generated_tokens": 40_000, "start_seconds": 10.0},
    ),
    "evaluate": (2.0, {"rows": 30}, {}),
    "report": (2.0, {"bytes": 100}, {}),
}


def report(folder: Path, *overrides: str, name: str = "embedded") -> StageTask:
    """The report of the embedded configuration, undivided and with one round."""
    runs = (f"runs_dir={folder / 'runs'}", f"cache_dir={folder / 'runs/cache'}", f"name={name}")
    return task_for(
        "report", str(ROOT / "configs/embedded.yaml"), (*runs, "shards=1", "rounds=1", *overrides)
    )


def finish(task: StageTask, *, started: str = "2026-01-01T00:00:00Z", **facts: object) -> None:
    """Commit the output of one stage."""
    seconds, counts, work = STAGES[task.stage]
    written = task.store.root / task.stage / ".written"
    written.mkdir(parents=True)
    (written / "data.bin").write_bytes(b"x" * 1000)
    known = {
        "counts": counts,
        "work": work,
        "wall_seconds": seconds,
        "device": HERE,
        "started": started,
    }
    task.store.commit(task.key, written, {**known, **facts})


def finish_all(task: StageTask) -> None:
    """Commit the outputs of ``task`` and everything that it needs."""
    for needed in walk(task):
        if not needed.complete():
            finish(needed)


def plan(task: StageTask, workers: int = 1) -> Plan:
    return make_plan(task, walk(task), Capacity.expected(task.run_settings, workers))
