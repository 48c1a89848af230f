"""Read one ``[datasets.NAME]`` table of site.toml: what every plug takes, and whose keys are whose.

Paths are relative to the file; whether they exist is seen when the data set is opened.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from privacy.errors import UsageError
from tidegate.toml_table import Span, Table

MAX_COLUMNS = 65_536
_PATH = re.compile(r"[^\x00-\x1f\x7f]{1,1024}")
_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,255}")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_ID_RULE = "1 to 64 letters, digits, '_', '.' and '-'"
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_COMMON = (
    "loader",
    "dataset_id",
    "columns",
    "users",
    "categories",
    "in_memory_mib",
)
_OWN: Mapping[str, tuple[str, ...]] = {
    "npz": ("path",),
    "npy": ("path",),
    "safetensors": ("path",),
    "torch": ("path",),
    "csv": ("path",),
    "parquet": ("path",),
    "sql": ("url_file", "url_env", "query", "table"),
    "images": ("path", "index", "shape", "max_pixels"),
    "huggingface": ("path", "split"),
}
_OWN_OF_FUNCTION = ("path", "options")


@dataclass(frozen=True)
class Declared:
    """A data set as the administrator declares it.

    Attributes:
        name: What jobs call it.
        dataset_id: What the ledger charges; overlapping or derived data sets share one id.
        loader: A plug's name, or "module:function".
        folder: What relative paths are relative to.
        columns: The columns to offer, in order; empty for all that hold numbers.
        users: Columns that tell users apart, for privacy whose unit is a user.
        categories: Of columns of text: the texts that become 0, 1, ...
        in_memory_mib: Up to which size the table is kept in memory.
        table: All keys, for the plug to read its own.
    """

    name: str
    dataset_id: str
    loader: str
    folder: Path
    columns: tuple[str, ...]
    users: tuple[str, ...]
    categories: Mapping[str, tuple[str, ...]]
    in_memory_mib: int
    table: Table = field(repr=False)

    @property
    def where(self) -> str:
        """Return where it stands, for messages."""
        return self.table.where

    def path(self, key: str = "path") -> Path:
        """Give a path that must exist.

        Raises:
            UsageError: It is missing, or nothing is there.
        """
        path = self.folder / self.table.text(key, _PATH, "a path")
        if not path.exists():
            raise UsageError(f"{self.where} {key}: there is no file or folder {path}")
        return path

    def optional_path(self) -> Path | None:
        """Give the path, which must exist where it is given."""
        return self.path() if self.table.has("path") else None


def read_declared(name: str, plug: object, folder: Path, file: str = "site.toml") -> Declared:
    """Read and check ``[datasets.NAME]``.

    Args:
        name: NAME.
        plug: Its keys and values.
        folder: Where site.toml lies.
        file: What to call site.toml in messages.

    Raises:
        UsageError: What is wrong, where, and the mend.
    """
    where = f"datasets.{name}"
    dataset_id = read_dataset_id(name, plug, file)
    fields: dict[str, Any] = plug if isinstance(plug, dict) else {}
    anything = Table({where: fields}, f"{file}:").table(where, tuple(fields))
    rule = f"one of {', '.join(_OWN)}, or 'module:function'"
    loader = anything.text("loader", re.compile("|".join([*_OWN, _FUNCTION.pattern])), rule)
    own = _OWN.get(loader, _OWN_OF_FUNCTION)
    table = Table({where: plug}, f"{file}:").table(where, (*_COMMON, *own))
    declared = Declared(
        name=name,
        dataset_id=dataset_id,
        loader=loader,
        folder=folder,
        columns=_names(table, "columns"),
        users=_names(table, "users"),
        categories=_categories(table),
        in_memory_mib=table.whole("in_memory_mib", Span(0, 1 << 24), 1024),
        table=table,
    )
    _check(declared)
    return declared


def read_dataset_id(
    name: str, plug: object, file: str = "site.toml", keys: tuple[str, ...] | None = None
) -> str:
    """Read the ledger's name of a data set; NAME itself where the table gives none.

    Args:
        name: NAME.
        plug: The table's keys and values.
        file: What to call site.toml in messages.
        keys: The only keys that the table may have; None for any.

    Raises:
        UsageError: It is no such table, or has other keys.
    """
    where = f"datasets.{name}"
    if not _ID.fullmatch(name) or not isinstance(plug, dict):
        raise UsageError(f"{file}: [{where}] must be a table [datasets.NAME], NAME {_ID_RULE}")
    table = Table({where: plug}, f"{file}:").table(where, tuple(plug) if keys is None else keys)
    return table.text("dataset_id", _ID, _ID_RULE, name)


def _names(table: Table, key: str) -> tuple[str, ...]:
    names = table.texts(key, _NAME, "a column's name", most=MAX_COLUMNS)
    if len(set(names)) != len(names) or (table.has(key) and not names):
        raise table.bad(key, "must name at least one column, and none twice")
    return tuple(names)


def _categories(table: Table) -> dict[str, tuple[str, ...]]:
    raw: Any = table.fields.get("categories", {})
    columns = table.table("categories", tuple(raw) if isinstance(raw, dict) else ())
    found = {}
    for name in columns.fields:
        texts = columns.texts(name, _NAME, "a text", most=MAX_COLUMNS)
        if len(texts) < 2 or len(set(texts)) != len(texts):
            raise columns.bad(name, "must list at least two texts, and none twice")
        found[name] = tuple(texts)
    return found


def _check(declared: Declared) -> None:
    """Check what one key says against another."""
    for name in declared.users:
        if name in declared.columns or name in declared.categories:
            raise declared.table.bad(
                "users", f"must not name {name!r}, which columns or categories name too"
            )
    for name in declared.categories:
        if declared.columns and name not in declared.columns:
            raise UsageError(f"{declared.where} columns must name {name!r}, which has categories")
