"""The kind of the file system that holds a directory, from Linux's list of mounts."""

from __future__ import annotations

from pathlib import Path

_MOUNTS = Path("/proc/self/mounts")
# Kinds that several machines mount, on which SQLite's locks and shared memory are not to be trusted.
NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "lustre", "beegfs", "gpfs", "ceph", "fuse.ceph", "fuse.sshfs"}
    | {"fuse.glusterfs", "glusterfs", "panfs", "9p", "afs", "orangefs", "wekafs", "fuse.juicefs"}
)


def kind_of(path: Path, mounts: Path = _MOUNTS) -> str | None:
    """Such as "ext4" or "nfs4", of ``path`` or of the directory that will hold it; None without the list."""
    try:
        lines = mounts.read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    kinds = {}
    for line in lines:
        _, place, kind, *_ = line.split(" ")
        kinds[Path(place.replace("\\040", " "))] = kind  # a later mount hides an earlier one
    resolved = path.resolve()
    return next((kinds[at] for at in (resolved, *resolved.parents) if at in kinds), None)
