"""Why vLLM could not start, as one sentence.

With the multi-process engine, which GPUs use, the exception that ends a start is only in the log of
vLLM's own processes: the process of the stage learns "Engine core initialization failed. See root
cause above". These processes therefore write the message of the first exception that they log to a
file (`CauseFile`), and the stage's process explains it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
from pathlib import Path

from pipeline.core.errors import model_problem

# vllm.v1.worker.utils.request_memory, vLLM 0.32
_OCCUPIED = re.compile(
    r"Free memory on device (?P<device>\S+) \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup "
    r"is less than desired GPU memory utilization \((?P<share>[\d.]+), (?P<wanted>[\d.]+) GiB\)"
)
_LEAST_SHARE = 0.1  # less holds no model, so it is not proposed


class CauseFile(logging.Filter):
    """Writes the message of the first exception that a logger gets to ``path``; drops no record.

    It is a filter, because vLLM removes other handlers when it configures its logging in a process.
    Several processes may share the file: the first one to write it wins.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = Path(path)

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            with contextlib.suppress(OSError), self._path.open("x", encoding="utf-8") as file:
                file.write(str(error))
        return True


def start_error(model: object, error: BaseException, cause: Path) -> str:
    """The sentence for a failed start; ``cause`` is the file of `CauseFile`.

    ``error`` is the exception in this process.
    """
    try:
        message = cause.read_text(encoding="utf-8")
    except OSError:  # the engine is in this process, or its process was killed
        message = ""
    message = message.strip() or str(error).strip() or type(error).__name__
    if "trust_remote_code" in message:
        return f"vLLM could not start with {model}: {model_problem(message)}"
    occupied = _OCCUPIED.search(message)
    return f"vLLM could not start with {model}: " + (
        _occupied(occupied)
        if occupied
        else f"{message.splitlines()[0]}; check engine.dtype, engine.max_model_len and "
        "the memory settings, or set VLLM_LOGGING_LEVEL=INFO"
    )


def _occupied(found: re.Match[str]) -> str:
    share = math.floor(100 * float(found["free"]) / float(found["total"])) / 100
    remedy = "end the programs that hold the rest (nvidia-smi lists them)"
    if share >= _LEAST_SHARE:
        remedy += f", or lower gpu_memory_utilization to at most {share:g}"
    return (
        f"{found['free']} of {found['total']} GiB are free on {found['device']}, and the engine's "
        f"gpu_memory_utilization, {found['share']}, asks for {found['wanted']}; {remedy}, and run "
        "again"
    )
