"""Environment variables with which a process computes with a number of CPU threads.

PyTorch, FAISS, NumPy and the CPU build of vLLM read them when they are imported.
"""

from __future__ import annotations

from collections.abc import Mapping

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_VLLM_BINDING = "VLLM_CPU_OMP_THREADS_BIND"


def thread_variables(threads: int, inherited: Mapping[str, str]) -> dict[str, str]:
    """The variables of a process with ``threads``; a number that the user has exported is an upper bound."""
    variables = {name: str(_bounded(threads, inherited, name)) for name in VARIABLES}
    # The worker processes of vLLM on a CPU would otherwise all choose the same cores, and as many threads as
    # there are cores.
    variables[_VLLM_BINDING] = inherited.get(_VLLM_BINDING, "nobind")
    return variables


def _bounded(threads: int, inherited: Mapping[str, str], name: str) -> int:
    exported = inherited.get(name, inherited.get(VARIABLES[0], "")).partition(",")[0]
    return min(threads, int(exported)) if exported.isdecimal() and int(exported) else threads
