"""Array types of this package."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


def floats(values: ArrayLike) -> FloatArray:
    """A flat float array."""
    return np.asarray(values, dtype=np.float64).ravel()
