"""Cut the values of a feature into bins, by public numbers alone.

An edge that followed from a site's data would be a release of its own, so edges come from the
column's declared bounds, or stand in the job file: what the columns mean, or quantiles that an
earlier statistics job released and paid for.

Bin b of a feature with E edges holds the values from edge b - 1 up to, but without, edge b; the
first and the last bin are open, so no value lies outside. Missing values have bin E + 1 for
themselves. Edges are float32, as values are: "bin <= b" and "value < edge b" say the same, and the
latter is how XGBoost states a split.

Shapes: N = records, F = features.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tidegate.schema import INTEGER, Column

Edges = tuple[float, ...]
"""Strictly increasing, each exactly a float32; possibly none."""

MAX_BINS = 256


def equal_edges(column: Column, bins: int) -> Edges:
    """Cut a bounded column into bins of equal width.

    Whole numbers that have a bin each are cut half-way between them.

    Args:
        column: With public bounds.
        bins: The most bins.
    """
    low, high = _bounds(column)
    whole = column.levels is not None or column.dtype == INTEGER
    if whole and high - low < bins:
        return as_edges(np.arange(np.ceil(low), np.floor(high)) + 0.5)
    return as_edges(np.linspace(low, high, bins + 1)[1:-1])


def log_edges(column: Column, bins: int) -> Edges:
    """Cut a bounded column into bins of equal width in log(1 + value - low): for long tails."""
    low, high = _bounds(column)
    return as_edges(low + np.expm1(np.linspace(0.0, np.log1p(high - low), bins + 1)[1:-1]))


def as_edges(values: Sequence[float] | NDArray[np.floating]) -> Edges:
    """Round edges to float32; those that become equal are one edge."""
    return tuple(np.unique(np.asarray(values, dtype=np.float32)).astype(float).tolist())


def width_of(edges: Edges) -> int:
    """Give the bins of a feature, the one for missing values counted."""
    return len(edges) + 2


def bin_values(values_NF: NDArray[np.float32], edges: Sequence[Edges]) -> NDArray[np.uint16]:
    """Give the bin of each value.

    Args:
        values_NF: float32, NaN where a value is missing; infinities are values.
        edges: Of each of the F features.

    Returns:
        Bins, uint16, shape (N, F), one feature's bins lying together in memory.
    """
    bins_NF = np.empty(values_NF.shape, dtype=np.uint16, order="F")
    for feature, cuts in enumerate(edges):
        values_N = values_NF[:, feature]
        bins_N = np.searchsorted(np.asarray(cuts, dtype=np.float32), values_N, side="right")
        bins_NF[:, feature] = np.where(np.isnan(values_N), len(cuts) + 1, bins_N)
    return bins_NF


def _bounds(column: Column) -> tuple[float, float]:
    return float(column.low or 0.0), float(column.high or 0.0)
