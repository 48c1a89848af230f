"""Read files of whole arrays: ``npy``, ``safetensors``, ``torch``; ``npz`` has its own file.

An array of rank 1 is a column of single numbers, one of higher rank a column of shaped values. A
file with one array alone names its columns in ``columns``: one name for the array as it is, or a
name for each column of a matrix. Nothing is unpickled.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from edge_node.data.declared import Declared
from edge_node.data.source import (
    NUMBERS,
    TEXT,
    Block,
    Source,
    SourceColumn,
    Wanted,
    brief,
    keys_of,
    need,
    stamp_files,
)
from privacy.errors import UsageError

NO_ARRAY = (
    BadZipFile,
    EOFError,
    OSError,
    RecursionError,
    SyntaxError,
    TokenError,
    TypeError,
    ValueError,
)
"""What numpy raises at a damaged file: it takes a header for Python source."""
_NO_TENSORS = (OSError, ValueError, RuntimeError, EOFError, KeyError, TypeError)
_SAFE_NUMBERS = frozenset(
    "BOOL U8 U16 U32 U64 I8 I16 I32 I64 F16 BF16 F32 F64".split()  # noqa: SIM905 - a list of words
)
_KINDS = {"f": NUMBERS, "i": NUMBERS, "u": NUMBERS, "b": NUMBERS, "U": TEXT, "S": TEXT}


@dataclass(frozen=True)
class ArrayColumn:
    """An array of a file, one row of it after another.

    Attributes:
        name: Of the column.
        kind: As of a `SourceColumn`.
        shape: Of the whole array, rows first.
        read: Gives the rows from one number to another; called in ascending order.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    read: Callable[[int, int], NDArray[Any]]


def kind_of(dtype: np.dtype[Any]) -> str:
    """Say what kind of column an array is."""
    return _KINDS.get(dtype.kind, str(dtype))


def array_source(arrays: Sequence[ArrayColumn], path: Path, where: str) -> Source:
    """Make a source of arrays that have one row for each record.

    Raises:
        UsageError: One has no rows, or not as many as the others.
    """
    for array in arrays:
        if not array.shape:
            raise UsageError(f"{where}: {path}: {array.name!r} is a single value, not a column")
        if 0 in array.shape[1:]:
            raise UsageError(f"{where}: {path}: column {array.name!r} has rows without numbers")
        if array.shape[0] != arrays[0].shape[0]:
            raise UsageError(
                f"{where}: {path}: column {array.name!r} has {array.shape[0]} rows,"
                f" {arrays[0].name!r} has {arrays[0].shape[0]}"
            )
    by_name = {array.name: array for array in arrays}

    def read(wanted: Wanted) -> Iterator[Block]:
        n_rows = arrays[0].shape[0] if arrays else 0
        for begin in range(0, n_rows, wanted.block_rows):
            end = min(n_rows, begin + wanted.block_rows)
            numbers = {name: by_name[name].read(begin, end) for name in wanted.numbers}
            texts = {name: keys_of(by_name[name].read(begin, end)) for name in wanted.texts}
            yield {**numbers, **texts}

    columns = tuple(SourceColumn(array.name, array.kind, array.shape[1:]) for array in arrays)
    return Source(columns, read, lambda: stamp_files([path]))


def open_npy(declared: Declared) -> Source:
    """Open a ``.npy`` file of one array, mapped and not read."""
    path = declared.path()
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (*NO_ARRAY, MemoryError) as error:
        message = f"{declared.where}: {path} is no .npy file of plain numbers: {brief(error)}"
        raise UsageError(message) from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise UsageError(f"{declared.where}: {path} is an .npz archive: write loader = 'npz'")
    return array_source(_split(declared, array, path), path, declared.where)


def _split(declared: Declared, array: NDArray[Any], path: Path) -> list[ArrayColumn]:
    """Give names to the columns of one array."""

    def column(name: str, part: NDArray[Any]) -> ArrayColumn:
        return ArrayColumn(name, kind_of(part.dtype), part.shape, lambda a, b: part[a:b])

    if array.dtype.names:
        return [column(name, array[name]) for name in array.dtype.names]
    names = _names_of_matrix(declared, array.shape, path)
    if len(names) == 1:
        return [column(names[0], array)]
    return [column(name, array[:, place]) for place, name in enumerate(names)]


def _names_of_matrix(declared: Declared, shape: tuple[int, ...], path: Path) -> tuple[str, ...]:
    """Give the names for one array without names: the array's, or one for each column."""
    names = (*declared.columns, *declared.users)
    if len(names) == 1 or (len(shape) == 2 and len(names) == shape[1]):
        return names
    raise UsageError(
        f"{declared.where}: {path} holds one array of shape {list(shape)}: name it in columns ="
        f" [one name]{f', or its {shape[1]} columns' if len(shape) == 2 else ''}"
    )


def open_safetensors(declared: Declared) -> Source:
    """Open a ``.safetensors`` file, one tensor a column; tensors are mapped and read by slices."""
    path = declared.path()
    library = need("safetensors", "data")
    try:
        file = library.safe_open(path, framework="pt")
        slices = {name: file.get_slice(name) for name in sorted(file.keys())}
    except (OSError, library.SafetensorError) as error:
        raise UsageError(
            f"{declared.where}: {path} is no .safetensors file: {brief(error)}"
        ) from error
    arrays = []
    for name, part in slices.items():
        numbers = part.get_dtype() in _SAFE_NUMBERS
        kind = NUMBERS if numbers else str(part.get_dtype())
        arrays.append(ArrayColumn(name, kind, tuple(part.get_shape()), _slice_reader(part)))
    return array_source(arrays, path, declared.where)


def _slice_reader(part: Any) -> Callable[[int, int], NDArray[Any]]:
    return lambda begin, end: _to_numpy(part[begin:end])


def _to_numpy(tensor: Any) -> NDArray[Any]:
    """Show a tensor as an array; bfloat16, which numpy has not, as float32."""
    if tensor.dtype.is_floating_point and tensor.element_size() < 4:
        tensor = tensor.float()
    array: NDArray[Any] = tensor.numpy(force=True)
    return array


def open_torch(declared: Declared) -> Source:
    """Open a ``.pt`` file of one tensor or a dict of tensors, one a column.

    torch reads it with ``weights_only=True``, which builds tensors and nothing else, and maps it.
    """
    path = declared.path()
    torch = need("torch")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (*_NO_TENSORS, UnpicklingError) as error:
        raise _no_tensors(declared, path, error) from error
    if type(content) is torch.Tensor:
        names = _names_of_matrix(declared, tuple(content.shape), path)
        parts = [content] if len(names) == 1 else list(content.unbind(dim=1))
        content = dict(zip(names, parts, strict=True))
    if not isinstance(content, dict) or not content:
        raise _no_tensors(declared, path, "it holds neither a tensor nor a dict of tensors")
    arrays = []
    for name, tensor in content.items():
        plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided
        if not isinstance(name, str) or not plain or tensor.is_quantized or tensor.is_complex():
            raise _no_tensors(declared, path, f"{str(name)[:60]!r} is no plain tensor")
        arrays.append(ArrayColumn(name, NUMBERS, tuple(tensor.shape), _slice_reader(tensor)))
    return array_source(arrays, path, declared.where)


def _no_tensors(declared: Declared, path: Path, why: object) -> UsageError:
    return UsageError(f"{declared.where}: {path} is no .pt file of plain tensors: {brief(why)}")
