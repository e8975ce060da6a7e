"""A Ray cluster of this machine, for one run.

Prints its address on standard output, and ends when standard input does or its parent dies. It is a process of
its own because Luigi forks its workers, which a process with Ray's threads does not survive.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any


def main() -> int:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    def stop(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    answers = os.dup(1)  # Ray prints on standard output
    os.dup2(2, 1)
    context = ray.init(address="local", include_dashboard=False, logging_level="error")
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run ends it
    try:
        os.write(answers, f"{context.address_info['gcs_address']}\n".encode())
        sys.stdin.read()
    finally:
        ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
