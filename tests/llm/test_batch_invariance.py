"""Runs `batch_invariance` in a fresh process: vLLM cannot start where another test loaded numba."""

import subprocess
import sys
from pathlib import Path


def test_segments_of_vllm_do_not_depend_on_their_batch() -> None:
    checks = Path(__file__).with_name("batch_invariance.py")
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", str(checks)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout or "skipped" in done.stdout
