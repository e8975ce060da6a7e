"""A process ends when its parent is killed, also when the parent ends first."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from pipeline.engine.process.process import MODULE, child_environment
from tests.waiting import ending, wait_until

ROOT = Path(__file__).resolve().parents[2]
PARENT = """
import os, subprocess, sys, time
from pipeline.engine.process.process import MODULE, child_environment
environment = {**os.environ, **child_environment()}
child = subprocess.Popen([sys.executable, "-m", MODULE, "http.server", "0"], env=environment, start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


def running(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.parametrize("delay", [0.0, 0.5])
def test_a_child_in_another_session_ends_when_its_parent_is_killed(delay: float) -> None:
    """The kill may come before or after the child has run its first statement."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, cwd=ROOT)
    with ending(parent):
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        time.sleep(delay)
        assert running(child)
    wait_until(lambda: not running(child))


def test_a_child_whose_parent_has_ended_does_not_start():
    started, orphan = (
        subprocess.run(
            [sys.executable, "-m", MODULE, "this"],
            env={**os.environ, **environment}, cwd=ROOT, capture_output=True, text=True, check=False,
        )
        for environment in (child_environment(), {"STEEP_PARENT": "1"})
    )  # fmt: skip
    assert "Zen" in started.stdout
    assert (orphan.returncode, orphan.stdout) == (-signal.SIGTERM, "")
