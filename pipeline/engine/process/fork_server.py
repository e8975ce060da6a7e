"""A process that has imported heavy packages and forks the processes of stages.

Importing vLLM, TRL or sentence-transformers takes ten to twenty seconds of CPU time in a new
process, twice the work of a small run's stages. The fork server imports them once per run, while
other stages run, and a process that it forks starts with the packages loaded. When it has imported
everything, it forks the processes of light stages too. It works on Linux
only, and only without a GPU, because CUDA does not survive a fork. The server computes nothing and
has a single thread, so that a forked process starts clean.

`multiprocessing` has a fork server too, but it serves only the process that started it, and the
process of a stage starts the processes of a training. A process of this server ends with the
server, or when the connection of its client closes.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, NoReturn

from pipeline.engine.process.process import die_with_parent, start_module

_STATUS = struct.Struct("i")
_LONGEST_REQUEST, _MOST_DESCRIPTORS = 4096, 8


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
        ended = self._status is not None or select.select([self._connection], [], [], 0)[0]
        return self.wait() if ended else None

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


@dataclass(frozen=True)
class ForkServer:
    """The client of a fork server; processes that are forked from the client can use it too.

    The server imports ``modules`` before it forks.
    """

    control: socket.socket
    modules: Sequence[str] = ()

    @property
    def ready(self) -> bool:
        """Whether a process starts sooner from the server than as a new one."""
        return bool(self.modules or select.select([self.control], [], [], 0)[0])

    @classmethod
    @contextlib.contextmanager
    def running(
        cls, modules: Sequence[str], environment: Mapping[str, str]
    ) -> Iterator[ForkServer]:
        """Start a server, which ends with the context.

        It imports ``modules`` (``module`` or ``module:function``) in this order while it has no
        requests. When a module cannot be imported, the process that needs it reports the error.
        """
        control, servers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with control, servers:
            ends = servers.fileno(), control.fileno()
            nothing = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            given = (*ends, *modules)
            server = start_module(__name__, given, environment, pass_fds=ends, **nothing)
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
        environment: Mapping[str, str],
        output: int,
        extra: Sequence[int] = (),
    ) -> ForkedProcess:
        """Fork a process that calls ``target`` (``module:function``) and exits with its result.

        The process gets ``arguments`` as ``sys.argv[1:]``, and its descriptors of the files
        ``extra``. ``output`` is the descriptor for standard output and standard error. Raises
        OSError when the server is gone.
        """
        connection, servers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reading, writing = os.pipe()
        stdin = os.fdopen(writing, "wb")
        try:
            descriptors = [servers.fileno(), reading, output, *extra]
            socket.send_fds(self.control, ["\n".join(self.modules).encode()], descriptors)
        except OSError:
            connection.close()
            stdin.close()
            raise
        finally:
            servers.close()
            os.close(reading)
        start = {"environment": dict(environment), "target": target, "arguments": list(arguments)}
        with contextlib.suppress(BrokenPipeError):  # `wait` tells how the process ended
            stdin.write(json.dumps(start).encode() + b"\n")
            stdin.flush()
        return ForkedProcess(connection, stdin)


inherited: ForkServer | None = None  # the server that forked this process


def main() -> int:
    """Entry point of the server: descriptors of both ends of its socket, then the modules."""
    interrupted = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the stage reports an interruption
    servers, control = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    remaining = sys.argv[3:]
    for end in (servers, control):
        end.set_inheritable(False)
    while True:
        if remaining and not select.select([servers], [], [], 0)[0]:
            _import(remaining.pop(0))
            if not remaining:
                servers.send(b"ready")  # stays unread, for every process with the other end
            continue
        request, descriptors, _, _ = socket.recv_fds(servers, _LONGEST_REQUEST, _MOST_DESCRIPTORS)
        for name in request.decode().split():
            _import(name)
        gc.freeze()  # the collector of a forked process then copies none of these objects
        server = os.getpid()
        if os.fork() == 0:
            die_with_parent(server)
            servers.close()
            _guard(descriptors, control, interrupted)
        for descriptor in descriptors:
            os.close(descriptor)


def _import(name: str) -> None:
    module, _, function = name.partition(":")
    with contextlib.suppress(Exception):  # the process that needs it reports the error
        imported = importlib.import_module(module)
        if function:
            getattr(imported, function)()


def _guard(descriptors: Sequence[int], control: socket.socket, interrupted: Any) -> NoReturn:
    """Fork the process, kill it when its client is gone, and tell the client its exit status."""
    guard, process = os.getpid(), os.fork()
    if process == 0:
        die_with_parent(guard)
        os.close(descriptors[0])
        _run_target(descriptors[1:], control, interrupted)
    for descriptor in descriptors[1:]:
        os.close(descriptor)
    client, ended = socket.socket(fileno=descriptors[0]), os.pidfd_open(process)
    if ended not in select.select([ended, client.fileno()], [], [])[0]:
        os.kill(process, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    with contextlib.suppress(OSError):
        client.send(_STATUS.pack(status))
    os._exit(0)


def _run_target(descriptors: Sequence[int], control: socket.socket, interrupted: Any) -> NoReturn:
    """Call the function that standard input names, and end with the status that it returns.

    ``descriptors`` are standard input, output, and extra files. ``interrupted`` handles SIGINT as
    in a new process, which ignores it like the background job of a script that started the run.
    """
    from pipeline.engine.process import fork_server  # this module runs as __main__

    reading, output, *extra = descriptors
    for descriptor, target in ((reading, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, target)
    os.close(reading)
    os.close(output)
    signal.signal(signal.SIGINT, interrupted)
    sys.stdin = os.fdopen(0, "r", encoding="utf-8", closefd=False)
    start = json.loads(sys.stdin.readline())
    os.environ.clear()
    os.environ.update(start["environment"])
    fork_server.inherited = ForkServer(control)
    _set_threads()
    module, _, function = start["target"].partition(":")
    sys.argv = [module, *start["arguments"], *map(str, extra)]
    _end(getattr(importlib.import_module(module), function)())


def _end(status: int) -> NoReturn:
    """End a forked process as `multiprocessing` does, without freeing shared objects.

    Python's own end collects all inherited objects, which takes 2.5 s once vLLM and TRL are loaded.
    A function that is called here closes its files itself, because an open one is not flushed.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads except daemons
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


if __name__ == "__main__":
    sys.exit(main())
