"""Whether a directory is on a network file system, by the table of mounts of Linux.

Other systems have no such table, so their directories count as local.
"""

from __future__ import annotations

import os
from pathlib import Path

_MOUNTS = Path("/proc/self/mounts")
_NETWORK = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "afs",
     "orangefs", "pvfs2", "panfs", "wekafs", "ocfs2", "gfs2", "9p")
)  # fmt: skip
_NETWORK_FUSE = ("glusterfs", "sshfs", "juicefs", "s3fs", "ceph", "gcsfuse", "rclone", "lustre")


def on_network(path: Path, mounts: Path | None = None) -> bool:
    """Whether ``path``, which need not exist, is on a network file system."""
    try:
        lines = (mounts or _MOUNTS).read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return False
    real = os.path.realpath(path)
    longest, kind = "", ""
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(longest):  # a later mount hides an earlier one
            longest, kind = point, fields[2]
    name, _, below = kind.partition(".")
    return kind in _NETWORK or (name == "fuse" and below in _NETWORK_FUSE)
