"""vLLM's OpenAI-compatible server in a separate process, serving the tiny reader."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "data" / "tiny_reader"
NAME = "tiny-reader"
MAX_MODEL_LEN = 512
_STARTS_WITHIN = 1500.0  # seconds on a busy machine; about 75 on an idle one


class VllmServer:
    """A context manager around the server process of a model; its log is in ``folder``."""

    def __init__(
        self, folder: Path, model: Path = MODEL, max_model_len: int = MAX_MODEL_LEN
    ) -> None:
        self.log = folder / "vllm.log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        command = [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *("--host", "127.0.0.1", "--port", str(self._port)),
            *("--model", str(model), "--served-model-name", NAME),
            *("--max-model-len", str(max_model_len), "--max-num-seqs", "16"),
            *("--dtype", "bfloat16", "--enforce-eager"),
            "--no-enable-chunked-prefill",  # with seeds it fails on a CPU (vLLM 0.32)
            *("--max-num-batched-tokens", "4096"),
        ]
        environment = {
            **os.environ,
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "NO_PROXY": "127.0.0.1",
            # A C++ compiler may be missing.
            "TORCHDYNAMO_DISABLE": "1",
        }
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=ROOT,
                start_new_session=True,  # ends the server and its engine process together
            )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    def wait(self) -> None:
        """Wait until the server answers; raises AssertionError with the end of its log if it exits."""
        until = time.monotonic() + _STARTS_WITHIN
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while time.monotonic() < until:
            if self._process.poll() is not None:
                break
            try:
                opener.open(f"http://127.0.0.1:{self._port}/health", timeout=5).close()
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
            else:
                return
        raise AssertionError(f"vLLM's server did not start:\n{self.log.read_text()[-3000:]}")

    def __enter__(self) -> "VllmServer":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
