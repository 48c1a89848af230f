"""Write and read a Flower message's settings as canonical JSON: a ``ConfigRecord`` on the wire.

A strategy's message to a ClientApp holds the model, which is broadcast, and settings, which travel
here: one JSON object of exactly three members, compact, ASCII, keys sorted::

    {"arrays":"arrays","config":"config","values":{"lr":0.1,"server-round":3}}

``arrays`` and ``config`` are the names of the two records in the message. Values are those that
Flower allows: whole numbers of 64 bits, finite floats, text, booleans, bytes (``{"hex":"00ff"}``)
and lists of one of them. What a site reads must be byte by byte what ``encode`` writes.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from privacy.errors import PeerError, Reason, UsageError

MAX_BYTES = 65_536
ARRAYS = "arrays"
CONFIG = "config"

ConfigScalar = int | float | str | bool | bytes
ConfigValue = ConfigScalar | list[int] | list[float] | list[str] | list[bool] | list[bytes]

_MAX_NAME_CHARS = 256
_INT64 = 1 << 63
_KINDS = (bool, int, float, str, bytes)  # bool first: True is an int
_MEMBERS = {"arrays", "config", "values"}


@dataclass(frozen=True)
class MessageConfig:
    """The settings of one message.

    Attributes:
        values: The ``ConfigRecord``'s.
        arrays_key: Under which name the app finds the model (``arrayrecord_key`` of a strategy).
        config_key: Under which name it finds the settings (``configrecord_key``).
    """

    values: Mapping[str, ConfigValue] = field(default_factory=dict)
    arrays_key: str = ARRAYS
    config_key: str = CONFIG


DEFAULT = MessageConfig()
"""No settings, under the names that Flower's strategies give by themselves."""


def encode(config: MessageConfig) -> bytes:
    """Give the canonical bytes.

    Raises:
        UsageError: A name or value cannot be sent, or they are more than 64 KiB together.
    """
    try:
        content = _content(config)
        raw = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (ValueError, TypeError) as error:
        raise UsageError(f"the settings of a Flower message cannot be sent: {error}") from None
    if len(raw) > MAX_BYTES:
        raise UsageError(
            f"the settings of a Flower message take {len(raw)} bytes, {MAX_BYTES} is the most"
        )
    return raw.encode("ascii")


def decode(raw: bytes, name: str = "config") -> MessageConfig:
    """Read settings back.

    Args:
        raw: As received.
        name: What to call them in messages.

    Raises:
        PeerError: TOO_LARGE, or MALFORMED: these are not the canonical bytes of any settings.
    """
    if len(raw) > MAX_BYTES:
        raise PeerError(Reason.TOO_LARGE, f"{name}: more than {MAX_BYTES} bytes")
    try:
        config = _read(json.loads(raw))
        same = encode(config) == raw
    except (ValueError, TypeError, AttributeError, RecursionError, UsageError) as error:
        raise _bad(name) from error
    if not same:
        raise _bad(name)
    return config


def _content(config: MessageConfig) -> dict[str, Any]:
    if config.arrays_key == config.config_key:
        raise ValueError("the model and the settings need names that differ")
    return {
        "arrays": _name(config.arrays_key),
        "config": _name(config.config_key),
        "values": {_name(name): _to_json(value) for name, value in config.values.items()},
    }


def _read(content: Any) -> MessageConfig:
    if not isinstance(content, dict) or content.keys() != _MEMBERS:
        raise TypeError
    values = {name: _from_json(value) for name, value in content["values"].items()}
    return MessageConfig(values, content["arrays"], content["config"])


def _name(name: object) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME_CHARS:
        raise ValueError(f"a name must be text of 1 to {_MAX_NAME_CHARS} characters")
    name.encode()
    return name


def _to_json(value: object) -> Any:
    if not isinstance(value, list):
        return _scalar_to_json(value)
    if len({_kind(entry) for entry in value}) > 1:
        raise TypeError("a list must hold values of one kind")
    return [_scalar_to_json(entry) for entry in value]


def _scalar_to_json(value: Any) -> Any:
    kind = _kind(value)
    if kind is bytes:
        return {"hex": value.hex()}
    if kind is str:
        value.encode()  # a lone surrogate is no text
    if kind is int and not -_INT64 <= value < _INT64:
        raise ValueError("a whole number must fit 64 bits")
    if kind is float and not math.isfinite(value):
        raise ValueError("a number must be finite")
    return value


def _kind(value: object) -> type:
    for kind in _KINDS:
        if type(value) is kind:
            return kind
    raise TypeError(f"a value must be a number, text, bytes or a list of one, not {type(value)}")


def _from_json(value: Any) -> ConfigValue:
    if isinstance(value, list):
        found: Any = [_scalar_from_json(entry) for entry in value]
    else:
        found = _scalar_from_json(value)
    return found  # type: ignore[no-any-return]  # `encode` checks what it holds


def _scalar_from_json(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() != {"hex"}:
            raise TypeError
        return bytes.fromhex(value["hex"])
    return value


def _bad(name: str) -> PeerError:
    message = f"{name}: must be the settings of a Flower message in canonical JSON"
    return PeerError(Reason.MALFORMED, message)
