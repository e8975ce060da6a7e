"""Run a training stage in children that are killed, until one of them finishes.

``python -m tests.training.killed_runs CONTEXT.json ENTRY SEED KILLS`` prints the number of attempts and
where each was killed. A child is killed with SIGKILL after a random time, or at the moment when a file
of a checkpoint appears, which is while the checkpoint is being written.
"""

from __future__ import annotations

import importlib
import json
import os
import random
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


def attempt(context: StageContext, entry: str) -> int:
    """Start the stage in a child; returns its process id."""
    shutil.rmtree(context.output)
    context.output.mkdir()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            module, _, function = entry.partition(":")
            getattr(importlib.import_module(module), function)(context)
            status = 0
        except BaseException:  # noqa: BLE001 - a forked child must not return into the caller
            traceback.print_exc()
        os._exit(status)
    return child


def appeared(checkpoint_dir: Path, name: str, known: set[str]) -> bool:
    paths = checkpoint_dir.glob(f"checkpoints/checkpoint-*/{name}")
    return any(str(path) not in known for path in paths)


def wait(child: int) -> int | None:
    """The exit status of an ended child; None while it runs."""
    pid, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if pid else None


def main() -> None:
    # Imported once for all children.
    import datasets  # noqa: F401
    import peft  # noqa: F401
    from transformers import LlamaForCausalLM  # noqa: F401
    from trl import DPOTrainer, GRPOTrainer, SFTTrainer  # noqa: F401

    context = StageContext.from_json(json.loads(Path(sys.argv[1]).read_text()))
    entry, seed, kills = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    chance = random.Random(seed)
    done = 0
    while True:
        target = chance.choice([None, *FILES]) if done < kills else "never"
        limit = chance.uniform(0.2, 2.5) if target is None else 60.0
        known = {str(path) for path in context.checkpoint_dir.glob("checkpoints/*/*")}
        child = attempt(context, entry)
        end = time.monotonic() + limit
        while (status := wait(child)) is None:
            hit = target in FILES and appeared(context.checkpoint_dir, target, known)
            if hit or time.monotonic() > end:
                time.sleep(chance.uniform(0, 0.003))
                os.kill(child, signal.SIGKILL)
                status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                break
            time.sleep(0.0005)
        if status == 0:
            break
        if status != -signal.SIGKILL:
            sys.exit(f"attempt {done} ended with status {status}")
        done += 1
        left = sorted(path.name for path in context.checkpoint_dir.glob("checkpoints/*"))
        print(f"killed at {target or f'{limit:.2f} s'}; checkpoints {left}", flush=True)
    print(f"{done} kills")


if __name__ == "__main__":
    main()
