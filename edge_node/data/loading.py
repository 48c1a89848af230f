"""Load the data set a site's own configuration names: the site's data plug.

The job only says which declared data set it wants; where the rows lie and how they are read is the
site's business alone. Values are float32, NaN where one is missing. Nothing is unpickled.

Loaders: ``npz`` (one array a column), ``csv`` (a header line, then numbers), and for everything
else ``module:function``, a Python function of the site's that is imported because, and only
because, the site's configuration names it. It is called with the path (or None) and the ``options``
table, and gives a mapping from column names to one-dimensional arrays.

Shapes: N = rows of the data set, C = columns asked for, S = rows taken.
"""

import importlib
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_node.data.dataset import Dataset, from_table
from privacy.errors import UsageError

_KEYS = frozenset({"loader", "dataset_id", "path", "columns", "options"})
# An empty field, or one of the usual words for a missing value.
_MISSING = re.compile(rb"(?<=[,\n])[ \t]*(?:NA|N/A|null|NULL|None)?[ \t]*(?=[,\n])")


def load_dataset(name: str, table: Mapping[str, object], folder: Path) -> Dataset:
    """Load the data set that one ``[datasets.NAME]`` table of the site's configuration declares.

    Args:
        name: NAME.
        table: Keys ``loader`` (npz, csv or "module:function"), ``dataset_id``, ``path``, optional
            ``columns`` (default: all) and, for a Python loader, ``options``.
        folder: What a relative ``path`` is relative to.

    Raises:
        UsageError: What is missing or wrong, where, and the mend.
    """
    place = f"[datasets.{name}]"
    unknown = sorted(table.keys() - _KEYS)
    if unknown:
        raise UsageError(f"{place} has unknown keys {unknown}; known are {sorted(_KEYS)}")
    loader = _text(table, "loader", place)
    dataset_id = _text(table, "dataset_id", place)
    path = folder / _text(table, "path", place) if "path" in table else None
    if path is not None and not path.exists():
        raise UsageError(f"{place}: there is no file {path}")
    arrays = _load(loader, path, table.get("options", {}), place)
    wanted = _columns(table, arrays, place)
    return from_table(name, dataset_id, wanted, _stack(arrays, wanted, place))


def _load(
    loader: str, path: Path | None, options: object, place: str
) -> Mapping[str, NDArray[np.generic]]:
    readers: dict[str, Callable[[Path, str], Mapping[str, NDArray[np.generic]]]] = {
        "npz": _read_npz,
        "csv": _read_csv,
    }
    if loader in readers:
        if path is None:
            raise UsageError(f"{place}: the loader {loader!r} needs a path")
        if options:
            raise UsageError(f"{place}: the loader {loader!r} takes no options")
        return readers[loader](path, place)
    if not re.fullmatch(r"[\w.]+:\w+", loader):
        raise UsageError(f'{place}: loader must be "npz", "csv" or "module:function"')
    return _call_python_loader(loader, path, options, place)


def _read_npz(path: Path, place: str) -> Mapping[str, NDArray[np.generic]]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile, TypeError, AttributeError) as error:
        message = f"{place}: {path} is no .npz file of plain number arrays: {error}"
        raise UsageError(message) from error


def _read_csv(path: Path, place: str) -> Mapping[str, NDArray[np.generic]]:
    head, _, body = path.read_bytes().replace(b"\r\n", b"\n").partition(b"\n")
    names = [part.strip().strip('"') for part in head.decode("utf-8-sig").split(",")]
    if len(set(names)) != len(names) or "" in names:
        raise UsageError(f"{place}: the first line of {path} must name every column, none twice")
    body = body.strip(b"\n")
    if not body:
        return {name: np.empty(0, dtype=np.float32) for name in names}
    filled = _MISSING.sub(b"nan", b"\n" + body + b"\n")
    lines = filled.decode("utf-8", errors="replace").split("\n")[1:-1]
    try:
        table_NC = np.loadtxt(lines, dtype=np.float32, delimiter=",", ndmin=2, comments=None)
    except ValueError as error:
        # numpy counts data rows from 0, people count lines of the file from 1, header included.
        message = f"{place}: {path} (rows counted from 0 below the header): {error}"
        raise UsageError(message) from error
    if table_NC.shape[1] != len(names):
        message = f"{place}: {path} names {len(names)} columns and has {table_NC.shape[1]}"
        raise UsageError(message)
    return dict(zip(names, table_NC.T, strict=True))


def _call_python_loader(
    loader: str, path: Path | None, options: object, place: str
) -> Mapping[str, NDArray[np.generic]]:
    module_name, _, function_name = loader.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{place}: cannot import the loader {loader!r}: {error}") from error
    arrays = function(path, options)
    if not isinstance(arrays, Mapping):
        raise UsageError(f"{place}: {loader} must give a mapping from column names to arrays")
    return {str(name): np.asarray(array) for name, array in arrays.items()}


def _columns(
    table: Mapping[str, object], arrays: Mapping[str, NDArray[np.generic]], place: str
) -> tuple[str, ...]:
    wanted = table.get("columns", list(arrays))
    if not isinstance(wanted, list) or not all(isinstance(name, str) for name in wanted):
        raise UsageError(f"{place}: columns must be a list of names")
    lacking = [name for name in wanted if name not in arrays]
    if lacking or not wanted:
        raise UsageError(f"{place}: no column {lacking[:5]} among {sorted(arrays)[:20]}")
    return tuple(wanted)


def _stack(
    arrays: Mapping[str, NDArray[np.generic]], wanted: tuple[str, ...], place: str
) -> NDArray[np.float32]:
    n_rows = len(arrays[wanted[0]]) if arrays[wanted[0]].ndim == 1 else 0
    table_NC = np.empty((n_rows, len(wanted)), dtype=np.float32)
    for position, name in enumerate(wanted):
        array = arrays[name]
        if array.ndim != 1 or array.dtype.kind not in "fiub":
            kind = f"{array.dtype} of shape {array.shape}"
            message = f"{place}: column {name!r} must be a list of numbers, not {kind}"
            raise UsageError(message)
        if len(array) != n_rows:
            raise UsageError(
                f"{place}: column {name!r} has {len(array)} rows, {wanted[0]!r} has {n_rows}"
            )
        table_NC[:, position] = array
    return table_NC


def _text(table: Mapping[str, object], key: str, place: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value:
        raise UsageError(f"{place}: {key} must be given, as text")
    return value
