"""Describe the columns of a record as a job declares them: its schema.

A record travels inside a site as one flat float32 row, column after column in the order of the
schema; a batch is a dict of tensors by column. Whole numbers lie in the row as float32, which holds
them exactly up to 2^24.

Shapes: W = numbers in a flat row.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tidegate.toml_table import Span, Table

FLOAT = "float32"
INTEGER = "int64"
MAX_COLUMNS = 4096
MAX_WIDTH = 2**24
MAX_INTEGER = 2**24

_KEYS = ("name", "dtype", "shape", "low", "high", "levels")
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,62}")
_COLUMN_RULE = "1 to 63 letters, digits, '_', '.' or '-', starting with a letter or '_'"


@dataclass(frozen=True)
class Column:
    """One column of a record.

    Attributes:
        name: As the site's data plug and the task's batch call it.
        dtype: "float32" (NaN where a value is missing) or "int64".
        shape: Of one record's value; () for a single number.
        low: Public lower bound of every number; None where the job declares none.
        high: Public upper bound; None like ``low``, else at least ``low``.
        levels: Number of categories, for whole numbers from 0 to levels - 1; else None.
    """

    name: str
    dtype: str = FLOAT
    shape: tuple[int, ...] = ()
    low: float | None = None
    high: float | None = None
    levels: int | None = None

    @property
    def size(self) -> int:
        """Return how many numbers of a row it takes."""
        return math.prod(self.shape)

    @property
    def is_bounded(self) -> bool:
        """Say whether public bounds are known."""
        return self.low is not None and self.high is not None


@dataclass(frozen=True)
class Schema:
    """The columns of a record, in the order of the row."""

    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the columns' names in order."""
        return tuple(column.name for column in self.columns)

    @cached_property
    def width(self) -> int:
        """Return W, the numbers of a flat row."""
        return sum(column.size for column in self.columns)

    @cached_property
    def places(self) -> Mapping[str, slice]:
        """Return where each column lies in a row."""
        places = {}
        begin = 0
        for column in self.columns:
            places[column.name] = slice(begin, begin + column.size)
            begin += column.size
        return places

    @cached_property
    def _by_name(self) -> Mapping[str, Column]:
        return {column.name: column for column in self.columns}

    @cached_property
    def _hash(self) -> int:
        return hash(self.columns)

    def __getitem__(self, name: str) -> Column:
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __hash__(self) -> int:
        # A schema is looked up with each batch, and may have thousands of columns.
        return self._hash


def scalars(names: tuple[str, ...]) -> Schema:
    """Describe single float32 numbers without bounds: what a job without a schema gets."""
    return Schema(tuple(Column(name) for name in names))


def read_schema(top: Table) -> Schema | None:
    """Read the ``[[columns]]`` of a job file; None where it declares none.

    Raises:
        UsageError: A key is missing or out of range; says which.
    """
    columns: dict[str, Column] = {}
    for table in top.tables("columns", _KEYS, most=MAX_COLUMNS):
        column = _read_column(table)
        if column.name in columns:
            raise table.bad("name", "must differ from the other columns' names")
        columns[column.name] = column
    if not columns:
        return None
    schema = Schema(tuple(columns.values()))
    if schema.width > MAX_WIDTH:
        raise top.bad("columns", f"must not hold more than {MAX_WIDTH} numbers a record")
    return schema


def _read_column(table: Table) -> Column:
    low = table.number("low", Span(-1e30, 1e30)) if table.has("low") else None
    high = table.number("high", Span(-1e30, 1e30)) if table.has("high") else None
    if (low is None) != (high is None):
        raise table.bad("high" if high is None else "low", "must be given too, or neither bound")
    if low is not None and high is not None and not low < high:
        raise table.bad("high", "must be above low")
    dtype = table.choice("dtype", (FLOAT, INTEGER), FLOAT)
    levels = table.whole("levels", Span(2, 65_536)) if table.has("levels") else None
    if levels is not None:
        if low is not None:
            raise table.bad("levels", "must not stand beside low and high, which it implies")
        low, high = 0.0, levels - 1.0
    if dtype == INTEGER and low is not None and max(abs(low), abs(high or 0.0)) > MAX_INTEGER:
        raise table.bad(
            "low", f"must be at most {MAX_INTEGER} away from 0, as must high, for int64"
        )
    return Column(
        name=table.text("name", _COLUMN, _COLUMN_RULE),
        dtype=dtype,
        shape=tuple(table.wholes("shape", Span(1, MAX_WIDTH), most=8)),
        low=low,
        high=high,
        levels=levels,
    )
