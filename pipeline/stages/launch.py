"""Training over several GPUs: one stage function in the processes of ``accelerate launch``.

Input: a stage context whose training block sets ``processes`` above 1. Output: the stage's files, its
counts, its notes and its work. One process per GPU runs ``python -m pipeline.stages.launch JOB.json``; the job
file holds the stage function and the context as JSON. A SteepError of a worker is raised again here as
TrainingError. The launcher and its processes start through `pipeline.run.process`, because the
launcher gives each of them a session of its own: a signal to the stage's process group does not reach
them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.config import Trainer
from pipeline.core.atomic import write_json
from pipeline.core.errors import SteepError, TrainingError
from pipeline.core.input_files import read_json
from pipeline.core.progress import Progress
from pipeline.run import fork_server, process
from pipeline.run.context import StageContext
from pipeline.run.worker import call_stage
from pipeline.stages.forked_ranks import run_ranks
from pipeline.training.lora import pick_device

_JOB = "job.json"
_RESULT = "result.json"


def write_job(context: StageContext, entry: str) -> Path:
    """Write the job file into ``context.checkpoint_dir``; ``entry`` is ``module:function``."""
    context.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    path = context.checkpoint_dir / _JOB
    job = {"entry": entry, "context": context.to_json()}
    write_json(path, job)
    return path


def read_job(path: Path) -> tuple[str, StageContext]:
    """The stage function (``module:function``) and the context of a job file."""
    job = read_json(path)
    return job["entry"], StageContext.from_json(job["context"])


def command(settings: Trainer, job: Path) -> list[str]:
    """The ``accelerate launch`` command line: one machine, ``settings.processes`` processes."""
    return [
        sys.executable, "-m", process.MODULE, "accelerate.commands.launch",
        "--num_machines", "1",
        "--num_processes", str(settings.processes),
        "--multi_gpu",  # also on a CPU, because --cpu would silently start a single process
        "--mixed_precision", "bf16" if settings.dtype == "bfloat16" else "no",
        "--dynamo_backend", "no",
        "--main_process_port", "0",
        "-m", process.MODULE, "pipeline.stages.launch", str(job),
    ]  # fmt: skip


def launch(context: StageContext, entry: str, settings: Trainer, block: str) -> dict[str, int]:
    """Run the stage function ``entry`` in ``settings.processes`` processes; returns its counts.

    The notes and the work of the main process are added to those of ``context``. ``block`` is the configuration block
    of ``settings``. Raises DependencyError for a missing device, and TrainingError with the message of
    a worker or naming the exit status.
    """
    device = pick_device(settings, block)  # a missing device is reported before any process starts
    job = write_job(context, entry)
    result_file = context.checkpoint_dir / _RESULT
    result_file.unlink(missing_ok=True)
    server = fork_server.inherited
    if server is not None and device == "cpu":
        status = run_ranks(server, job, settings)
    else:
        status = _accelerate(settings, job)
    result: dict[str, Any] = read_json(result_file) if result_file.exists() else {}
    if "error" in result:
        raise TrainingError(result["error"])
    if status != 0 or "counts" not in result:
        raise TrainingError(
            f"training ended with status {status} in {context.stage} "
            f"({settings.processes} processes); see its output above"
        )
    context.notes.update(result["notes"])
    context.work.update(result["work"])
    counts: dict[str, int] = result["counts"]
    return counts


def _accelerate(settings: Trainer, job: Path) -> int:
    root = str(Path(__file__).parents[2])  # workers import this package, whether installed or not
    search = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    finished = subprocess.run(
        command(settings, job),
        env={**os.environ, **process.child_environment(), "PYTHONPATH": search},
        check=False,
    )
    return finished.returncode


def forked() -> int:
    """Entry point of a process that the fork server started; the argument is the job file."""
    return main(Path(sys.argv[1]))


def main(path: Path) -> int:
    """Run the job in one process; the main process writes counts, notes and work to ``result.json``.

    Any process writes the message of a SteepError there. Returns the exit status.
    """
    entry, context = read_job(path)
    if os.environ.get("RANK", "0") != "0":
        context = replace(context, progress=Progress())  # the main process reports for all
    result = context.checkpoint_dir / _RESULT
    try:
        counts = call_stage(entry, context)
    except SteepError as error:
        write_json(result, {"error": str(error)})
        return error.exit_status
    if os.environ.get("RANK", "0") == "0":
        outcome = {"counts": counts, "notes": context.notes, "work": context.work}
        write_json(result, outcome)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
