"""The bounds on received data, each in one small check that names the field it refuses.

Protobuf has checked types and UTF-8, nothing else: lengths, counts, order, ranges, finiteness and
printability are checked here, before a state machine, a file name, a log line or a metric label
sees the value. Every refusal is a ``PeerError``; the value itself is never repeated in the message.
"""

import math
from collections.abc import Sequence, Sized
from dataclasses import dataclass

from privacy.errors import PeerError, Reason
from privacy.secagg.keys import P256, Suite, suite_named
from tidegate.manifest import MAX_SITES, Manifest
from tidegate.names import NAME, NAME_RULE

HASH_BYTES = 32
INSTANCE_ID_BYTES = 16
MAX_SIGNATURE_BYTES = 72
MAX_TEXT_CHARS = 1000
MAX_ROUND = 1_000_000
MAX_TIME_S = 1 << 40
MAX_EPSILON = 1e9

_MIN_SIGNATURE_BYTES = 8
_REASONS = frozenset(reason.value for reason in Reason)


@dataclass(frozen=True)
class Limits:
    """The largest counts and sizes to accept; before the manifest is sealed, the defaults.

    ``suite`` fixes the sizes of keys and sealed shares, none of which travels before that.
    """

    max_sites: int = MAX_SITES
    max_vector_length: int = 1 << 26
    max_message_bytes: int = 4_194_304
    suite: Suite = P256

    @classmethod
    def of(cls, manifest: Manifest) -> "Limits":
        """Take the limits that a sealed manifest sets."""
        limits, suite = manifest.limits, suite_named(manifest.suite)
        return cls(limits.max_sites, limits.max_vector_length, limits.max_message_bytes, suite)


DEFAULT_LIMITS = Limits()


def malformed(name: str, rule: str) -> PeerError:
    """Make the error for a field that breaks a rule."""
    return PeerError(Reason.MALFORMED, f"{name}: {rule}")


def fixed(value: bytes, size: int, name: str) -> bytes:
    """Take bytes of exactly one length."""
    if len(value) != size:
        raise malformed(name, f"must have {size} bytes, not {len(value)}")
    return value


def sha256(value: bytes, name: str) -> bytes:
    """Take a SHA-256 digest."""
    return fixed(value, HASH_BYTES, name)


def blob(value: bytes, most: int, name: str, least: int = 1) -> bytes:
    """Take bytes of a length in ``least..most``."""
    if len(value) > most:
        raise PeerError(Reason.TOO_LARGE, f"{name}: has {len(value)} bytes, at most {most} allowed")
    if len(value) < least:
        raise malformed(name, f"must have at least {least} bytes")
    return value


def signature(value: bytes, name: str) -> bytes:
    """Take a signature (Ed25519, or ECDSA P-256 in DER) by its length; it is verified later."""
    if not _MIN_SIGNATURE_BYTES <= len(value) <= MAX_SIGNATURE_BYTES:
        raise malformed(name, f"must be a signature of at most {MAX_SIGNATURE_BYTES} bytes")
    return value


def whole(value: int, low: int, high: int, name: str) -> int:
    """Take a whole number in ``low..high``."""
    if not low <= value <= high:
        raise malformed(name, f"must lie in {low}..{high}")
    return value


def finite(value: float, most: float, name: str, least: float = 0.0) -> float:
    """Take a finite number in ``least..most``; a NaN would poison every total it enters."""
    if not math.isfinite(value):
        raise PeerError(Reason.NOT_FINITE, f"{name}: must be finite")
    if not least <= value <= most:
        raise malformed(name, f"must lie in {least:g}..{most:g}")
    return value


def text(value: str, name: str, most: int = MAX_TEXT_CHARS) -> str:
    """Take text for people: bounded, and printable, so that it cannot forge a log line."""
    if len(value) > most:
        raise PeerError(Reason.TOO_LARGE, f"{name}: has more than {most} characters")
    if not value.isprintable():
        raise malformed(name, "must hold printable characters only")
    return value


def slug(value: str, name: str) -> str:
    """Take a site, job or consortium id: ``names.NAME``."""
    if NAME.fullmatch(value) is None:
        raise malformed(name, f"must be {NAME_RULE}")
    return value


def reason(value: str, name: str) -> str:
    """Take a word of ``privacy.errors.Reason``, as it becomes a metric label."""
    if value not in _REASONS:
        raise malformed(name, "is not a known reason")
    return value


def count(items: Sized, most: int, name: str, least: int = 1) -> int:
    """Count items before any of them is looked at."""
    size = len(items)
    if size > most:
        raise PeerError(Reason.TOO_LARGE, f"{name}: holds {size} items, at most {most} allowed")
    if size < least:
        raise malformed(name, f"must hold at least {least} items")
    return size


def indices(items: Sequence[int], most: int, name: str) -> tuple[int, ...]:
    """Take roster indices: each in ``1..most``, ascending, none twice."""
    count(items, most, name)
    last = 0
    for index in items:
        if not last < index <= most:
            raise malformed(name, f"must hold ascending indices in 1..{most}")
        last = index
    return tuple(items)


def printable(value: str, most: int = MAX_TEXT_CHARS) -> str:
    """Make text fit for sending: other characters become spaces, the end is cut off.

    Error texts of libraries hold line ends; an honest sender must not be refused for them.
    """
    if not value.isprintable():
        value = "".join(c if c.isprintable() else " " for c in value[:most])
    return value[:most]
