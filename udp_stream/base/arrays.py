"""Names of arrays, for columns of numbers."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]
Cells: TypeAlias = NDArray[np.uint64]
"""Cells by their numbers in a grid."""

NO_INTEGERS: Integers = np.zeros(0, np.int64)
