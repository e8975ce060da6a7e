"""Leases of GPUs and CPU threads, which a stage's process may use while it runs.

Input: the resources of a run (`Capacity`) and the needs of a stage (`pipeline.engine.needs`).
Output: the environment of the stage's process. Within a run Luigi's scheduler counts GPUs and
threads (`pipeline.engine.run`). Between runs on one machine devices are leased by locks on files,
one for each device. The kernel releases a lock when its process ends, so a kill leaves nothing
behind. The files are in ``/run/lock``, the machine's directory for locks, which is always on a
local file system and is the same for every user and checkout, or in ``/tmp`` where that cannot be
written; ``STEEP_LOCK_DIR`` names another one, for example for containers that share GPUs.
"""

from __future__ import annotations

import fcntl
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.config import Config
from pipeline.core.errors import ConfigError, StoreError
from pipeline.core.gpus import (
    BY_ADDRESS,
    ORDER,
    VISIBLE,
    allotted,
    identity,
    listed,
    torch_for_cpus,
    usable,
)
from pipeline.core.process_variables import kernel_variables, thread_variables
from pipeline.engine.opened import Needs
from pipeline.engine.process.process import HELD

LOCK_DIR = "STEEP_LOCK_DIR"
_POLL = 0.5  # seconds between two attempts while another run holds the devices


@dataclass(frozen=True)
class Lease:
    """The resources that one stage has: devices by name, and CPU threads for each process.

    ``devices`` is None if they are unknown. ``held`` are the lock files of its devices.
    """

    devices: tuple[str, ...] | None = None
    threads: int | None = None
    held: tuple[Path, ...] = ()

    def environment(self, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
        """The environment variables of the stage's process.

        A number of threads that the user has exported is an upper bound.
        """
        variables: dict[str, str] = {}
        if self.devices is not None:
            variables[VISIBLE] = ",".join(self.devices)  # empty: the stage sees no device
            variables[ORDER] = inherited.get(ORDER, BY_ADDRESS)  # indices follow the driver's order
        if self.held:
            variables[HELD] = os.pathsep.join(map(str, self.held))
        if self.threads is not None:
            variables |= thread_variables(self.threads, inherited)
        return variables | kernel_variables(inherited)


NO_LEASE = Lease()


@dataclass(frozen=True)
class Capacity:
    """The resources that the stages of a run share.

    Attributes:
        gpus: devices that a stage can have; if the setting is 0, all devices.
        at_once: devices that Luigi's scheduler counts; with 0 they are not counted. If the setting
            is 0, this is 1 on a machine with GPUs: stages that use a GPU run one at a time.
        devices: names of the devices to choose from.
        threads: CPU threads.
        workers: stages that run at once, at most.
    """

    gpus: int
    at_once: int
    devices: tuple[str, ...]
    threads: int
    workers: int

    @classmethod
    def of(
        cls,
        settings: Config,
        workers: int | None = None,
        *,
        environment: Mapping[str, str] = os.environ,
        present: tuple[str, ...] | None = None,
    ) -> Capacity:
        """The capacity of a run; ``workers`` replaces the setting.

        On a cluster ``gpus`` may be more than this machine has.
        ``present`` are the UUIDs of the machine's GPUs. Raises ConfigError when ``gpus`` is more
        than the run is allotted.
        """
        names, gpus = allotted(environment), settings.gpus
        if gpus and settings.execution.kind != "local":
            names, present = None, ()
        if present is None and not gpus and torch_for_cpus():
            present = ()  # stages compute on the CPU, even on a machine with GPUs
        uuids = listed() if present is None else present
        if names is not None:
            names = usable(names, uuids)
        there = uuids if names is None else names
        if gpus > len(there) and (uuids or names is not None):
            allots = "this machine has" if names is None else f"{VISIBLE} allots"
            raise ConfigError(
                f"gpus is {gpus}, and {allots} {len(there) or 'none'}; set gpus to at most "
                f"{len(there)}, or allot more devices"
            )
        if names is None:
            names = tuple(map(str, range(gpus or len(uuids))))
        if not gpus and not uuids:
            names = ()  # the variable may be set on a machine without a GPU
        if workers is None:
            workers = settings.workers or (gpus + 1 if gpus else 1)
        threads = settings.threads or max(cores(), workers)
        return cls(gpus or len(names), gpus or min(len(names), 1), names, threads, workers)

    def threads_for(self, processes: int) -> int:
        """The CPU threads that a stage takes: its share, at least one for each process."""
        return min(self.threads, max(processes, self.threads // self.workers))


def cores() -> int:
    """The processor cores of this process; two hardware threads of a core count once."""
    cpus = os.sched_getaffinity(0)
    return min(len({_siblings(cpu) for cpu in cpus}), quota())


def quota(folder: Path = Path("/sys/fs/cgroup")) -> int:
    """The cores whose time a container may use, rounded up; without a limit more than there are."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with suppress(OSError, ValueError):  # another version of cgroups, or no limit: max
            texts = " ".join((folder / name).read_text() for name in names)
            allowed, period = map(int, texts.split())
            if allowed > 0:
                return math.ceil(allowed / period)
    return sys.maxsize


def _siblings(cpu: int) -> str:
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return path.read_text()
    except OSError:  # not in every container
        return str(cpu)


@contextmanager
def held(capacity: Capacity | None, needs: Needs, waits: Callable[[str], None]) -> Iterator[Lease]:
    """Hold the lease of a stage with these needs; an empty one without ``capacity``.

    While other runs on this machine hold the devices, this waits, and ``waits`` is called once with
    a line about it. Raises StoreError when the lock files cannot be opened.
    """
    if capacity is None:
        yield NO_LEASE
        return
    gpus = min(needs.gpus, capacity.gpus)
    threads = max(1, capacity.threads_for(needs.threads) // needs.threads)
    if not gpus:
        yield Lease(() if capacity.devices else None, threads)
        return
    taken: dict[str, int] = {}
    folder, told = lock_dir(), False
    try:
        files = lock_files(capacity.devices, folder)
        folder.mkdir(parents=True, exist_ok=True)
        while len(taken := take(files, gpus, folder)) < gpus:
            _release(taken)
            if not told:
                busy = ", ".join(name for name in files if name not in taken)
                number = f"{gpus} GPU{'s' * (gpus > 1)}"
                waits(f"waits for {number}: another run on this machine holds {busy} ({folder})")
                told = True
            time.sleep(_POLL)
    except OSError as error:
        raise StoreError(
            f"{error.filename or folder}: {error.strerror}; every user of the GPUs must be able to "
            f"create files in this folder; set {LOCK_DIR} to another one"
        ) from None
    try:
        names = tuple(taken) if capacity.devices else None
        yield Lease(names, threads, tuple(files[name] for name in taken))
    finally:
        _release(taken)


def _release(taken: Mapping[str, int]) -> None:
    for descriptor in taken.values():
        os.close(descriptor)


def lock_dir() -> Path:
    """The directory of the lock files of devices."""
    if named := os.environ.get(LOCK_DIR):
        return Path(named)
    standard = Path("/run/lock")
    # TMPDIR would hide the locks of a run with another one.
    return standard if os.access(standard, os.W_OK | os.X_OK) else Path("/tmp")


def lock_files(names: Iterable[str], folder: Path) -> dict[str, Path]:
    """The lock file of each device; an index and the UUID of one device have the same file."""
    uuids = listed()
    # Names of MIG devices may have slashes: MIG-GPU-<UUID>/<GPU instance>/<compute instance>.
    files = {name: identity(name, uuids).replace("/", "-") for name in names}
    return {name: folder / f"steep-gpu-{file}.lock" for name, file in files.items()}


def take(files: Mapping[str, Path], count: int, folder: Path) -> dict[str, int]:
    """Open descriptors of up to ``count`` free devices by name, with a lock on each.

    The lock is shared, because the processes of the stage hold it too
    (`pipeline.engine.process.process`): a device is free when none of them is left. A second lock
    makes processes take their turn.
    """
    turn = _open(folder / "steep-gpus.lock")
    try:
        fcntl.flock(turn, fcntl.LOCK_EX)
        taken: dict[str, int] = {}
        for name, path in files.items():
            if len(taken) == count:
                break
            descriptor = _open(path)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            except BlockingIOError:
                os.close(descriptor)
            else:
                taken[name] = descriptor
        return taken
    finally:
        os.close(turn)


def _open(path: Path) -> int:
    """Open a lock file for reading, which suffices for a lock on another user's file."""
    with suppress(FileExistsError):
        made = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        os.fchmod(made, 0o644)  # for other users, whatever the umask
        os.close(made)
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
