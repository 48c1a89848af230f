"""Lay out the sums that describe columns: one vector, the same at the sites and at the aggregator.

One cell counts the records. Each column has a histogram, in which a record is in exactly one cell,
and, where it has no levels, two sums: of its value t, scaled to [-1, 1] by the public bounds and
cut there, and of t^2. A record whose value is missing is in the histogram's last cell and in
neither sum. So a record moves the vector by at most sqrt(1 + columns + 2 * columns without levels)
in L2, which is public: one release, one charge.

The cells of a histogram, in order: values below ``low``; equal bins from ``low`` to ``high``, the
bounds included; values above ``high``; missing. With levels: one cell a level, what is no level,
missing. What lies outside the bounds is counted there and not in the edge bins, so that a bound
that does not fit the data shows.

The job's model is that vector with one number more, the standard deviation of the noise in every
coordinate, so that whoever reads the sums later knows how far to trust them.

Shapes: U = coordinates of the vector, K = ranges that a record adds to, N = records.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from privacy.spec import TensorSpec, VectorSpec
from tidegate.schema import Column, Schema

RECORDS = "records"
NOISE = "noise_std"

_HISTOGRAM = "histogram"
_MOMENTS = "moments"


@dataclass(frozen=True)
class ColumnLayout:
    """The cells of one column.

    Attributes:
        column: With public bounds.
        bins: Bins between the bounds, or levels.
    """

    column: Column
    bins: int

    @property
    def has_moments(self) -> bool:
        """Say whether values are summed; those of levels follow from the histogram."""
        return self.column.levels is None

    @property
    def cells(self) -> int:
        """Return how many cells the histogram has."""
        return self.bins + (3 if self.has_moments else 2)

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """Return the column's parts of the vector."""
        histogram = TensorSpec(f"{self.column.name}/{_HISTOGRAM}", (self.cells,))
        moments = TensorSpec(f"{self.column.name}/{_MOMENTS}", (2,))
        return (histogram, moments) if self.has_moments else (histogram,)

    @property
    def bounds(self) -> tuple[float, float]:
        """Return the public bounds."""
        return float(self.column.low or 0.0), float(self.column.high or 0.0)

    @property
    def edges(self) -> NDArray[np.float64]:
        """Return the bounds of the bins, shape (bins + 1,), or the levels, shape (bins,)."""
        low, high = self.bounds
        return np.linspace(low, high, self.bins + 1 if self.has_moments else self.bins)

    def cell_of(self, values_N: NDArray[np.float64]) -> NDArray[np.int64]:
        """Give the histogram's cell of each value; NaN is missing."""
        low, high = self.bounds
        known_N = np.where(np.isnan(values_N), low, values_N)
        inside_N = np.clip(known_N, low, high)
        if not self.has_moments:
            cell_N = np.rint(inside_N - low).astype(np.int64)
            cell_N[inside_N != known_N] = self.bins
            cell_N[inside_N != np.rint(inside_N)] = self.bins
        else:
            place_N = np.floor((inside_N - low) * (self.bins / (high - low)))
            cell_N = np.minimum(place_N.astype(np.int64), self.bins - 1) + 1
            cell_N[known_N < low] = 0
            cell_N[known_N > high] = self.bins + 1
        cell_N[np.isnan(values_N)] = self.cells - 1
        return cell_N

    def scaled(self, values_N: NDArray[np.float64]) -> NDArray[np.float64]:
        """Scale values to [-1, 1] by the public bounds; NaN stays."""
        low, high = self.bounds
        return (np.clip(values_N, low, high) - (low + high) / 2) * (2 / (high - low))


@dataclass(frozen=True)
class StatisticsLayout:
    """The whole vector.

    Attributes:
        schema: Single numbers with public bounds only.
        bins: Histogram bins of a column without levels.
    """

    schema: Schema
    bins: int

    @cached_property
    def columns(self) -> tuple[ColumnLayout, ...]:
        """Return the layout of each column, in the order of the schema."""
        return tuple(
            ColumnLayout(column, self.bins if column.levels is None else column.levels)
            for column in self.schema.columns
        )

    @cached_property
    def spec(self) -> VectorSpec:
        """Return the spec of the summed vector."""
        parts = [tensor for column in self.columns for tensor in column.tensors]
        return VectorSpec((TensorSpec(RECORDS, (1,)), *parts))

    @cached_property
    def model_spec(self) -> VectorSpec:
        """Return the spec of the job's model: the sums, then the noise."""
        return VectorSpec((*self.spec.tensors, TensorSpec(NOISE, (1,))))

    @cached_property
    def widths_K(self) -> tuple[int, ...]:
        """Return the cells of each range of `privacy.cell_sum`, in the order of the vector."""
        widths = [1]
        for column in self.columns:
            widths += [column.cells, 1, 1] if column.has_moments else [column.cells]
        return tuple(widths)

    @property
    def norm(self) -> float:
        """Return the most that one record moves the vector, in L2."""
        return math.sqrt(len(self.widths_K))

    def cells(self, rows_NW: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Give what each record adds, for `privacy.cell_sum.CellSum.add`.

        Args:
            rows_NW: Rows of the schema, NaN where a value is missing.

        Returns:
            Cells and values, both of shape (N, K).
        """
        shape = (len(rows_NW), len(self.widths_K))
        cells_NK = np.zeros(shape, dtype=np.int64)
        values_NK = np.ones(shape, dtype=np.float32)
        place = 1
        for column, values in zip(self.columns, rows_NW.T, strict=True):
            values_N = values.astype(np.float64)
            cells_NK[:, place] = column.cell_of(values_N)
            place += 1
            if column.has_moments:
                scaled_N = column.scaled(values_N)
                cells_NK[np.isnan(scaled_N), place : place + 2] = -1
                values_NK[:, place] = scaled_N
                values_NK[:, place + 1] = scaled_N * scaled_N
                place += 2
        return cells_NK, values_NK
