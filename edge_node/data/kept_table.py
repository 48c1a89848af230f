"""Keep the file of a large table between runs of the daemon, as long as its source is unchanged.

The files lie in ``data/`` of the site's folder, mode 0600: ``NAME.DIGEST.rows``, perhaps
``NAME.DIGEST.users``, and ``NAME.json``, which is written last and says what they hold. A source
that cannot tell whether it changed (a database, a Python function) is read anew each time.
"""

import hashlib
import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from edge_node.data.dataset import Dataset
from edge_node.data.declared import Declared
from edge_node.data.facts import ColumnFacts
from edge_node.data.source import Source
from edge_node.data.table_file import TableWriter, map_table
from tidegate.schema import Schema

_FORMAT = 1


class KeptTable:
    """One data set's table of an earlier run, if it is still right."""

    def __init__(
        self, declared: Declared, source: Source, schema: Schema, state: Path | None
    ) -> None:
        """Take what the data set is declared as and what its source is like now."""
        self._declared = declared
        self._schema = schema
        self.stamp = source.stamp()
        self.folder = state / "data" if state is not None else None
        settings = json.dumps(declared.table.fields, sort_keys=True, default=str)
        layout = [(column.name, column.shape) for column in schema.columns]
        whole = f"{_FORMAT}|{declared.folder}|{settings}|{layout}|{self.stamp}"
        self._digest = hashlib.blake2b(whole.encode(), digest_size=16).hexdigest()
        if self.folder is not None:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def find(self) -> Dataset | None:
        """Map the kept table; where it is not this source's any more, remove it and give None."""
        facts = self._read() if self.stamp else None
        if facts is None:
            self._remove()
            return None
        names = self._declared.users
        codes = map_table(self._path("users"), facts["rows"], len(names), "<i8")
        return Dataset(
            name=self._declared.name,
            dataset_id=self._declared.dataset_id,
            schema=self._schema,
            table_NW=map_table(self._path("rows"), facts["rows"], self._schema.width, "<f4"),
            facts={name: ColumnFacts(**values) for name, values in facts["facts"].items()},
            users={name: codes[:, place] for place, name in enumerate(names)},
            left_out=facts["left_out"],
        )

    def keep(self, dataset: Dataset, rows: TableWriter, users: TableWriter) -> None:
        """Keep a table that went to a file, for the next run; one in memory is not kept."""
        if not self.stamp or rows.path is None or self.folder is None:
            return
        rows.close(keep_as=self._path("rows"))
        if dataset.users:
            self._keep_users(dataset, users)
        content = {
            "digest": self._digest,
            "rows": len(dataset),
            "facts": {name: asdict(facts) for name, facts in dataset.facts.items()},
            "left_out": dict(dataset.left_out),
        }
        write_private(self._meta(), json.dumps(content).encode())

    def _keep_users(self, dataset: Dataset, users: TableWriter) -> None:
        path = self._path("users")
        if users.path is not None:
            users.close(keep_as=path)
        else:
            codes = np.stack(list(dataset.users.values()), axis=1)
            write_private(path, codes.astype("<i8").tobytes())

    def _read(self) -> dict[str, Any] | None:
        try:
            content = json.loads(self._meta().read_bytes()) if self.folder is not None else {}
        except (OSError, ValueError):
            return None
        if not isinstance(content, dict) or content.get("digest") != self._digest:
            return None
        sizes = {"rows": 4 * self._schema.width, "users": 8 * len(self._declared.users)}
        for part, row_bytes in sizes.items():
            path = self._path(part)
            if row_bytes and (
                not path.is_file() or path.stat().st_size != content["rows"] * row_bytes
            ):
                return None
        return content

    def _remove(self) -> None:
        if self.folder is None:
            return
        self._meta().unlink(missing_ok=True)
        for part in ("rows", "users"):
            for path in self.folder.glob(f"{self._declared.name}.{'?' * 32}.{part}"):
                path.unlink(missing_ok=True)
        for path in self.folder.glob(f"{self._declared.name}~*.part"):  # of a run that was killed
            path.unlink(missing_ok=True)

    def _path(self, part: str) -> Path:
        name = f"{self._declared.name}.{self._digest}.{part}"
        return (self.folder or Path()) / name

    def _meta(self) -> Path:
        return (self.folder or Path()) / f"{self._declared.name}.json"


def write_private(path: Path, content: bytes) -> None:
    """Write a file of mode 0600 so that its old or its new content is there, whole."""
    descriptor, name = tempfile.mkstemp(suffix=".part", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
