"""Means over what is known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def mean_of_known(values: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
    """The mean along an axis, NaN passed over; NaN where nothing is known."""
    known = ~np.isnan(values)
    total, number = np.where(known, values, 0).sum(axis=axis), known.sum(axis=axis)
    mean: NDArray[np.float64] = np.divide(
        total, number, out=np.full(np.shape(total), np.nan), where=number > 0
    )
    return mean
