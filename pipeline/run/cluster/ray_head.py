"""Ray for the time of one run: the slots of the run and, without an address, a cluster of this machine.

The argument is the address of a cluster, or ``local`` to start one. Prints the address and the namespace of the slots
(`pipeline.run.cluster.ray_slots`) on standard output, and ends when standard input does or its parent dies. The slots
end with it. It is a process of its own because Luigi forks its workers, which a process with Ray's threads does
not survive.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import sys
from typing import Any

from pipeline.run.cluster.ray_slots import NAME, Slots

_CLOSE_SECONDS = 10.0  # for the engines of the slots
_HEAD_NODE = "node:__internal_head__"  # Ray's resource of the head


def main() -> int:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    def stop(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    address, namespace = sys.argv[1], f"steep-{secrets.token_hex(8)}"
    own: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    answers = os.dup(1)  # Ray prints on standard output
    os.dup2(2, 1)
    context = ray.init(address=address, namespace=namespace, logging_level="error", **own)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run ends it
    try:
        # On the head of the cluster, without which there is no cluster.
        slots = (
            ray.remote(Slots).options(name=NAME, num_cpus=0, resources={_HEAD_NODE: 0.001}).remote()
        )
        answer = {"address": context.address_info["gcs_address"], "namespace": namespace}
        os.write(answers, f"{json.dumps(answer)}\n".encode())
        sys.stdin.read()
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(slots.make_room.remote(), timeout=_CLOSE_SECONDS)
    finally:
        ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
