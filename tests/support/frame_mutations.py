"""Change one field of a protobuf frame in every way that its type allows.

A field is named by its path: names and indices from the message down. Nothing here knows a message
by name, so a new field is mutated as soon as it exists.
"""

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

Path = tuple[Any, ...]

_BYTES_CHANGES = ("empty", "first bit", "last bit", "cut", "longer", "huge", "zeros", "ones")
_TEXT_CHANGES = ("empty", "other", "huge", "control")
_NUMBER_CHANGES = ("zero", "one more", "one less", "largest")
_MESSAGE_CHANGES = ("cleared",)
_LIST_CHANGES = ("none", "twice", "reversed", "without last", "many")
HUGE_BYTES = 100_000
MANY = 3_000


def paths(message: Message, base: Path = ()) -> Iterator[tuple[Path, FieldDescriptor]]:
    """Give every field that is set, and of lists the list itself and its first and last item."""
    for descriptor, value in message.ListFields():
        here = (*base, descriptor.name)
        yield here, descriptor
        if descriptor.is_repeated:
            ends = {0, len(value) - 1}
            for index in sorted(ends):
                yield (*here, index), descriptor
                if descriptor.message_type is not None:
                    yield from paths(value[index], (*here, index))
        elif descriptor.message_type is not None:
            yield from paths(value, here)


def changes_for(path: Path, descriptor: FieldDescriptor) -> tuple[str, ...]:
    """Name the changes that a field's type allows."""
    if descriptor.is_repeated and not isinstance(path[-1], int):
        return _LIST_CHANGES
    if descriptor.message_type is not None:
        return _MESSAGE_CHANGES
    if descriptor.type == FieldDescriptor.TYPE_BYTES:
        return _BYTES_CHANGES
    if descriptor.type == FieldDescriptor.TYPE_STRING:
        return _TEXT_CHANGES
    return _NUMBER_CHANGES


def changed(message: Message, path: Path, descriptor: FieldDescriptor, change: str) -> Message:
    """Return a copy with one field changed."""
    copy = type(message)()
    copy.CopyFrom(message)
    owner: Any = copy
    for step in path[:-1]:
        owner = owner[step] if isinstance(step, int) else getattr(owner, step)
    last = path[-1]
    if change in _LIST_CHANGES:
        _change_list(getattr(owner, last), change)
    elif change == "cleared":
        (owner[last] if isinstance(last, int) else getattr(owner, last)).Clear()
    else:
        value = owner[last] if isinstance(last, int) else getattr(owner, last)
        new = _new_value(value, change, descriptor)
        if isinstance(last, int):
            owner[last] = new
        else:
            setattr(owner, last, new)
    return copy


def _change_list(items: Any, change: str) -> None:
    before = list(items)
    after = {
        "none": [],
        "twice": before + before[-1:],
        "reversed": before[::-1],
        "without last": before[:-1],
        "many": before[:1] * MANY,
    }[change]
    del items[:]
    items.extend(after)


def _new_value(value: Any, change: str, descriptor: FieldDescriptor) -> Any:
    if isinstance(value, bytes):
        return {
            "empty": b"",
            "first bit": bytes([value[0] ^ 0x80]) + value[1:] if value else b"\x80",
            "last bit": value[:-1] + bytes([value[-1] ^ 1]) if value else b"\x01",
            "cut": value[:-1],
            "longer": value + b"\x00",
            "huge": value * (HUGE_BYTES // max(len(value), 1)),
            "zeros": bytes(len(value)),
            "ones": b"\xff" * len(value),
        }[change]
    if isinstance(value, str):
        return {
            "empty": "",
            "other": value + "x",
            "huge": "x" * HUGE_BYTES,
            "control": "a\x00b\x1b[31m",
        }[change]
    if isinstance(value, float):
        return {"zero": 0.0, "one more": value + 1, "one less": -value, "largest": float("inf")}[
            change
        ]
    most = _LARGEST[descriptor.type]
    return {
        "zero": 0,
        "one more": min(value + 1, most),
        "one less": max(value - 1, 0),
        "largest": most,
    }[change]


_LARGEST = {
    FieldDescriptor.TYPE_UINT32: 2**32 - 1,
    FieldDescriptor.TYPE_UINT64: 2**64 - 1,
    FieldDescriptor.TYPE_INT32: 2**31 - 1,
    FieldDescriptor.TYPE_INT64: 2**63 - 1,
    FieldDescriptor.TYPE_BOOL: True,
    FieldDescriptor.TYPE_ENUM: 0,
}
