"""Read flat rows as a batch of columns, and make rows that could be real where none are at hand.

Shapes: B = rows of a batch, W = numbers of a row.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidegate.schema import INTEGER, Column, Schema

Batch = dict[str, Tensor]
"""Columns by name, each of shape (B, *shape of the column): float32 or int64."""


def read_batch(rows_BW: Tensor, schema: Schema) -> Batch:
    """Show rows as columns; float columns share the rows' memory.

    Args:
        rows_BW: float32, shape (B, W); NaN where a value of a float column is missing.
        schema: The columns of a row.
    """
    batch = {}
    for column in schema.columns:
        values = rows_BW[:, schema.places[column.name]].reshape(len(rows_BW), *column.shape)
        batch[column.name] = values.to(torch.int64) if column.dtype == INTEGER else values
    return batch


def padding_row(schema: Schema) -> NDArray[np.float32]:
    """Give a row of zeros, or what is nearest to zero between a column's bounds, shape (W,).

    Batches are filled up with it: a zero where only 1 to 8 are allowed could end a task that uses
    the column as an index.
    """
    row_W = np.zeros(schema.width, dtype=np.float32)
    for column in schema.columns:
        low, high = _bounds(column, (0.0, 0.0))
        row_W[schema.places[column.name]] = min(max(0.0, low), high)
    return row_W


def draw_rows(schema: Schema, count: int, source: torch.Generator) -> Tensor:
    """Draw rows uniformly between the declared bounds, 0 and 1 where none are, shape (B, W).

    Args:
        schema: The columns of a row.
        count: B.
        source: Where randomness comes from; a fixed seed gives fixed rows.
    """
    rows_BW = torch.rand((count, schema.width), generator=source)
    for column in schema.columns:
        low, high = _bounds(column, (0.0, 1.0))
        part = rows_BW[:, schema.places[column.name]]
        if column.dtype == INTEGER:
            part.mul_(high - low + 1).add_(low).floor_().clamp_(low, high)
        else:
            part.mul_(high - low).add_(low)
    return rows_BW


def edge_rows(schema: Schema) -> Tensor:
    """Make the rows at the edges: all lowest, all highest, padding, shape (3, W)."""
    padding_W = torch.from_numpy(padding_row(schema))
    rows_BW = padding_W.repeat(3, 1)
    for column in schema.columns:
        low, high = _bounds(column, (0.0, 1.0))
        rows_BW[0, schema.places[column.name]] = low
        rows_BW[1, schema.places[column.name]] = high
    return rows_BW


def missing_rows(schema: Schema) -> Tensor:
    """Make rows with missing values: each float column alone, then all of them, shape (B, W).

    There is at least one such row, without a missing value where no column may have one.
    """
    floats = [column for column in schema.columns if column.dtype != INTEGER]
    rows_BW = torch.from_numpy(padding_row(schema)).repeat(len(floats) + 1, 1)
    for number, column in enumerate(floats):
        place = schema.places[column.name]
        rows_BW[number, place] = rows_BW[-1, place] = torch.nan
    return rows_BW


def _bounds(column: Column, otherwise: tuple[float, float]) -> tuple[float, float]:
    if column.low is None or column.high is None:
        return otherwise
    return column.low, column.high
