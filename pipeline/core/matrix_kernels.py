"""Give float32 products the same last bits in every process.

MKL chooses its kernels by the number of threads and the place of a matrix in memory, unless an environment
variable forbids it. It reads the variable at its first product.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping

_VARIABLE, _STRICT = "MKL_CBWR", "AUTO,STRICT"


def kernel_variables(inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables with which products are equal with any number of threads; those of the user come first."""
    return {_VARIABLE: inherited.get(_VARIABLE, _STRICT)}


def choose_kernels(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables in this process. Call it before the first product of matrices.

    Stages get them with their lease. Commands and the Python interface, which call the same functions, do not.
    """
    environment.update(kernel_variables(environment))
