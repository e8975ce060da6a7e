"""Training over several GPUs: one stage function in several processes.

Input: a stage context whose training block sets ``processes`` above 1. Output: the stage's files,
its counts and its notes. One process per GPU runs ``python -m pipeline.run.launch
JOB.json``; the job file holds the stage function and the context as JSON. A SteepError of a worker
is raised again here as TrainingError. The launcher and its processes start through
`pipeline.run.process`, because the launcher gives each process a separate session: a signal to the
stage's process group does not reach them.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
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
from pipeline.run import fork_server, process
from pipeline.run.context import StageContext
from pipeline.run.fork_server import ForkServer
from pipeline.run.worker import call_stage
from pipeline.training.lora import pick_device

_JOB = "job.json"
_RESULT = "result.json"
_ACCELERATE = "accelerate.json"


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


def command(job: Path, settings: Trainer, accelerate_config: Path) -> list[str]:
    """The ``accelerate launch`` command line of the processes of ``job``."""
    words = [sys.executable, "-m", process.MODULE, "accelerate.commands.launch"]
    # The stage sees its own devices alone, so it uses all of them.
    words += ["--config_file", str(accelerate_config), "--gpu_ids", "all"]
    words += ["--num_machines", "1", "--num_processes", str(settings.processes)]
    words += ["--mixed_precision", _mixed_precision(settings), "--dynamo_backend", "no"]
    words += ["--main_process_port", "0"]  # the launcher chooses it
    return [*words, "-m", process.MODULE, "pipeline.run.launch", str(job)]


def _mixed_precision(settings: Trainer) -> str:
    return "bf16" if settings.dtype == "bfloat16" else "no"


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


def write_accelerate_config(folder: Path) -> Path:
    """Write accelerate's configuration for data-parallel training into ``folder``.

    Without this file, the launcher reads the user's ``default_config.yaml``, which may choose other
    GPUs, DeepSpeed or FSDP.
    """
    path = folder / _ACCELERATE
    # MULTI_GPU also on a CPU, where accelerate's own type would silently start one process.
    settings = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "MULTI_GPU"}
    write_json(path, settings)
    return path


def launch(context: StageContext, entry: str, settings: Trainer, block: str) -> dict[str, int]:
    """Run the stage function ``entry`` in ``settings.processes`` processes; returns its counts.

    The notes of the main process are added to the notes of ``context``.
    ``block`` is the configuration block of ``settings``. Raises DependencyError for a missing
    device, and TrainingError with the message of a worker or naming the exit status.
    """
    device = pick_device(settings, block)  # a missing device is reported before any process starts
    job = write_job(context, entry)
    result_file = context.checkpoint_dir / _RESULT
    result_file.unlink(missing_ok=True)
    server = fork_server.inherited
    if server is not None and device == "cpu":
        status = _fork_ranks(server, job, settings)
    else:
        words = command(job, settings, write_accelerate_config(context.checkpoint_dir))
        status = subprocess.run(words, env=_environment(), check=False).returncode
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


def _fork_ranks(server: ForkServer, job: Path, settings: Trainer) -> int:
    """Run ``job`` in processes that the fork server starts; returns the exit status.

    The processes have TRL loaded. They get the environment variables that ``torchrun`` and
    ``accelerate launch`` set, and meet through a store that this process holds, so that no port can
    be taken between its choice and its use. When one fails, the others are killed.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                server.start(
                    "pipeline.run.launch:forked",
                    [str(job)],
                    environment=_rank_environment(rank, settings, store.port),
                    output=1,
                )
            )
            for rank in range(settings.processes)
        ]
        while running:
            for process in select.select(running, [], [])[0]:
                running.remove(process)
                if status := process.wait():
                    for other in running:
                        other.kill()
                    return status
    return 0


def _rank_environment(rank: int, settings: Trainer, port: int) -> dict[str, str]:
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
        "ACCELERATE_MIXED_PRECISION": _mixed_precision(settings),
        "ACCELERATE_DYNAMO_BACKEND": "NO",
    }


def forked() -> int:
    """Entry point of a process that the fork server started; the argument is the job file."""
    return main(Path(sys.argv[1]))


def _environment() -> dict[str, str]:
    root = str(Path(__file__).parents[2])  # workers import this package, whether installed or not
    search = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return {**os.environ, **process.child_environment(), "PYTHONPATH": search}


def main(path: Path) -> int:
    """Run the job in one process; the main process writes its result to ``result.json``.

    The result is counts and notes. Any process writes the message of a SteepError there.
    Returns the exit status.
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
        write_json(result, {"counts": counts, "notes": context.notes})
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
