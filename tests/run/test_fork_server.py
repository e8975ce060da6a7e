"""The fork server starts processes with loaded packages, and none outlives its client or the server."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from pipeline.engine.process.fork_server import ForkServer
from tests.run.test_process import ROOT, running
from tests.waiting import ending, wait_until

TARGETS = """
import json, os, sys, time

def report():
    print(sys.argv[1:-1], os.environ["WORD"], "decimal_loaded", "calendar" in sys.modules, flush=True)
    print(sys.stdin.read(), flush=True)
    os.write(int(sys.argv[-1]), b"extra")
    return 3

def sleep():
    os.write(int(sys.argv[-1]), str(os.getpid()).encode() + b"\\n")
    time.sleep(600)

def leave():
    import atexit, threading
    extra = int(sys.argv[-1])
    atexit.register(os.write, extra, b" exit")
    threading.Timer(0.2, os.write, [extra, b"thread"]).start()
    sys.stdout.write("not flushed")
    return 4
"""


@pytest.fixture
def environment(tmp_path):
    (tmp_path / "targets.py").write_text(TARGETS)
    return {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "WORD": "hello"}


def started(server: ForkServer, target: str, environment, output, extra, arguments=()):
    return replace(server, modules=["calendar"]).start(
        f"targets:{target}", list(arguments), environment=environment, output=output.fileno(),
        extra=[extra],
    )  # fmt: skip


@pytest.fixture
def pipe():
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream:
        yield stream, writing


def test_a_forked_process_has_its_environment_arguments_files_and_modules(
    environment, tmp_path, pipe
):
    stream, writing = pipe
    with (
        ForkServer.running(["calendar", "no_such_module"], environment) as server,
        (tmp_path / "out").open("wb") as output,
    ):
        changed = {**environment, "WORD": "other"}
        with started(server, "report", changed, output, writing, ["a", "b"]) as process:
            os.close(writing)
            process.stdin.write(b"input")
            process.stdin.close()
            assert process.wait() == 3
            assert process.poll() == 3
    assert (tmp_path / "out").read_text().splitlines() == [
        "['a', 'b'] other decimal_loaded True", "input",
    ]  # fmt: skip
    assert stream.read() == b"extra"


def ended(environment, tmp_path, pipe, target: str) -> tuple[int, bytes, str]:
    """The exit status of a forked process, what it wrote to the extra file, and its output."""
    stream, writing = pipe
    out = tmp_path / "out"
    with (
        ForkServer.running([], environment) as server,
        out.open("wb") as output,
        started(server, target, environment, output, writing) as process,
    ):
        os.close(writing)
        process.stdin.close()
        status = process.wait()
    return status, stream.read(), out.read_text()


def test_a_forked_process_ends_after_its_threads_and_exit_functions(environment, tmp_path, pipe):
    assert ended(environment, tmp_path, pipe, "leave") == (4, b"thread exit", "not flushed")


def test_a_forked_process_can_be_killed(environment, pipe):
    stream, writing = pipe
    with ForkServer.running([], environment) as server, Path(os.devnull).open("wb") as output:
        with started(server, "sleep", environment, output, writing) as process:
            os.close(writing)
            child = int(stream.readline())
            assert process.poll() is None
            process.kill()
            assert process.wait() == -signal.SIGKILL
        wait_until(lambda: not running(child))


def test_a_forked_process_ends_with_the_server(environment, pipe):
    stream, writing = pipe
    with ForkServer.running([], environment) as server, Path(os.devnull).open("wb") as output:
        with started(server, "sleep", environment, output, writing) as process:
            os.close(writing)
            child = int(stream.readline())
            [_, parent, *_] = psutil.Process(child).parents()  # above the process that guards it
            parent.kill()
            assert process.wait() == -signal.SIGTERM
        wait_until(lambda: not running(child))
        with pytest.raises(OSError, match="pipe"):
            started(server, "sleep", environment, output, output.fileno())


CLIENT = """
import os, sys, time
from pipeline.engine.process.fork_server import ForkServer
with ForkServer.running([], dict(os.environ)) as server:
    if os.fork() == 0:
        from pipeline.engine.process.process import die_with_parent
        die_with_parent()
    process = server.start(
        "targets:sleep", [], environment=dict(os.environ), output=2, extra=[1]
    )
    time.sleep(600)
"""


def test_forked_processes_end_when_their_client_is_killed(environment):
    """Each of two clients, the one that started the server and a fork of it, has a process."""
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT], stdout=subprocess.PIPE, env=environment, cwd=ROOT
    )
    with ending(client):
        assert client.stdout is not None
        children = [int(client.stdout.readline()) for _ in range(2)]
        assert all(map(running, children))
    wait_until(lambda: not any(map(running, children)))
