"""Reading the columns of units' tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray


def rows_of(tables: Sequence[Any], method: str) -> Any:
    """The rows of a method in some units, in order of position."""
    table = pa.concat_tables(tables)
    chosen = table.filter(compute().equal(table["method"], method)).sort_by("position")
    return chosen.combine_chunks()


def compute() -> Any:
    """pyarrow's functions on columns."""
    import pyarrow.compute  # type: ignore[import-untyped]

    return pyarrow.compute


def flat(column: Any) -> NDArray[Any]:
    """The values of a column of lists, one list after the other."""
    values: NDArray[Any] = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return values


def matrix(column: Any) -> NDArray[Any]:  # → (rows, K)
    """A column of lists that are equally long."""
    values = flat(column)
    return values.reshape(len(column), -1) if len(column) else values.reshape(0, 0)


def owners(column: Any, rows: NDArray[Any]) -> NDArray[Any]:
    """For every value of a column of lists, what ``rows`` holds for its row."""
    lengths = column.combine_chunks().value_lengths().to_numpy(zero_copy_only=False)
    return np.repeat(rows, lengths)
