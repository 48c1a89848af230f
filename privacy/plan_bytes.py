"""Write frozen records of plain fields as canonical JSON, and read them back strictly.

Compact ASCII JSON, keys sorted, bytes in hexadecimal, a nested record as an object, None as null, a
tuple of records as an array. A field whose metadata say `BESIDE` rides beside the bytes.
One value has one encoding, so equal digests mean equal plans.
"""

import dataclasses
import json
from enum import StrEnum
from types import UnionType
from typing import Any, get_args, get_origin

BESIDE = "beside"
"""Metadata key of a field that is no part of the canonical bytes: another one there names it."""


def to_json(record: Any) -> bytes:
    """Give a record's canonical bytes.

    Args:
        record: A dataclass instance whose fields are int, float, str, bytes, a ``StrEnum``, such a
            record, such a record or None, or a tuple of such records.
    """
    return json.dumps(
        _fields_of(record), sort_keys=True, separators=(",", ":"), allow_nan=False
    ).encode("ascii")


def from_json(kind: type[Any], raw: bytes, most: int) -> Any:
    """Read a record from its canonical bytes.

    Args:
        kind: The dataclass.
        raw: From the wire.
        most: Bytes at most.

    Raises:
        ValueError, TypeError, KeyError, RecursionError: These are not the bytes of such a record.
        PeerError: A field is out of the range that the record allows.
    """
    if len(raw) > most:
        raise ValueError
    return _record(kind, json.loads(raw))


def _fields_of(record: Any) -> dict[str, Any]:
    return {
        field.name: _written(field.type, getattr(record, field.name))
        for field in dataclasses.fields(record)
        if BESIDE not in field.metadata
    }


def _written(kind: Any, value: Any) -> Any:
    if value is None:
        return None
    if dataclasses.is_dataclass(value):
        return _fields_of(value)
    if isinstance(value, tuple):
        return [_fields_of(entry) for entry in value]
    if isinstance(value, bytes):
        return value.hex()
    return (
        value.value if isinstance(value, StrEnum) else kind(value)
    )  # 1 as 1.0 where it is a float


def _record(kind: type[Any], values: Any) -> Any:
    declared = dataclasses.fields(kind)  # a TypeError where it is no record
    fields = {field.name: field.type for field in declared if BESIDE not in field.metadata}
    if not isinstance(values, dict) or values.keys() != fields.keys():
        raise KeyError
    return kind(**{name: _read(fields[name], value) for name, value in values.items()})


def _read(kind: Any, value: Any) -> Any:
    if isinstance(kind, UnionType):
        if value is None:
            return None
        kind = get_args(kind)[0]
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise TypeError
        return tuple(_record(get_args(kind)[0], entry) for entry in value)
    if isinstance(value, dict):
        return _record(kind, value)
    if kind is bytes:
        return bytes.fromhex(value)
    if kind in (int, float, str) and type(value) is not kind:  # True is an int, 1 is not 1.0
        raise TypeError
    return kind(value)
