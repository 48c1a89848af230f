"""Keep a table of rows in memory while it is small, in one private file once it is not.

A file is written beside its final name and renamed when it is whole, so that no half table is ever
taken for a whole one.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from privacy.errors import UsageError

_SPARE_BYTES = 64 << 20


class TableWriter:
    """Takes blocks of rows and gives them back as one read-only array."""

    def __init__(self, name: str, limit_bytes: int, folder: Path | None) -> None:
        """Start without rows.

        Args:
            name: Of the data set, for messages and the file's name.
            limit_bytes: Most bytes to keep in memory.
            folder: Where the file goes; None for no file.
        """
        self._name = name
        self._limit_bytes = limit_bytes
        self._folder = folder
        self._held: list[NDArray[Any]] = []
        self._held_bytes = 0
        self._file: IO[bytes] | None = None
        self._rows = 0

    @property
    def path(self) -> Path | None:
        """Return the file's name for now; None while all is in memory."""
        return Path(self._file.name) if self._file is not None else None

    def append(self, block: NDArray[Any]) -> None:
        """Take some rows, shape (n, ...), all of one dtype.

        Raises:
            UsageError: They fit neither into memory nor on the disk.
        """
        self._rows += len(block)
        if self._file is None and self._held_bytes + block.nbytes > self._limit_bytes:
            self._open()
        if self._file is None:
            self._held.append(block)
            self._held_bytes += block.nbytes
        else:
            self._write(block)

    def finish(self, width: int, dtype: str) -> NDArray[Any]:
        """Give all rows, shape (N, width), read-only; a file is on the disk when this returns."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            return map_table(Path(self._file.name), self._rows, width, dtype)
        table = np.empty((self._rows, width), dtype=dtype)
        begin = 0
        for block in self._held:
            table[begin : begin + len(block)] = block
            begin += len(block)
        self._held.clear()
        table.flags.writeable = False
        return table

    def close(self, *, keep_as: Path | None = None) -> None:
        """Close the file, under its final name or, where none is given, removed.

        What is mapped stays readable either way.
        """
        if self._file is None:
            return
        path = Path(self._file.name)
        self._file.close()
        if keep_as is None:
            path.unlink(missing_ok=True)
        else:
            path.replace(keep_as)

    def _open(self) -> None:
        if self._folder is None:
            raise UsageError(
                f"[datasets.{self._name}] is larger than in_memory_mib allows, and there is no"
                " folder for it"
            )
        descriptor, name = tempfile.mkstemp(".part", f"{self._name}~", self._folder)  # mode 0600
        os.close(descriptor)
        self._file = Path(name).open("r+b")  # noqa: SIM115 - closed by close
        for block in self._held:
            self._write(block)
        self._held.clear()

    def _write(self, block: NDArray[Any]) -> None:
        file = self._file
        if file is None or self._folder is None:
            raise RuntimeError("no file is open")
        if shutil.disk_usage(self._folder).free < block.nbytes + _SPARE_BYTES:
            raise UsageError(
                f"[datasets.{self._name}] does not fit on the disk of {self._folder}: it still"
                f" grows at {file.tell() >> 20} MiB; make room, or see if the source is damaged"
            )
        file.write(np.ascontiguousarray(block).reshape(-1).data)


def map_table(path: Path, rows: int, width: int, dtype: str) -> NDArray[Any]:
    """Map a file of rows, shape (rows, width), read-only."""
    if not rows or not width:
        return np.empty((rows, width), dtype=dtype)
    return np.asarray(np.memmap(path, dtype=dtype, mode="r", shape=(rows, width)))
