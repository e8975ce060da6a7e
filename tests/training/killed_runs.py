"""Run a round in children that are killed while they write checkpoints, until one finishes.

``python -m tests.training.killed_runs CONTEXT.json`` kills a child with SIGKILL when each file of a
checkpoint has appeared, and prints the names of these files.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

from pipeline.engine.context import StageContext

FILES = (
    "adapter_model.safetensors",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "trainer_state.json",
    "complete.json",
)


def attempt(context: StageContext) -> int:
    """Start the stage in a child; returns its process id."""
    from tasks.train import run

    shutil.rmtree(context.output)
    context.output.mkdir()
    child = os.fork()
    if child == 0:
        try:
            run(context)
            os._exit(0)
        except BaseException:  # noqa: BLE001 - a forked child must not return into the caller
            traceback.print_exc()
            os._exit(1)
    return child


def main() -> None:
    # Imported once for all children.
    import datasets  # noqa: F401
    import peft  # noqa: F401
    from transformers import LlamaForCausalLM  # noqa: F401
    from trl import DPOTrainer  # noqa: F401

    context = StageContext.from_json(json.loads(Path(sys.argv[1]).read_text()))
    checkpoints = context.checkpoint_dir / "checkpoints"
    for name in FILES:
        known = set(checkpoints.glob(f"*/{name}"))
        child = attempt(context)
        ended = (0, 0)
        while ended == (0, 0) and set(checkpoints.glob(f"*/{name}")) == known:
            time.sleep(0.0005)
            ended = os.waitpid(child, os.WNOHANG)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        print(f"killed at {name}", flush=True)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(attempt(context), 0)[1]))


if __name__ == "__main__":
    main()
