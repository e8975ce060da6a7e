"""Environment variables of processes that compute: CPU threads, MKL's kernels, the allocator.

PyTorch, FAISS, NumPy and the CPU build of vLLM read the numbers of threads when they are imported.
MKL chooses its kernels by the number of threads and the place of a matrix in memory, unless a
variable forbids it; it reads the variable at its first product.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_VLLM_BINDING = "VLLM_CPU_OMP_THREADS_BIND"


def thread_variables(threads: int, inherited: Mapping[str, str]) -> dict[str, str]:
    """The variables of a process with ``threads``; numbers that users export are upper bounds."""
    variables = {name: str(_bounded(threads, inherited, name)) for name in VARIABLES}
    # The worker processes of vLLM on a CPU would otherwise all choose the same cores, and as many
    # threads as there are cores.
    variables[_VLLM_BINDING] = inherited.get(_VLLM_BINDING, "nobind")
    return variables


def _bounded(threads: int, inherited: Mapping[str, str], name: str) -> int:
    exported = inherited.get(name, inherited.get(VARIABLES[0], "")).partition(",")[0]
    return min(threads, int(exported)) if exported.isdecimal() and int(exported) else threads


_VARIABLE, _STRICT = "MKL_CBWR", "AUTO,STRICT"


def kernel_variables(inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables that make products equal for every number of threads; the user's values win."""
    return {_VARIABLE: inherited.get(_VARIABLE, _STRICT)}


def choose_kernels(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables in this process. Call it before the first product of matrices.

    Stages get the variables with their lease. Commands and the Python interface call the same
    functions without a lease.
    """
    environment.update(kernel_variables(environment))


# By default glibc returns every freed tensor to the kernel, which clears the pages again on the
# next allocation; that takes a sixth of the training time on two cores. Only variables that are set
# before a process starts take effect.
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(4 * 2**30),
    "MALLOC_TRIM_THRESHOLD_": str(8 * 2**30),
    "MALLOC_TOP_PAD_": str(64 * 2**20),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
