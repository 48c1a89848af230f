"""Turn Arrow's columns into numbers and keys: what Parquet, CSV and Hugging Face files come as."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_node.data.source import NUMBERS, TEXT, Keys, SourceColumn, need


def describe(name: str, array: Any) -> SourceColumn:
    """Say what kind of column an Arrow array is, its shape from its first value.

    Args:
        name: Of the column.
        array: A few of its rows.
    """
    types = need("pyarrow.types")
    array = _plain(array)
    kind = array.type
    shape: tuple[int, ...] = ()
    while _is_list(kind):
        array = array.drop_null()
        length = kind.list_size if types.is_fixed_size_list(kind) else _first_length(array)
        shape += (length,)
        array = _plain(array.flatten())
        kind = array.type
    numeric = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    if numeric or types.is_boolean(kind):
        return SourceColumn(name, NUMBERS, shape)
    text = _is_text(kind) and not shape
    return SourceColumn(name, TEXT if text else str(array.type), shape)


def to_numbers(array: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """Give an Arrow array as numbers, shape (n, *shape); NaN where a value is missing.

    Raises:
        ValueError: The values are not all of the shape.
    """
    array = _plain(array)
    if shape:
        return _lists(array, shape)
    pyarrow = need("pyarrow")
    types = pyarrow.types
    if types.is_boolean(array.type):
        array = array.cast(pyarrow.int8())
    if types.is_decimal(array.type) or (array.null_count and types.is_integer(array.type)):
        array = array.cast(pyarrow.float64(), safe=False)
    numbers: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return numbers.astype(np.float64) if numbers.dtype.kind == "O" else numbers


def to_keys(array: Any) -> Keys:
    """Find an Arrow array's distinct values; nulls, NaN and empty texts have none."""
    pyarrow, compute = need("pyarrow"), need("pyarrow.compute")
    types = pyarrow.types
    array = _plain(array)
    if _is_text(array.type):
        array = compute.replace_with_mask(
            array, compute.equal(array, "").fill_null(False), pyarrow.scalar(None, array.type)
        )
    elif types.is_floating(array.type):
        array = compute.replace_with_mask(
            array, compute.is_nan(array).fill_null(False), pyarrow.scalar(None, array.type)
        )
    elif not types.is_integer(array.type):
        array = array.cast(pyarrow.string())
    encoded = array.dictionary_encode()
    places = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return Keys(places, tuple(encoded.dictionary.to_pylist()))


def _plain(array: Any) -> Any:
    """Give the storage of an extension's array and the values of a dictionary's."""
    pyarrow = need("pyarrow")
    if isinstance(array, pyarrow.ChunkedArray):
        array = array.combine_chunks()
    if isinstance(array.type, pyarrow.BaseExtensionType):
        array = array.storage
    return array.dictionary_decode() if pyarrow.types.is_dictionary(array.type) else array


def _is_text(kind: Any) -> bool:
    types = need("pyarrow.types")
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_list(kind: Any) -> bool:
    types = need("pyarrow.types")
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _first_length(array: Any) -> int:
    return len(array[0]) if len(array) else 0


def _lists(array: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """Give lists of lists as one array, NaN throughout where a whole list is missing."""
    lengths = need("pyarrow.compute").list_value_length(array).drop_null()
    if len(lengths) and (lengths.to_numpy(zero_copy_only=False) != shape[0]).any():
        raise ValueError(f"its lists are not all {shape[0]} long")
    there = array.is_valid().to_numpy(zero_copy_only=False)
    inner = to_numbers(array.drop_null().flatten(), shape[1:])
    values = inner.reshape(-1, *shape)
    if there.all():
        return values
    rows = np.full((len(there), *shape), np.nan)
    rows[there] = values
    return rows
