"""Write an app's ``Context.state`` as bytes and read it back, exactly (trainer side).

The daemon keeps the bytes between calls and never looks into them. Nothing is pickled: names,
numbers and text are JSON, arrays and byte strings follow in the order in which they are named::

    u64 length of the JSON (little endian), JSON, contents one after the other
"""

import json
import struct
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

_LENGTH = struct.Struct("<Q")


class StateError(Exception):
    """The state cannot be kept."""


def state_to_bytes(state: RecordDict, most: int) -> bytes:
    """Give a state's bytes; none for an empty one.

    Args:
        state: As the app left it.
        most: How many bytes the site keeps.

    Raises:
        StateError: It takes more.
    """
    if not state:
        return b""
    contents: list[bytes] = []
    records = [[name, *_pack(record, contents)] for name, record in state.items()]
    head = json.dumps(records, separators=(",", ":")).encode("ascii")
    size = _LENGTH.size + len(head) + sum(map(len, contents))
    if size > most:
        raise StateError(
            f"Context.state takes {size} bytes and this site keeps {most} for a job: store less in"
            " it, or ask the site for a higher [trainer] app_state_mib"
        )
    return b"".join([_LENGTH.pack(len(head)), head, *contents])


def state_from_bytes(raw: bytes) -> RecordDict:
    """Read a state back; a new one from no bytes.

    Raises:
        StateError: These are not the bytes of any state.
    """
    if not raw:
        return RecordDict()
    try:
        (length,) = _LENGTH.unpack_from(raw)
        begin = _LENGTH.size + length
        contents = _Contents(raw, begin)
        records = json.loads(raw[_LENGTH.size : begin])
        return RecordDict({name: _unpack(kind, body, contents) for name, kind, body in records})
    except (ValueError, TypeError, struct.error) as error:
        raise StateError("the kept Context.state is damaged") from error


class _Contents:
    """The contents after the JSON, read one after the other."""

    def __init__(self, raw: bytes, begin: int) -> None:
        self._raw = raw
        self._position = begin

    def take(self, size: int) -> bytes:
        end = self._position + size
        if size < 0 or end > len(self._raw):
            raise ValueError("a content is cut short")
        taken, self._position = self._raw[self._position : end], end
        return taken


def _pack(record: object, contents: list[bytes]) -> tuple[str, list[Any]]:
    match record:
        case ArrayRecord():
            contents += [array.data for array in record.values()]
            arrays = [
                [name, a.dtype, list(a.shape), a.stype, len(a.data)] for name, a in record.items()
            ]
            return "arrays", arrays
        case MetricRecord():
            return "metrics", list(record.items())
        case ConfigRecord():
            return "config", [[name, _to_json(value, contents)] for name, value in record.items()]
    raise StateError(f"Context.state holds a {type(record).__name__}, which is no record")


def _unpack(kind: str, body: list[Any], contents: _Contents) -> ArrayRecord | MetricRecord | Any:
    if kind == "arrays":
        arrays = {
            name: Array(dtype, tuple(shape), stype, contents.take(size))
            for name, dtype, shape, stype, size in body
        }
        return ArrayRecord(arrays)
    if kind == "metrics":
        return MetricRecord(dict(body))
    return ConfigRecord({name: _from_json(value, contents) for name, value in body})


def _to_json(value: Any, contents: list[bytes]) -> Any:
    """Write a value; bytes become their length, and follow after the JSON."""
    if isinstance(value, list):
        return [_to_json(entry, contents) for entry in value]
    if isinstance(value, bytes):
        contents.append(value)
        return {"bytes": len(value)}
    return value


def _from_json(value: Any, contents: _Contents) -> Any:
    if isinstance(value, list):
        return [_from_json(entry, contents) for entry in value]
    return contents.take(value["bytes"]) if isinstance(value, dict) else value
