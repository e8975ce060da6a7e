"""Give float32 products the same last bits in every process.

MKL chooses its kernels by the number of threads and the place of a matrix in memory, unless a variable of the environment
forbids it. It reads the variable at its first product.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping

_VARIABLE, _STRICT = "MKL_CBWR", "AUTO,STRICT"


def kernel_variables(inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of a process whose products are equal with any number of threads; the user's have precedence."""
    return {_VARIABLE: inherited.get(_VARIABLE, _STRICT)}


def choose_kernels(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set them in this process, for stages' functions that run outside a stage; call it before the first product."""
    environment.update(kernel_variables(environment))
