"""Load a declared data set: choose its columns, stream its rows once into one table.

In the one pass each column's facts are noted, texts become numbers, and users get theirs. A table
beyond ``in_memory_mib`` goes to a file in the site's own folder; where the source can tell that it
has not changed, that file is taken again the next time.

Shapes: N = rows, W = numbers of a row, n = rows of a block.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_node.data.dataset import Dataset
from edge_node.data.declared import Declared, read_declared
from edge_node.data.facts import FactsTally
from edge_node.data.groups import NOBODY
from edge_node.data.kept_table import KeptTable
from edge_node.data.plugs import open_source
from edge_node.data.source import NUMBERS, TEXT, UNTYPED, Keys, Source, SourceColumn, Wanted
from edge_node.data.table_file import TableWriter
from privacy.errors import UsageError
from tidegate.schema import Column, Schema

_BLOCK_NUMBERS = 1 << 19
_MAX_BLOCK_ROWS = 1 << 14


def load_dataset(
    name: str, plug: Mapping[str, Any], folder: Path, state: Path | None = None
) -> Dataset:
    """Load the data set that one ``[datasets.NAME]`` table of the site's configuration declares.

    Args:
        name: NAME.
        plug: Its keys and values.
        folder: What relative paths are relative to.
        state: Private folder for tables that are larger than memory; None for none.

    Raises:
        UsageError: What is missing or wrong, where, and the mend.
    """
    declared = read_declared(name, dict(plug), folder)
    try:
        source = open_source(declared)
        layout = _Layout.choose(declared, source)
        kept = KeptTable(declared, source, layout.schema, state)
        found = kept.find()
        return _load(declared, source, layout, kept) if found is None else found
    except MemoryError as error:
        raise UsageError(
            f"{declared.where}: not enough memory for its table: lower in_memory_mib, so that it"
            " goes to a file"
        ) from error
    except OSError as error:
        raise UsageError(f"{declared.where}: {error}") from error


def _load(declared: Declared, source: Source, layout: "_Layout", kept: KeptTable) -> Dataset:
    """Read the source once, and keep its table if that went to a file."""
    loader = _Loader(declared, layout, kept.folder)
    try:
        for block in source.read(layout.wanted):
            loader.add(block)
        if source.stamp() != kept.stamp:
            raise UsageError(f"{declared.where}: the source changed while it was read; try again")
        dataset = loader.dataset()
        kept.keep(dataset, loader.rows, loader.users)
    finally:
        loader.close()
    return dataset


class _Layout:
    """Which columns are taken, as what, and which are left out."""

    def __init__(
        self, columns: list[SourceColumn], declared: Declared, left_out: dict[str, str]
    ) -> None:
        self.schema = Schema(tuple(Column(column.name, shape=column.shape) for column in columns))
        self.left_out = left_out
        texts = (*(c.name for c in columns if c.name in declared.categories), *declared.users)
        numbers = tuple(c.name for c in columns if c.name not in declared.categories)
        rows = max(1, min(_MAX_BLOCK_ROWS, _BLOCK_NUMBERS // max(1, self.schema.width)))
        self.wanted = Wanted(numbers, texts, rows)

    @classmethod
    def choose(cls, declared: Declared, source: Source) -> "_Layout":
        """Take the columns that site.toml names, or all that hold numbers.

        Raises:
            UsageError: There is no such column, or it is of a kind that cannot be used.
        """
        known = {column.name: column for column in source.columns}
        asked = (*declared.columns, *declared.users, *declared.categories)
        lacking = [name for name in asked if name not in known]
        if lacking:
            raise UsageError(
                f"{declared.where}: the source has no column {lacking[0]!r}; it has"
                f" {', '.join(list(known)[:20])}"
            )
        taken, left_out = [], {}
        for column in source.columns:
            fits = column.kind in (NUMBERS, UNTYPED) or column.name in declared.categories
            if column.name in declared.users:
                continue
            if (
                fits
                and 0 not in column.shape
                and (not declared.columns or column.name in declared.columns)
            ):
                taken.append(column)
            else:
                left_out[column.name] = column.kind
        unusable = [name for name in declared.columns if name in left_out]
        if unusable:
            kind = left_out[unusable[0]]
            mend = "; give its categories, or name it in users" if kind == TEXT else ""
            raise UsageError(
                f"{declared.where}: column {unusable[0]!r} holds {kind}, no numbers{mend}"
            )
        if not taken:
            raise UsageError(f"{declared.where}: the source has no column of numbers")
        if declared.columns:
            taken.sort(key=lambda column: declared.columns.index(column.name))
        return cls(taken, declared, left_out)


class _Loader:
    """Turns blocks into rows of the table, facts and users' numbers."""

    def __init__(self, declared: Declared, layout: _Layout, folder: Path | None) -> None:
        self._declared = declared
        self._layout = layout
        limit = declared.in_memory_mib << 20
        self.rows = TableWriter(declared.name, limit, folder)
        self.users = TableWriter(declared.name, limit, folder)
        self._tallies = {name: FactsTally() for name in layout.schema.names}
        self._codes: dict[str, dict[str | int | float, int]] = {u: {} for u in declared.users}

    def add(self, block: Mapping[str, Any]) -> None:
        """Take in a block.

        Raises:
            UsageError: A text is none of its column's categories, or memory and disk are full.
        """
        first = next(iter(block.values()))
        n_rows = len(first.places) if isinstance(first, Keys) else len(first)
        if not n_rows:
            return
        rows_nW = np.empty((n_rows, self._layout.schema.width), dtype=np.float32)
        for column in self._layout.schema.columns:
            values = self._values(column, block[column.name])
            place = self._layout.schema.places[column.name]
            if values.shape != (n_rows, *column.shape):
                raise UsageError(
                    f"{self._declared.where}: column {column.name!r} has a block of shape"
                    f" {list(values.shape)}, not {[n_rows, *column.shape]}"
                )
            with np.errstate(over="ignore"):  # beyond float32 becomes infinite, and is counted
                rows_nW[:, place] = values.reshape(n_rows, -1)
            _canonical(rows_nW[:, place])
            self._tallies[column.name].add(values, rows_nW[:, place])
        self.rows.append(rows_nW)
        if self._codes:
            codes = [self._numbered(name, block[name]) for name in self._declared.users]
            self.users.append(np.stack(codes, axis=1))

    def dataset(self) -> Dataset:
        """Give the data set of all blocks."""
        schema, names = self._layout.schema, self._declared.users
        table_NW = self.rows.finish(schema.width, "<f4")
        codes = self.users.finish(len(names), "<i8")
        return Dataset(
            name=self._declared.name,
            dataset_id=self._declared.dataset_id,
            schema=schema,
            table_NW=table_NW,
            facts={name: tally.result() for name, tally in self._tallies.items()},
            users={name: codes[:, place] for place, name in enumerate(names)},
            left_out=self._layout.left_out,
        )

    def close(self) -> None:
        """Remove files that were not kept; what is mapped stays readable."""
        self.rows.close()
        self.users.close()

    def _values(self, column: Column, part: Any) -> NDArray[Any]:
        """Give a column's block as numbers: a text as its place among the categories."""
        if not isinstance(part, Keys):
            array = np.asarray(part)
            if array.dtype.kind not in "fiub":
                raise UsageError(
                    f"{self._declared.where}: column {column.name!r} holds {array.dtype}, no"
                    " numbers"
                )
            return array
        places = {text: at for at, text in enumerate(self._declared.categories[column.name])}
        numbers = [places.get(str(value), -1) for value in part.values]
        used = np.unique(part.places)
        strange = [at for at in used.tolist() if at >= 0 and numbers[at] < 0]
        if strange:
            raise UsageError(
                f"{self._declared.where}: column {column.name!r} holds {len(strange)} texts that"
                " its categories do not name"
            )
        return np.array([*numbers, np.nan], dtype=np.float64)[part.places]

    def _numbered(self, name: str, keys: Keys) -> NDArray[np.int64]:
        """Give each user a number, in the order in which they are first seen."""
        codes = self._codes[name]
        used, first = np.unique(keys.places, return_index=True)
        numbers = np.full(len(keys.values) + 1, NOBODY, dtype=np.int64)
        ordered = used[np.argsort(first)]
        ordered = ordered[ordered >= 0]
        values = (keys.values[at] for at in ordered.tolist())
        numbers[ordered] = [codes.setdefault(value, len(codes)) for value in values]
        return numbers[keys.places]


def _canonical(numbers: NDArray[np.float32]) -> None:
    """Give every missing number the same bits, whatever the source's NaN was like."""
    missing = np.isnan(numbers)
    if missing.any():
        numbers[missing] = np.nan
