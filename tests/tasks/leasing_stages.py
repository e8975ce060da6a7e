"""Stage functions that show what their process was given."""

import json
import os
import time
from pathlib import Path

from pipeline.engine.context import StageContext

NAMES = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VLLM_CPU_OMP_THREADS_BIND")


def shows(context: StageContext) -> dict[str, int]:
    """Writes its devices and threads, and stays until as many stages run as ROOM says."""
    started = time.time()
    mark = Path(os.environ["MARKS"]) / context.output.name
    mark.write_text("here")
    wanted = int(os.environ.get("ROOM", "1"))
    deadline = time.monotonic() + 300
    while len(list(mark.parent.iterdir())) < wanted and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.2)
    found = {name: os.environ.get(name) for name in NAMES}
    times = {"start": started, "end": time.time()}
    (context.output / "given.json").write_text(json.dumps({**found, **times}))
    return {"rows": 1}


def stays(context: StageContext) -> dict[str, int]:
    """Says which devices it has and which process it is, and stays."""
    text = f"{os.environ['CUDA_VISIBLE_DEVICES']} {os.getpid()}"
    temporary = context.output / "text"
    temporary.write_text(text)
    temporary.rename(Path(os.environ["MARKS"]) / context.stage)
    time.sleep(600)
    return {}
