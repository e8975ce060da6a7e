"""The machines on which one stage trains, as an executor tells its process."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

_VARIABLE = "STEEP_MACHINES"
ENDED = "ended"  # the file that tells the other machines that the stage has ended


@dataclass(frozen=True)
class Machines:
    """The machines of a stage that trains on several.

    ``count`` is their number and ``rank`` that of this machine, from 0. ``folder`` is a shared directory of this
    attempt, and ``address`` a name or IP address of this machine that the others can reach.
    """

    count: int
    rank: int
    folder: str
    address: str

    def as_environment(self) -> dict[str, str]:
        """The environment variable with which a process reads it (`machines_here`)."""
        return {_VARIABLE: json.dumps(asdict(self))}


def machines_here() -> Machines | None:
    """The machines of the stage of this process; None when it has only this one."""
    text = os.environ.get(_VARIABLE)
    return None if text is None else Machines(**json.loads(text))
