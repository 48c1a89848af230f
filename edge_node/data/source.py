"""Say what a plug gives: named columns of one kind each, and their rows in blocks.

A block maps column names to its rows: an array of numbers (n, ...) for a column asked for as
numbers, `Keys` for one asked for as text. Row order is the same for all columns.
"""

import hashlib
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.errors import UsageError

NUMBERS = "numbers"
TEXT = "text"
UNTYPED = "untyped"
"""A CSV file's: numbers unless declared otherwise."""


@dataclass(frozen=True)
class SourceColumn:
    """One column as the source has it.

    Attributes:
        name: Its name.
        kind: NUMBERS, TEXT, UNTYPED, or the source's own word for what no job can use.
        shape: Of one row's value.
    """

    name: str
    kind: str = NUMBERS
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class Keys:
    """A block of a column of text, or of numbers that only tell things apart.

    Attributes:
        places: For each row the place of its value among the values, int64; -1 without one.
        values: The distinct values of the block: texts or numbers.
    """

    places: NDArray[np.int64] = field(repr=False)
    values: tuple[str | int | float, ...] = field(repr=False)


Block = Mapping[str, "NDArray[Any] | Keys"]


@dataclass(frozen=True)
class Wanted:
    """What to read.

    Attributes:
        numbers: Columns to give as arrays of numbers.
        texts: Columns to give as keys, whatever their kind; no name is in both.
        block_rows: Most rows of a block, where the plug can choose.
    """

    numbers: tuple[str, ...]
    texts: tuple[str, ...]
    block_rows: int


@dataclass(frozen=True)
class Source:
    """A data source, opened.

    Attributes:
        columns: All of its columns.
        read: Gives the rows, block by block, once.
        stamp: Gives a quick digest that changes when the source does; "" where none is to be had.
    """

    columns: tuple[SourceColumn, ...]
    read: Callable[[Wanted], Iterator[Block]]
    stamp: Callable[[], str] = lambda: ""


def keys_of(values: NDArray[Any]) -> Keys:
    """Find the distinct values of an array of numbers, text or Python objects, shape (n,)."""
    if values.dtype.kind == "O":
        return _keys_of_objects(values.tolist())
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "replace")
    distinct, inverse = np.unique(values, return_inverse=True)
    places = inverse.astype(np.int64).reshape(-1)
    if distinct.dtype.kind == "f":
        places[np.isnan(values)] = -1
    if distinct.dtype.kind == "U":
        places[values == ""] = -1
    return Keys(places, tuple(distinct.tolist()))


def _keys_of_objects(values: list[Any]) -> Keys:
    """Do the same for Python objects; None, NaN and "" are no values."""
    seen: dict[Any, int] = {}
    places = [
        -1 if value is None or value == "" or value != value else seen.setdefault(value, len(seen))  # noqa: PLR0124 - NaN
        for value in values
    ]
    plain = (value if isinstance(value, str | int | float) else str(value) for value in seen)
    return Keys(np.array(places, dtype=np.int64), tuple(plain))


def need(module: str, extra: str = "data") -> Any:
    """Import an optional library.

    Raises:
        UsageError: It is not installed; says the extra to install.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        message = f"{library} is not installed: pip install 'tidegate[{extra}]' ({error})"
        raise UsageError(message) from error


def brief(error: object) -> str:
    """Give the first line of a library's message, cut to what a log line takes."""
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__


def stamp_files(paths: Iterable[Path]) -> str:
    """Digest size and times of files: cheap, and another one once a file was written to."""
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        try:
            stat = path.stat()
        except OSError:
            return ""
        digest.update(
            f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ctime_ns}\0{stat.st_ino}\n".encode()
        )
    return digest.hexdigest()
