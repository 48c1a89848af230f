"""Have a Python function of the site's read the data: loader = "module:function".

It is imported because, and only because, the site's own configuration names it. It is called with
the path (or None) and the ``options`` table, and gives a mapping from column names to arrays, rows
first, or an iterator of such mappings with some rows each.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_node.data.arrays import kind_of
from edge_node.data.declared import Declared
from edge_node.data.source import TEXT, Block, Source, SourceColumn, Wanted, keys_of
from privacy.errors import UsageError

_FAULTS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What a mistake in the site's function raises."""


def open_function(declared: Declared) -> Source:
    """Call the function.

    Raises:
        UsageError: It cannot be imported, or gives something else.
    """
    module_name, _, function_name = declared.loader.partition(":")
    options = declared.table.fields.get("options", {})
    if not isinstance(options, dict):
        raise declared.table.bad("options", "must be a table")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        message = f"{declared.where}: cannot import the loader {declared.loader!r}: {error}"
        raise UsageError(message) from error
    parts = _parts(declared, function, options)
    first = next(parts, {})
    columns = tuple(
        SourceColumn(
            name, TEXT if array.dtype.kind == "O" else kind_of(array.dtype), array.shape[1:]
        )
        for name, array in first.items()
    )

    def read(wanted: Wanted) -> Iterator[Block]:
        for part in chain([first], parts):
            lacking = [name for name in (*wanted.numbers, *wanted.texts) if name not in part]
            if lacking:
                raise UsageError(f"{declared.where}: {declared.loader} left out {lacking[:5]}")
            numbers = {name: part[name] for name in wanted.numbers}
            texts = {name: keys_of(part[name]) for name in wanted.texts}
            yield {**numbers, **texts}

    return Source(columns, read)


def _parts(
    declared: Declared, function: Callable[..., Any], options: dict[str, Any]
) -> Iterator[dict[str, NDArray[Any]]]:
    """Call the function and give what it gives, part by part."""
    try:
        given = function(declared.optional_path(), options)
        for part in [given] if isinstance(given, Mapping) else given:
            yield _checked(declared, part)
    except _FAULTS as error:
        message = f"{declared.where}: {declared.loader} failed: {type(error).__name__}: {error}"
        raise UsageError(message) from error


def _checked(declared: Declared, part: Any) -> dict[str, NDArray[Any]]:
    if not isinstance(part, Mapping):
        raise UsageError(
            f"{declared.where}: {declared.loader} must give a mapping from column names to arrays,"
            " or an iterator of them"
        )
    arrays = {str(name): np.asarray(array) for name, array in part.items()}
    for name, array in arrays.items():
        if not array.ndim:
            raise UsageError(f"{declared.where}: column {name!r} is a single value, not a column")
    return arrays
