"""Read CSV: a header line, then one record a line.

pyarrow reads it where it is installed. What it will not have is read, from the first such row on,
by the plain way below, which is also the way without pyarrow: so both give the same table, and one
says what is wrong and in which line.
"""

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edge_node.data.arrow_columns import to_keys, to_numbers
from edge_node.data.declared import Declared
from edge_node.data.source import (
    UNTYPED,
    Block,
    Keys,
    Source,
    SourceColumn,
    Wanted,
    keys_of,
    need,
    stamp_files,
)
from privacy.errors import UsageError

MISSING = ("", "NA", "N/A", "null", "NULL", "None", "nan", "NaN")
"""The usual words for a missing value, of numbers and of text."""

_MISSING_BYTES = re.compile(rb"(?<=[,\n])[ \t]*(?:NA|N/A|null|NULL|None)?[ \t]*(?=[,\n])")
_BLANKS = " \t\v\f"
_BLOCK_BYTES = 1 << 18


def open_csv(declared: Declared) -> Source:
    """Open a CSV file, UTF-8, comma between fields.

    Raises:
        UsageError: Its first line does not name every column once.
    """
    path = declared.path()
    names, skip = _read_header(declared, path)

    def read(wanted: Wanted) -> Iterator[Block]:
        n_rows = 0
        try:
            for block in _read_with_pyarrow(path, names, wanted):
                n_rows += _length(block)
                yield block
        except (UsageError, ValueError):
            # Without pyarrow, or from the first row that it does not take.
            yield from _PlainReader(declared, path, names, wanted).blocks(skip, n_rows)

    columns = tuple(SourceColumn(name, UNTYPED) for name in names)
    return Source(columns, read, lambda: stamp_files([path]))


def _read_header(declared: Declared, path: Path) -> tuple[tuple[str, ...], int]:
    """Give the columns' names and how many bytes the first line takes."""
    with path.open("rb") as file:
        line = file.readline(1 << 20)
    try:
        fields = next(csv.reader([line.decode("utf-8-sig").rstrip("\r\n")]), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{declared.where}: the first line of {path}: {error}") from error
    names = tuple(field.strip().strip('"') for field in fields)
    if len(set(names)) != len(names) or "" in names or not names:
        raise UsageError(
            f"{declared.where}: the first line of {path} must name every column, none twice"
        )
    return names, len(line)


def _length(block: Block) -> int:
    first = next(iter(block.values()))
    return len(first.places) if isinstance(first, Keys) else len(first)


def _read_with_pyarrow(path: Path, names: Sequence[str], wanted: Wanted) -> Iterator[Block]:
    """Read with pyarrow; ArrowInvalid, a ValueError, where it does not take a row."""
    pyarrow, library = need("pyarrow"), need("pyarrow.csv")
    types = {name: pyarrow.float64() for name in wanted.numbers}
    types |= {name: pyarrow.string() for name in wanted.texts}
    reader = library.open_csv(
        path,
        read_options=library.ReadOptions(
            use_threads=False, block_size=_BLOCK_BYTES, column_names=list(names), skip_rows=1
        ),
        convert_options=library.ConvertOptions(
            column_types=types,
            include_columns=list(types),
            null_values=list(MISSING),
            strings_can_be_null=True,
        ),
    )
    with reader:
        for batch in reader:
            numbers = {name: to_numbers(batch.column(name), ()) for name in wanted.numbers}
            texts = {name: to_keys(_trimmed(batch.column(name))) for name in wanted.texts}
            yield {**numbers, **texts}


def _trimmed(array: Any) -> Any:
    """Take blanks around texts away, and then the words for a missing value."""
    pyarrow, compute = need("pyarrow"), need("pyarrow.compute")
    trimmed = compute.ascii_trim(array, _BLANKS)
    missing = compute.is_in(trimmed, value_set=pyarrow.array(MISSING))
    return compute.replace_with_mask(trimmed, missing, pyarrow.scalar(None, trimmed.type))


class _PlainReader:
    """Reads blocks of lines with numpy, and with the csv module where that is not enough."""

    def __init__(
        self, declared: Declared, path: Path, names: Sequence[str], wanted: Wanted
    ) -> None:
        self._place = f"{declared.where}: {path}"
        self._where = declared.where
        self._path = path
        self._names = list(names)
        self._wanted = wanted

    def blocks(self, skip_bytes: int, skip_rows: int) -> Iterator[Block]:
        """Give the blocks below the header, without the first rows.

        Raises:
            UsageError: Which line is wrong and why.
        """
        line_number = 2
        with self._path.open("rb") as file:
            file.seek(skip_bytes)
            while raw := file.readlines(_BLOCK_BYTES):
                lines = [line.rstrip(b"\r\n") for line in raw]
                there = [(at, line) for at, line in enumerate(lines, line_number) if line]
                line_number += len(raw)
                skipped = min(skip_rows, len(there))
                skip_rows -= skipped
                if there[skipped:]:
                    yield self._block(there[skipped:])

    def _block(self, lines: list[tuple[int, bytes]]) -> Block:
        if not self._wanted.texts and not any(b'"' in line for _, line in lines):
            body = b"\n" + b"\n".join(line for _, line in lines) + b"\n"
            text = _MISSING_BYTES.sub(b"nan", body).decode("utf-8", errors="replace")
            try:
                table = np.loadtxt(
                    io.StringIO(text), dtype=np.float64, delimiter=",", ndmin=2, comments=None
                )
            except ValueError:
                return self._slow_block(lines)
            if table.shape == (len(lines), len(self._names)):
                return {name: table[:, self._names.index(name)] for name in self._wanted.numbers}
        return self._slow_block(lines)

    def _slow_block(self, lines: list[tuple[int, bytes]]) -> Block:
        fields = [self._fields(number, line) for number, line in lines]
        columns = dict(zip(self._names, zip(*fields, strict=True), strict=True))
        block: dict[str, Any] = {}
        for name in self._wanted.numbers:
            block[name] = np.array(
                [
                    self._number(name, number, field)
                    for (number, _), field in zip(lines, columns[name], strict=True)
                ]
            )
        for name in self._wanted.texts:
            trimmed = [field.strip(_BLANKS) for field in columns[name]]
            known = ["" if field in MISSING else field for field in trimmed]
            block[name] = keys_of(np.array(known, dtype=np.str_))
        return block

    def _fields(self, number: int, line: bytes) -> list[str]:
        try:
            rows = list(csv.reader([line.decode()], strict=True))
        except (UnicodeDecodeError, csv.Error) as error:
            raise UsageError(f"{self._place} line {number}: {error}") from error
        fields = rows[0]
        if len(fields) != len(self._names):
            raise UsageError(
                f"{self._place} line {number} has {len(fields)} fields, the header names"
                f" {len(self._names)} columns"
            )
        return fields

    def _number(self, name: str, line: int, field: str) -> float:
        text = field.strip()
        if text in MISSING:
            return math.nan
        try:
            # Underscores are of Python's own grammar of numbers, and nobody else's.
            return float(text.replace("_", "?"))
        except ValueError:
            raise UsageError(
                f"{self._place} line {line}, column {name!r}: this is no number; if the column is"
                " text, name it in users or in categories, or leave it out of columns"
            ) from None
