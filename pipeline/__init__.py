"""steep: teach language models to search well, offline.

The flow, one stage per step, each cached on disk (``pipeline.engine.store``, chained in
``tasks/``)::

    corpus -> graph -> index -+
    sft-data -> sft ----------+-> round 1: sample -> score -> pair -> train -> round 2 ...
                              -> evaluate -> report

``steep --help`` lists the commands. ``Run``, ``Policy`` and ``compare_runs`` are the Python
interface (`pipeline.api`). ``docs/paper_index.md`` lists the function that computes each equation
of the papers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.api import Policy, Run, compare_runs

__version__ = "0.2.0"
__all__ = ["Policy", "Run", "__version__", "compare_runs"]


def __getattr__(name: str) -> Any:
    """Import the Python interface when it is first used; the command line does not need it."""
    if name in ("Policy", "Run", "compare_runs"):
        from pipeline import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
