"""A process that has imported heavy packages and forks the processes of stages.

Importing vLLM, TRL or sentence-transformers takes about ten seconds of CPU time in a new process. The
fork server imports them once per run, while other stages run, and forks a process for each stage, which
starts with the packages loaded. Linux only, and only without a GPU: CUDA does not survive a fork. The
server itself computes nothing and has a single thread, so that a forked process starts clean.

`ForkServer.start` sends the server the descriptors of a new process, and an object on its standard
input: the environment, the function and the arguments. A process ends with the server, and with the
client that asked for it: the server kills it when the client's connection closes.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, NoReturn

from pipeline.core.errors import SteepError
from pipeline.run.process import MODULE, child_environment, die_with_parent

FIRST_EXTRA = 3  # the descriptor of the first extra file in a forked process
_STATUS = struct.Struct("i")
_LONGEST_REQUEST = 4096
_MOST_DESCRIPTORS = 16


class ForkServerEnded(SteepError, RuntimeError):
    """The fork server ended before it forked a process."""

    exit_status = 1


class ForkedProcess:
    """A process that the fork server forked; used like `subprocess.Popen`."""

    def __init__(self, connection: socket.socket, stdin: IO[bytes]) -> None:
        self.stdin = stdin
        self._connection = connection
        self._status: int | None = None

    def fileno(self) -> int:
        """A descriptor that becomes readable when the process has ended."""
        return self._connection.fileno()

    def wait(self) -> int:
        """The exit status, negative for a signal; -SIGTERM when the server ended."""
        if self._status is None:
            received = self._connection.recv(_STATUS.size)
            self._status = _STATUS.unpack(received)[0] if received else -signal.SIGTERM
        return self._status

    def poll(self) -> int | None:
        """The exit status, or None while the process runs."""
        if self._status is None and not select.select([self._connection], [], [], 0)[0]:
            return None
        return self.wait()

    def kill(self) -> None:
        """Kill the process; `wait` returns when it is gone."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def __enter__(self) -> ForkedProcess:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.stdin.close()
        self.wait()
        self._connection.close()


class ForkServer:
    """The client's side of a fork server.

    Processes that are forked from this one can use the server too.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    @classmethod
    @contextlib.contextmanager
    def running(
        cls, modules: Sequence[str], environment: Mapping[str, str]
    ) -> Iterator[ForkServer]:
        """Start a server that imports ``modules`` (``module`` or ``module:function``) in this order.

        It imports them while nothing is asked of it, and those of a request before it forks. A module
        that cannot be imported is left to the process that needs it. The server ends with the context.
        """
        control, servers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with control:
            server = subprocess.Popen(
                [sys.executable, "-m", MODULE, __name__, str(servers.fileno()), *modules],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(servers.fileno(),),
                env={**environment, **child_environment()},
            )
            servers.close()
            try:
                yield cls(control)
            finally:
                server.kill()
                server.wait()

    def start(
        self,
        target: str,
        arguments: Sequence[str],
        *,
        modules: Sequence[str],
        environment: Mapping[str, str],
        output: int,
        extra: Sequence[int] = (),
    ) -> ForkedProcess:
        """Fork a process that calls ``target`` (``module:function``) with ``sys.argv[1:]`` set.

        The function returns the exit status. The server imports ``modules`` first. ``output`` is the
        descriptor for standard output and standard error. The files of ``extra`` have the descriptors
        `FIRST_EXTRA` and following in the process. Raises ForkServerEnded when the server is gone.
        """
        connection, servers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reading, writing = os.pipe()
        descriptors = [servers.fileno(), self._control.fileno(), reading, output, *extra]
        request = json.dumps(list(modules)).encode()
        try:
            socket.send_fds(self._control, [request], descriptors)
        except OSError as error:
            connection.close()
            os.close(writing)
            raise ForkServerEnded(f"the fork server has ended ({error}); run again") from None
        finally:
            servers.close()
            os.close(reading)
        stdin = os.fdopen(writing, "wb")
        start = {"environment": dict(environment), "target": target, "arguments": list(arguments)}
        with contextlib.suppress(BrokenPipeError):  # `wait` tells what became of the process
            stdin.write(json.dumps(start).encode() + b"\n")
            stdin.flush()
        return ForkedProcess(connection, stdin)


inherited: ForkServer | None = None  # the server that forked this process


@dataclass(frozen=True)
class _Child:
    process_id: int
    handle: int  # a descriptor that becomes readable when the process has ended
    connection: socket.socket


class _Server:
    """The loop of the server process."""

    def __init__(self, control: socket.socket, modules: Sequence[str]) -> None:
        self._control = control
        self._remaining = list(modules)
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        self._children: dict[int, _Child] = {}  # by process id

    def serve(self) -> int:
        """Fork processes until all clients have ended; returns the exit status of this process."""
        while True:
            events = self._selector.select(0 if self._remaining else None)
            if not events:
                _import(self._remaining.pop(0))
            for key, _ in events:
                if key.fileobj is self._control:
                    request, descriptors, _, _ = socket.recv_fds(
                        self._control, _LONGEST_REQUEST, _MOST_DESCRIPTORS
                    )
                    if not descriptors:
                        return 0
                    if self._fork(json.loads(request), descriptors) == 0:
                        _run_target(_take(descriptors[1:]))
                elif key.data.process_id in self._children:
                    self._ended(key.data, by_itself=key.fileobj == key.data.handle)

    def _fork(self, modules: Sequence[str], descriptors: Sequence[int]) -> int:
        """Fork after ``modules`` are imported; returns 0 in the new process, like ``os.fork``."""
        for name in modules:
            if name in self._remaining:
                self._remaining.remove(name)
            _import(name)
        gc.freeze()  # the collector of the new process does not touch, and so copy, these objects
        server = os.getpid()
        process_id = os.fork()
        if process_id == 0:
            die_with_parent(server)
            self._close()
            os.close(descriptors[0])
            return 0
        connection = socket.socket(fileno=descriptors[0])
        for descriptor in descriptors[1:]:
            os.close(descriptor)
        child = _Child(process_id, os.pidfd_open(process_id), connection)
        self._children[process_id] = child
        self._selector.register(child.handle, selectors.EVENT_READ, child)
        self._selector.register(child.connection, selectors.EVENT_READ, child)
        return process_id

    def _ended(self, child: _Child, *, by_itself: bool) -> None:
        """Tell the client that a process has ended; kill it first when the client is gone."""
        if not by_itself:
            os.kill(child.process_id, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child.process_id, 0)[1])
        with contextlib.suppress(OSError):
            child.connection.send(_STATUS.pack(status))
        del self._children[child.process_id]
        for source in (child.handle, child.connection):
            self._selector.unregister(source)
        os.close(child.handle)
        child.connection.close()

    def _close(self) -> None:
        """Close, in a forked process, what belongs to the server."""
        self._selector.close()
        self._control.close()
        for child in self._children.values():
            os.close(child.handle)
            child.connection.close()


def _import(name: str) -> None:
    module, _, function = name.partition(":")
    with contextlib.suppress(Exception):  # the process that needs it fails again, and says why
        imported = importlib.import_module(module)
        if function:
            getattr(imported, function)()


def _take(descriptors: Sequence[int]) -> int:
    """Give the descriptors of a request their places; returns that of the server's socket.

    They are the server's socket, input, output, and extra files.
    """
    control, reading, output, *extra = [_above(descriptor) for descriptor in descriptors]
    for target, descriptor in enumerate([reading, output, output, *extra]):
        os.dup2(descriptor, target)  # inheritable, like the files of a new program
    for descriptor in (reading, output, *extra):
        os.close(descriptor)
    return control


def _above(descriptor: int) -> int:
    """The same file under a number that no descriptor of `_take` is moved to; not inheritable."""
    import fcntl

    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FIRST_EXTRA + _MOST_DESCRIPTORS)
    os.close(descriptor)
    return moved


def _run_target(control: int) -> NoReturn:
    """Call the function that standard input names, in a forked process, and end with the status it returns.

    ``control`` is the descriptor of the server's socket.
    """
    from pipeline.run import fork_server  # this module runs as __main__

    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin = os.fdopen(0, "r", encoding="utf-8", closefd=False)
    start: dict[str, Any] = json.loads(sys.stdin.readline())
    os.environ.clear()
    os.environ.update(start["environment"])
    fork_server.inherited = ForkServer(socket.socket(fileno=control))
    _set_threads()
    module, _, function = start["target"].partition(":")
    sys.argv = [module, *start["arguments"]]
    _end(getattr(importlib.import_module(module), function)())


def _end(status: int) -> NoReturn:
    """End a forked process as `multiprocessing` does, without freeing what it shares with the server.

    Python's own end collects all inherited objects, which takes 2.5 s once vLLM and TRL are loaded. A
    function that is called here closes its files itself, because an open one is not flushed.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a stream that was closed
            stream.flush()
    os._exit(status)


def _set_threads() -> None:
    """Give the loaded libraries as many threads as a new process would start with."""
    threads = int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0)))
    if "threadpoolctl" in sys.modules or "torch" in sys.modules:
        from threadpoolctl import threadpool_limits

        threadpool_limits(threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


def main() -> int:
    """Entry point of the server: the descriptor of its socket, then the modules to import."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the stage tells about an interruption
    descriptor, *modules = sys.argv[1:]
    control = socket.socket(fileno=int(descriptor))
    control.set_inheritable(False)
    return _Server(control, modules).serve()


if __name__ == "__main__":
    sys.exit(main())
