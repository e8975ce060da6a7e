"""Training processes on a CPU that the fork server starts, instead of ``accelerate launch``.

The launcher and each of its processes would import TRL again. Forked processes have it loaded. They get
the environment variables that ``torchrun`` and ``accelerate launch`` set, and meet through a store that
this process holds, so that no port can be taken between its choice and its use.
"""

from __future__ import annotations

import os
import selectors
from contextlib import ExitStack
from pathlib import Path

from pipeline.config import Trainer
from pipeline.run.fork_server import ForkServer


def run_ranks(server: ForkServer, job: Path, settings: Trainer) -> int:
    """Run ``pipeline.stages.launch`` on ``job`` in ``settings.processes`` processes of this machine.

    Returns 0, or the exit status of the process that failed first, after which the others are killed.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for rank in range(settings.processes):
            process = server.start(
                "pipeline.stages.launch:forked",
                [str(job)],
                modules=(),
                environment=_environment(rank, settings, store.port),
                output=1,
            )
            selector.register(stack.enter_context(process), selectors.EVENT_READ, process)
        while selector.get_map():
            for key, _ in selector.select():
                selector.unregister(key.fileobj)
                if status := key.data.wait():
                    for other in list(selector.get_map().values()):
                        other.data.kill()
                    return int(status)
    return 0


def _environment(rank: int, settings: Trainer, port: int) -> dict[str, str]:
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
