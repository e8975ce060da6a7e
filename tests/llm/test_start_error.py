"""A start of vLLM that fails ends with one sentence, also when the cause is in another process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.llm.engine_processes import start_error
from tests.llm.small_models import small_model

GIB = 2**30
ROOT = Path(__file__).resolve().parents[2]
TOO_LARGE = """
import sys
from pathlib import Path
from pipeline.config.base import EngineConfig
from pipeline.core.errors import EngineError
from pipeline.llm.open_engine import open_engine

if __name__ == "__main__":
    config = EngineConfig(
        dtype="float32", max_model_len=512, max_num_seqs=8, cpu_kv_cache_gib=1000, enforce_eager=True
    )
    try:
        open_engine(config, Path(sys.argv[1]), adapter=None, seed=0)
    except EngineError as error:
        print("error:", error, flush=True)
"""
IN_PARENT = RuntimeError("Engine core initialization failed. See root cause above. Failed …: {}")


def refusal(free: float, total: float, share: float) -> str:
    """The error of the installed vLLM for a device with these GiB."""
    utils = pytest.importorskip("vllm.v1.worker.utils", reason="vLLM is not installed")
    snapshot = SimpleNamespace(
        free_memory=int(free * GIB), total_memory=int(total * GIB), device_="cuda:1"
    )
    with pytest.raises(ValueError, match="Free memory") as raised:
        utils.request_memory(snapshot, SimpleNamespace(gpu_memory_utilization=share))
    return str(raised.value)


@pytest.mark.slow  # imports vLLM
def test_an_occupied_gpu_is_told_in_one_sentence(tmp_path: Path) -> None:
    cause = tmp_path / "cause"
    cause.write_text(refusal(31.5, 79.0, 0.9))
    assert start_error("m", IN_PARENT, cause) == (
        "vLLM could not start with m: 31.5 of 79.0 GiB are free on cuda:1, and the engine's "
        "gpu_memory_utilization, 0.9, asks for 71.1; end the programs that hold the rest (nvidia-smi lists "
        "them), or lower gpu_memory_utilization to at most 0.39, and run again"
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_cause_in_a_process_of_the_engine_reaches_the_stage(tmp_path: Path) -> None:
    """A cache of 1,000 GiB, which the worker refuses; only its log says so."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    model = small_model(tmp_path / "model")
    done = subprocess.run(
        [sys.executable, "-c", TOO_LARGE, str(model)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "VLLM_ENABLE_V1_MULTIPROCESSING": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert f"error: vLLM could not start with {model}: " in done.stdout
    (sentence,) = [line for line in done.stdout.splitlines() if line.startswith("error: ")]
    assert "Available memory on node" in sentence
    assert "less than requested memory for kv (1000.0 GiB)" in sentence


@pytest.mark.slow
@pytest.mark.parametrize("length", [70, 71])
def test_sockets_of_an_engine_fit_into_their_folder(length: int, tmp_path: Path) -> None:
    """Batch systems give jobs long temporary folders, and a socket's path has 107 characters."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    folder = Path("/tmp", f"{tmp_path.name}{os.getpid()}".ljust(length - len("/tmp/"), "x"))
    folder.mkdir()
    program = (
        "import zmq; from pipeline.llm.vllm_engine import import_vllm; import_vllm()\n"
        "from vllm.utils.network_utils import get_open_zmq_ipc_path as path\n"
        "zmq.Context.instance().socket(zmq.ROUTER).bind(path())"
    )
    try:
        environment = {**os.environ, "TMPDIR": str(folder)}
        subprocess.run([sys.executable, "-c", program], env=environment, cwd=ROOT, check=True)
    finally:
        shutil.rmtree(folder)
