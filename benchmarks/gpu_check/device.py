"""One GPU for the check: the first GPU that this process may use and that no run holds.

Every part measures a single GPU. With several, the processes of the parts would see all of them,
and ``Trainer`` would wrap models in ``nn.DataParallel``, which TRL refuses. Nothing heavy is
imported.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.core.errors import DependencyError, StoreError
from pipeline.core.gpus import BY_ADDRESS, ORDER, VISIBLE, allotted, listed, usable
from pipeline.run.failures import explain_os_error
from tasks.execution.leases import lock_dir, lock_files, take


@contextmanager
def one_gpu() -> Iterator[dict[str, str]]:
    """Hold a free GPU; yields environment variables that show processes only this GPU.

    They are empty if no GPU is known. Raises DependencyError that names the GPUs when other runs
    hold them all, and StoreError when the lock files cannot be opened.
    """
    uuids, names = listed(), allotted()
    names = tuple(map(str, range(len(uuids)))) if names is None else usable(names, uuids)
    if not uuids or not names:
        yield {}
        return
    folder = lock_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = take(lock_files(names, folder), 1, folder)
    except OSError as error:
        raise StoreError(explain_os_error(error, folder)) from None
    if not taken:
        held = f"GPU {names[0]} is" if len(names) == 1 else f"GPUs {', '.join(names)} are"
        raise DependencyError(
            f"{held} held by other runs on this machine ({folder}); wait for their end, or choose "
            f"another GPU with {VISIBLE}"
        )
    ((name, descriptor),) = taken.items()
    try:
        yield {VISIBLE: name, ORDER: os.environ.get(ORDER, BY_ADDRESS)}
    finally:
        os.close(descriptor)
