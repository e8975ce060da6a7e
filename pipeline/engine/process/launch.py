"""Training over several GPUs: one stage function in several processes.

Input: a stage context whose training block sets ``processes`` above 1. Output: the stage's files,
its counts and its notes. One process per GPU runs ``python -m pipeline.engine.process.launch
JOB.json``; the job file holds the stage function and the context as JSON. A SteepError of a process
is raised again here as TrainingError. The processes start through
`pipeline.engine.process.process`, so that they end with the stage.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.config import Trainer
from pipeline.config.machine_choices import fewer_processes, processes_on
from pipeline.core.atomic import write_json
from pipeline.core.errors import SteepError, TrainingError
from pipeline.core.gpus import VISIBLE
from pipeline.core.input_files import read_json
from pipeline.core.progress import Progress
from pipeline.engine.context import StageContext
from pipeline.engine.process import fork_server
from pipeline.engine.process.fork_server import ForkedProcess, ForkServer
from pipeline.engine.process.process import start_module
from pipeline.engine.process.worker import call_stage
from pipeline.training.lora import pick_device

_JOB = "job.json"
_RESULT = "result.json"
_MODULE = (
    "pipeline.engine.process.launch"  # the name of this module, which is __main__ in a new process
)
_POLL = 0.1  # seconds between two looks whether a process has ended


def with_processes(context: StageContext, block: str) -> StageContext:
    """The context whose training block has as many processes as this machine's GPUs allow.

    If the GPUs allow fewer than the settings say (`pipeline.config.machine_choices`), the log and
    the notes report it. A single process keeps only one GPU: with several, ``Trainer`` would wrap
    the model in ``nn.DataParallel``, which TRL refuses. Call it before this process uses CUDA.
    """
    import torch

    trainer: Trainer = getattr(context.config, block)
    gpus = torch.cuda.device_count()  # asks the driver's library, and leaves CUDA as it is
    count = processes_on(trainer, gpus)
    if count == 1 and gpus > 1:
        os.environ[VISIBLE] = os.environ.get(VISIBLE, "0").partition(",")[0]
    if count == trainer.processes:
        return context
    context.notes["processes"] = {"set": trainer.processes, "started": count}
    print(fewer_processes(trainer, block, gpus))
    fewer = trainer.model_copy(update={"processes": count})
    return replace(context, config=context.config.model_copy(update={block: fewer}))


def launch(context: StageContext, entry: str, settings: Trainer, block: str) -> dict[str, int]:
    """Run the stage function ``entry`` in ``settings.processes`` processes; returns its counts.

    The notes of the main process are added to the notes of ``context``.
    ``block`` is the configuration block of ``settings``. Raises DependencyError for a missing
    device, and TrainingError with the message of a process or naming the exit status.
    """
    device = pick_device(settings, block)  # a missing device is reported before any process starts
    context.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    job, result_file = context.checkpoint_dir / _JOB, context.checkpoint_dir / _RESULT
    write_json(job, {"entry": entry, "context": context.to_json()})
    result_file.unlink(missing_ok=True)
    status = _run_ranks(job, settings, fork_server.inherited if device == "cpu" else None)
    result: dict[str, Any] = read_json(result_file) if result_file.exists() else {}
    if "error" in result:
        raise TrainingError(result["error"])
    if status != 0 or "counts" not in result:
        raise TrainingError(
            f"training ended with status {status} in {context.stage} "
            f"({settings.processes} processes); see its output above"
        )
    context.notes.update(result["notes"])
    counts: dict[str, int] = result["counts"]
    return counts


def _run_ranks(job: Path, settings: Trainer, server: ForkServer | None) -> int:
    """Run ``job`` in ``settings.processes`` processes; returns the exit status.

    They are forked from ``server`` with TRL loaded, or are new ones. They meet through a store that
    this process holds, so that no port can be taken between its choice and its use. When one fails,
    the others are killed. The launchers of accelerate and torch are not used: they give each
    process a session of its own, and read the user's configuration of accelerate.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    running: list[subprocess.Popen[bytes] | ForkedProcess] = []
    with ExitStack() as stack:
        for rank in range(settings.processes):
            environment = _rank_environment(rank, settings, store.port)
            started = _start(job, environment, server)
            stack.enter_context(started)
            running.append(started)
        try:
            while running:
                time.sleep(_POLL)
                for ended in [one for one in running if one.poll() is not None]:
                    running.remove(ended)
                    if status := ended.wait():
                        return status
        finally:
            for one in running:
                one.kill()
    return 0


def _start(
    job: Path, environment: dict[str, str], server: ForkServer | None
) -> subprocess.Popen[bytes] | ForkedProcess:
    if server is not None:
        return server.start(f"{_MODULE}:main", [str(job)], environment=environment, output=1)
    return start_module(_MODULE, [job], environment)


def _rank_environment(rank: int, settings: Trainer, port: int) -> dict[str, str]:
    """The variables that ``torchrun`` and ``accelerate launch`` set."""
    processes = str(settings.processes)
    return {
        "OMP_NUM_THREADS": "1",
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": processes,
        "LOCAL_WORLD_SIZE": processes,
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "ACCELERATE_MIXED_PRECISION": "bf16" if settings.dtype == "bfloat16" else "no",
        "ACCELERATE_DYNAMO_BACKEND": "NO",
    }


def main() -> int:
    """Run the job in one process; the argument is the job file. Returns the exit status.

    The main process writes its counts and notes to ``result.json``, any process the message of a
    SteepError.
    """
    job = read_json(Path(sys.argv[1]))
    entry, context = job["entry"], StageContext.from_json(job["context"])
    if os.environ.get("RANK", "0") != "0":
        context = replace(context, progress=Progress())  # the main process reports for all
    result = context.checkpoint_dir / _RESULT
    try:
        counts = call_stage(entry, context)
    except SteepError as error:
        write_json(result, {"error": str(error)})
        return error.exit_status
    if os.environ.get("RANK", "0") == "0":
        write_json(result, {"counts": counts, "notes": context.notes})
    return 0


if __name__ == "__main__":
    sys.exit(main())
