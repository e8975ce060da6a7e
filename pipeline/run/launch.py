"""Training over several GPUs and machines: one stage function in several processes.

Input: a stage context whose training block sets ``processes`` above 1. Output: the stage's files,
its counts and its notes. One process per GPU runs ``python -m pipeline.run.launch
JOB.json``; the job file holds the stage function and the context as JSON. A SteepError of a worker
is raised again here as TrainingError. The launcher and its processes start through
`pipeline.run.process`, because the launcher gives each process a separate session: a signal to the
stage's process group does not reach them.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.config import Trainer
from pipeline.config.machine_choices import fewer_processes, processes_on
from pipeline.core.atomic import write_json
from pipeline.core.errors import ConfigError, SteepError, TrainingError
from pipeline.core.gpus import VISIBLE
from pipeline.core.input_files import read_json
from pipeline.core.progress import Progress
from pipeline.run import fork_server, process
from pipeline.run.context import StageContext
from pipeline.run.fork_server import ForkServer
from pipeline.run.worker import call_stage
from pipeline.training.lora import pick_device

ENDED = "ended"  # the file that tells the other machines that the stage has ended
_MACHINES = "STEEP_MACHINES"
_JOB = "job.json"
_RESULT = "result.json"
_PLAN = "launch.json"
_ACCELERATE = "accelerate.json"
_LOOK = 0.2  # seconds between two looks for the plan


@dataclass(frozen=True)
class Machines:
    """The machines of a stage that trains on several.

    ``count`` is their number and ``rank`` the number of this machine, from 0. ``folder`` is a
    shared directory of this attempt. The other machines can reach this machine at ``address``, a
    name or IP address.
    """

    count: int
    rank: int
    folder: str
    address: str

    def as_environment(self) -> dict[str, str]:
        """The environment variable with which a process reads it (`machines_here`)."""
        return {_MACHINES: json.dumps(asdict(self))}


def machines_here() -> Machines | None:
    """The machines of this process's stage; None when the stage has one machine."""
    text = os.environ.get(_MACHINES)
    return None if text is None else Machines(**json.loads(text))


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


@dataclass(frozen=True)
class Plan:
    """How the machines of one training start; the plan is the same on all of them.

    ``processes`` counts the processes of all ``machines`` together. ``accelerate_config`` is the
    configuration file of accelerate. The main process listens at ``address`` and ``port``; port 0
    lets it choose, which works only with one machine.
    """

    job: str
    processes: int
    mixed_precision: str
    accelerate_config: str
    machines: int = 1
    address: str | None = None
    port: int = 0


def command(plan: Plan, rank: int = 0) -> list[str]:
    """The ``accelerate launch`` command line of the machine with number ``rank``."""
    words = [sys.executable, "-m", process.MODULE, "accelerate.commands.launch"]
    # The stage sees its own devices alone, so it uses all of them.
    words += ["--config_file", plan.accelerate_config, "--gpu_ids", "all"]
    words += ["--num_machines", str(plan.machines), "--num_processes", str(plan.processes)]
    words += ["--mixed_precision", plan.mixed_precision, "--dynamo_backend", "no"]
    if plan.machines > 1:
        words += ["--machine_rank", str(rank), "--main_process_ip", str(plan.address)]
        words += ["--rdzv_backend", "static"]
    words += ["--main_process_port", str(plan.port)]
    return [*words, "-m", process.MODULE, "pipeline.run.launch", plan.job]


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
    device, ConfigError for machines that no executor has given, and TrainingError with the message
    of a worker or naming the exit status.
    """
    device = pick_device(settings, block)  # a missing device is reported before any process starts
    machines = _machines(settings, block)
    job = write_job(context, entry)
    result_file = context.checkpoint_dir / _RESULT
    result_file.unlink(missing_ok=True)
    plan = Plan(
        job=str(job),
        processes=settings.processes,
        mixed_precision="bf16" if settings.dtype == "bfloat16" else "no",
        accelerate_config=str(write_accelerate_config(context.checkpoint_dir)),
        machines=settings.machines,
    )
    if machines is not None:
        plan = replace(plan, address=machines.address, port=_free_port())
        write_json(Path(machines.folder) / _PLAN, asdict(plan))
    server = fork_server.inherited
    if server is not None and device == "cpu" and machines is None:
        status = _fork_ranks(server, job, settings)
    else:
        status = subprocess.run(command(plan), env=_environment(), check=False).returncode
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
        "ACCELERATE_MIXED_PRECISION": "bf16" if settings.dtype == "bfloat16" else "no",
        "ACCELERATE_DYNAMO_BACKEND": "NO",
    }


def forked() -> int:
    """Entry point of a process that the fork server started; the argument is the job file."""
    return main(Path(sys.argv[1]))


def follow(machines: Machines) -> int:
    """Start the launcher of a machine other than the first once the plan is there.

    Returns its exit status; 0 when the stage ended without training, because it was complete or
    failed before.
    """
    folder = Path(machines.folder)
    while not (folder / _PLAN).exists():
        if (folder / ENDED).exists():
            return 0
        with contextlib.suppress(OSError):
            list(folder.iterdir())  # a network file system then asks its server again
        time.sleep(_LOOK)
    plan = Plan(**read_json(folder / _PLAN))
    return subprocess.run(command(plan, machines.rank), env=_environment(), check=False).returncode


def _machines(settings: Trainer, block: str) -> Machines | None:
    """The machines that an executor gave; None for one machine."""
    if settings.machines == 1:
        return None
    machines = machines_here()
    if machines is None or machines.count != settings.machines:
        raise ConfigError(
            f"{block}.machines is {settings.machines}, and this stage has one machine; set "
            f"execution to ray or slurm, or {block}.machines to 1"
        )
    return machines


def _environment() -> dict[str, str]:
    root = str(Path(__file__).parents[2])  # workers import this package, whether installed or not
    search = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return {**os.environ, **process.child_environment(), "PYTHONPATH": search}


def _free_port() -> int:
    """A port that nothing uses at present."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


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


def _main(arguments: list[str]) -> int:
    if arguments == ["--follow"]:
        machines = machines_here()
        assert machines is not None  # the executor gives them
        return follow(machines)
    return main(Path(arguments[0]))


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
