"""Take rows of a site's data set, in the columns a job's schema declares.

All numbers of a record lie in one float32 row, NaN where one is missing. Whole numbers are exact up
to 2^24.

Shapes: N = rows of the data set, W = numbers of a row (of the data set's, or of the schema's asked
for), C = columns, S = rows taken.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edge_node.data.facts import ColumnFacts, FactsTally
from edge_node.data.groups import NOBODY, RowGroups, group_rows
from privacy.errors import UsageError
from tidegate.schema import MAX_INTEGER, Schema, scalars

_SPARSE = 4
"""Below a fourth of a row's numbers, they are gathered one by one."""

Table = NDArray[np.float32]
Places = slice | NDArray[np.int64]


@dataclass(frozen=True, repr=False, eq=False)
class Dataset:
    """A site's rows, in memory or in a file that is mapped into it.

    Attributes:
        name: The name jobs ask for.
        dataset_id: The administrator's id that the privacy ledger charges.
        schema: All columns, each of float32, with their shapes.
        table_NW: float32, shape (N, W), read-only.
        facts: What the values of each column are like.
        users: Of each column that tells users apart: the number of each row's user, int64,
            shape (N,), -1 where it has none.
        left_out: Columns of the source that no job gets, with their kind.
    """

    name: str
    dataset_id: str
    schema: Schema
    table_NW: Table
    facts: Mapping[str, ColumnFacts]
    users: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    _places: dict[Schema, Places] = field(default_factory=dict)
    _groups: dict[str, RowGroups] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Dataset({self.name!r}, {len(self.schema.columns)} columns)"

    def __len__(self) -> int:
        return len(self.table_NW)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns that are single numbers, in order."""
        return tuple(column.name for column in self.schema.columns if not column.shape)

    @property
    def scalars(self) -> Schema:
        """Return the schema of a job that declares none."""
        return scalars(self.columns)

    @property
    def fingerprint(self) -> str:
        """Return a digest of all columns and values; it stays on this site."""
        digest = hashlib.blake2b(digest_size=16)
        for column in self.schema.columns:
            facts = self.facts[column.name]
            digest.update(f"{column.name}|{column.shape}|{facts.digest}\n".encode())
        for name in sorted(self.users):
            digest.update(f"{name}|".encode())
            digest.update(np.ascontiguousarray(self.users[name], dtype="<i8").data)
        return digest.hexdigest()

    def take_rows(self, indices_S: NDArray[np.int64], schema: Schema) -> Table:
        """Copy some rows as flat rows of a schema.

        Args:
            indices_S: Row numbers, shape (S,), S may be 0.
            schema: The columns wanted, in the order wanted; their shapes must be this data set's.

        Returns:
            A new float32 array, C-contiguous, shape (S, W), laid out by ``schema.places``.

        Raises:
            UsageError: The data set has no such column, or of another shape.
        """
        places = self._places.get(schema)
        if places is None:
            places = self._places[schema] = self._find(schema)
        if isinstance(places, slice):
            return np.ascontiguousarray(self.table_NW[indices_S, places])
        if len(places) * _SPARSE < self.schema.width:
            return np.ascontiguousarray(self.table_NW[np.ix_(indices_S, places)])
        return np.take(self.table_NW[indices_S], places, axis=1)

    def take(self, indices_S: NDArray[np.int64], columns: Sequence[str]) -> Table:
        """Copy some rows of some columns that are single numbers.

        Args:
            indices_S: Row numbers, shape (S,), S may be 0.
            columns: Names, in the order wanted.

        Returns:
            A new float32 array, shape (S, C).

        Raises:
            UsageError: The data set has no such column.
        """
        return self.take_rows(indices_S, scalars(tuple(columns)))

    def groups(self, column: str) -> RowGroups:
        """Group the rows by user.

        Args:
            column: What tells users apart: one that site.toml names in ``users``, or one of whole
                numbers up to 2^24. Rows without a value belong to nobody and are left out.

        Raises:
            UsageError: There is no such column, or its values cannot be told apart.
        """
        if column not in self._groups:
            self._groups[column] = group_rows(self._codes(column))
        return self._groups[column]

    def _find(self, schema: Schema) -> Places:
        """Find the place of each of a schema's numbers in this data set's rows."""
        parts = []
        for column in schema.columns:
            place = self.schema.places.get(column.name)
            if place is None:
                raise UsageError(
                    f"data set {self.name!r} has no column {column.name!r}; it has "
                    f"{', '.join(self.schema.names[:20])}"
                )
            if self.schema[column.name].shape != column.shape:
                raise UsageError(
                    f"column {column.name!r} of data set {self.name!r} has shape "
                    f"{list(self.schema[column.name].shape)}, not {list(column.shape)}"
                )
            parts.append(np.arange(place.start, place.stop, dtype=np.int64))
        places = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        if len(places) and bool((np.diff(places) == 1).all()):
            return slice(int(places[0]), int(places[-1]) + 1)
        return places

    def _codes(self, column: str) -> NDArray[np.int64]:
        codes = self.users.get(column)
        if codes is not None:
            return codes
        facts = self.facts.get(column)
        if facts is None or self.schema[column].shape:
            raise UsageError(
                f"data set {self.name!r} has no column {column!r} that tells users apart: name it"
                f" in users = [...] of [datasets.{self.name}]"
            )
        if not facts.is_whole or _reach(facts) > MAX_INTEGER or facts.infinite:
            raise UsageError(
                f"column {column!r} of data set {self.name!r} does not hold whole numbers up to"
                f" 2^24: name it in users = [...] of [datasets.{self.name}], which keeps any value"
            )
        values = self.table_NW[:, self.schema.places[column].start]
        known = ~np.isnan(values)
        codes = np.full(len(values), NOBODY, dtype=np.int64)
        codes[known] = np.unique(values[known], return_inverse=True)[1]
        return codes


def _reach(facts: ColumnFacts) -> float:
    return max(abs(facts.low or 0.0), abs(facts.high or 0.0))


def rowless(name: str, dataset_id: str) -> Dataset:
    """Make a data set without rows: for apps that load their own, the ledger's name is enough."""
    return Dataset(name, dataset_id, scalars(()), np.empty((0, 0), dtype=np.float32), {})


def from_table(name: str, dataset_id: str, schema: Schema | Sequence[str], table: Table) -> Dataset:
    """Make a data set of a table that is in memory already.

    Args:
        name: The name jobs ask for.
        dataset_id: What the ledger charges.
        schema: Its columns, or their names where each is a single number.
        table: float32, shape (N, W); it is made read-only.
    """
    layout = schema if isinstance(schema, Schema) else scalars(tuple(schema))
    facts = {}
    for column, place in layout.places.items():
        tally = FactsTally()
        tally.add(table[:, place], table[:, place])
        facts[column] = tally.result()
    table.flags.writeable = False
    return Dataset(name, dataset_id, layout, table, facts)
