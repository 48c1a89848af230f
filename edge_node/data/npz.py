"""Read ``.npz`` archives without unpacking a whole array: each member is a stream of rows.

A member's header must agree with its length in the archive, and no Python object is ever built, so
neither a header of absurd size nor a pickle gets far; an archive that unpacks to far more than it
weighs ends at the limit of memory or disk like any other table.
"""

import math
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from edge_node.data.arrays import NO_ARRAY, ArrayColumn, array_source, kind_of
from edge_node.data.declared import Declared
from edge_node.data.source import Block, Source, Wanted, brief
from privacy.errors import UsageError

_MAX_HEADER_CHARS = 10_000
_BROKEN = (*NO_ARRAY, NotImplementedError, RuntimeError, zlib.error)


def open_npz(declared: Declared) -> Source:
    """Open an ``.npz`` archive, one array a column."""
    path = declared.path()
    try:
        archive = zipfile.ZipFile(path)
        members = [_Member(archive, info) for info in archive.infolist()]
    except (*_BROKEN, MemoryError) as error:
        raise _broken(declared, path, error) from error
    columns = [ArrayColumn(m.name, m.kind, m.shape, m.read) for m in members]
    source = array_source(columns, path, declared.where)

    def read(wanted: Wanted) -> Iterator[Block]:
        try:
            yield from source.read(wanted)
        except _BROKEN as error:
            raise _broken(declared, path, error) from error
        finally:
            archive.close()

    return Source(source.columns, read, source.stamp)


class _Member:
    """One array of the archive, read once from its first row to its last."""

    def __init__(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        self.name = info.filename.removesuffix(".npy")
        self._archive = archive
        self._info = info
        self._stream: IO[bytes] | None = None
        self._whole: NDArray[Any] | None = None
        with archive.open(info) as stream:
            self.shape, self._fortran, self._dtype = _read_header(stream)
            length = math.prod(self.shape) * self._dtype.itemsize + stream.tell()
        if self._dtype.hasobject:
            raise ValueError(f"{self.name!r} holds Python objects")
        if length != info.file_size:
            raise ValueError(f"{self.name!r} is not as long as its header says")
        self.kind = kind_of(self._dtype)

    def read(self, begin: int, end: int) -> NDArray[Any]:
        """Give the next rows."""
        if self._fortran and len(self.shape) > 1:  # its rows lie apart
            if self._whole is None:
                with self._archive.open(self._info) as stream:
                    self._whole = npy_format.read_array(stream, allow_pickle=False)
            return self._whole[begin:end]
        if self._stream is None:
            self._stream = self._archive.open(self._info)
            _read_header(self._stream)
        shape = (end - begin, *self.shape[1:])
        raw = self._stream.read(math.prod(shape) * self._dtype.itemsize)
        return np.frombuffer(raw, dtype=self._dtype).reshape(shape)


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy_format.read_magic(stream)
    readers = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"an array of format {version}, which is none of plain numbers")
    shape, fortran, dtype = readers[version](stream, max_header_size=_MAX_HEADER_CHARS)
    return tuple(shape), bool(fortran), dtype


def _broken(declared: Declared, path: Path, error: object) -> UsageError:
    return UsageError(f"{declared.where}: {path} is no .npz file of plain arrays: {brief(error)}")
