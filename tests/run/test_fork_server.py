"""The fork server starts processes with loaded packages, and none outlives its client or the server."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from pipeline.engine import run
from pipeline.engine.process.fork_server import ForkServer
from tests.run.test_process import ROOT, running
from tests.waiting import ending, wait_until

TARGETS = """
import json, os, sys, time

def report():
    print(sys.argv[1:-1], os.environ["WORD"], "calendar" in sys.modules, flush=True)
    print(sys.stdin.read(), flush=True)
    os.write(int(sys.argv[-1]), b"extra")
    return 3

def sleep():
    os.write(int(sys.argv[-1]), str(os.getpid()).encode() + b"\\n")
    time.sleep(600)

def interrupt():
    import signal
    os.write(int(sys.argv[-1]), str(signal.getsignal(signal.SIGINT) == signal.SIG_IGN).encode())
    return 0

def leave():
    import atexit, threading
    extra = int(sys.argv[-1])
    atexit.register(os.write, extra, b" exit")
    threading.Timer(0.2, os.write, [extra, b"thread"]).start()
    sys.stdout.write("not flushed")
    return 4
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("targets")
    (folder / "targets.py").write_text(TARGETS)
    return {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "WORD": "hello"}


@pytest.fixture(scope="module")
def server(environment):
    with ForkServer.running(["calendar", "no_such_module"], environment) as started:
        yield replace(started, modules=["calendar"])


@contextmanager
def forked(server: ForkServer, target: str, environment, output=os.devnull, arguments=()):
    """A process, and the end of the pipe to which it writes its extra file."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as extra, Path(output).open("wb") as stream:
        try:
            started = server.start(
                f"targets:{target}", arguments, environment=environment,
                output=stream.fileno(), extra=[writing],
            )  # fmt: skip
        finally:
            os.close(writing)
        with started as process:
            yield process, extra


def test_a_forked_process_has_its_environment_arguments_files_and_modules(
    server, environment, tmp_path
):
    changed = {**environment, "WORD": "other"}
    with forked(server, "report", changed, tmp_path / "out", ["a", "b"]) as (process, extra):
        process.stdin.write(b"input")
        process.stdin.close()
        assert process.wait() == 3
        assert process.poll() == 3
        assert extra.read() == b"extra"
    assert (tmp_path / "out").read_text().splitlines() == ["['a', 'b'] other True", "input"]


def test_a_forked_process_ends_after_its_threads_and_exit_functions(server, environment, tmp_path):
    with forked(server, "leave", environment, tmp_path / "out") as (process, extra):
        process.stdin.close()
        assert process.wait() == 4
        assert extra.read() == b"thread exit"
    assert (tmp_path / "out").read_text() == "not flushed"


def test_a_forked_process_can_be_killed(server, environment):
    with forked(server, "sleep", environment) as (process, extra):
        child = int(extra.readline())
        assert process.poll() is None
        process.kill()
        assert process.wait() == -signal.SIGKILL
    wait_until(lambda: not running(child))


def test_a_forked_process_ends_with_the_server(environment):
    with ForkServer.running([], environment) as server:
        with forked(server, "sleep", environment) as (process, extra):
            child = int(extra.readline())
            [_, parent, *_] = psutil.Process(child).parents()  # above the process that guards it
            parent.kill()
            assert process.wait() == -signal.SIGTERM
        wait_until(lambda: not running(child))
        with pytest.raises(OSError, match="pipe"), forked(server, "sleep", environment):
            pass


@pytest.mark.parametrize("ignored", [True, False])
def test_a_forked_process_ignores_interruptions_if_its_client_does(environment, ignored):
    """A script's background job ignores the Ctrl-C that is meant for the script."""
    earlier = signal.signal(
        signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler
    )
    try:
        with (
            ForkServer.running([], environment) as server,
            forked(server, "interrupt", environment) as (process, extra),
        ):
            assert process.wait() == 0
            assert extra.read() == str(ignored).encode()
    finally:
        signal.signal(signal.SIGINT, earlier)


def test_no_process_is_forked_where_the_kernel_cannot_watch_it(monkeypatch):
    """gVisor's kernel, for example, has no pidfd_open."""
    assert run._can_fork()

    def missing(process):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", missing)
    assert not run._can_fork()


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
