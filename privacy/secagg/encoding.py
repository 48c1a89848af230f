"""One injective encoding for everything that is hashed or signed, so no two values collide.

Also the one table of domain-separation labels: a label is the first part of every hash, signature
and key derivation, so a value made for one purpose never serves another.
"""

import hashlib
import struct
from enum import StrEnum

from privacy.errors import PeerError, Reason

SIGNED_PREFIX = b"tidegate/sa/1 signature\x00"
"""Every signed message starts with it: a pinned key signs nothing else that looks like one."""

_HEADER = struct.Struct(">cQ")
_MAX_PARTS = 1_000_000


class Label(StrEnum):
    """Every domain-separation label of SA-1: what a hash, signature or derived key is for."""

    CONTEXT = "tidegate/sa/1"
    PLAN = "plan"
    ROSTER = "roster"
    BUNDLE = "bundle"
    SHARE_STATEMENT = "share"
    SURVIVOR_STATEMENT = "u3"
    ABORT_STATEMENT = "abort"
    INDEX_SET = "index-set"
    CIPHERTEXT = "ciphertext"
    SHARE_LEAF = "share-leaf"
    SHARE_NODE = "share-node"
    SHARE_ROOT = "share-root"
    SELF_SEED_COMMITMENT = "b"
    SELF_SHARE_COMMITMENT = "b-share"
    MASK_SHARE_COMMITMENT = "m-share"
    GRAPH_REVEAL_COMMITMENT = "r"
    GRAPH = "graph"
    RING = "ring"
    TRANSCRIPT = "transcript"
    ROSTER_INPUT = "input-1"
    REVEALS_INPUT = "input-1-sparse"
    DELIVERY_INPUT = "input-2"
    SURVIVOR_INPUT = "input-3"
    RETRY = "retry"
    SHARE_KEY = "share-key"
    SELF_MASK_KEY = "self"
    PAIR_MASK_KEY = "pair"
    TRANSPORT_SEED = "seed-c"
    MASK_SEED = "seed-m"
    GRAPH_SEED = "seed-r"
    TRANSPORT_SCALAR = "scalar-c"
    MASK_SCALAR = "scalar-m"
    TRANSPORT_KEM = "kem-c"
    SHAMIR_COEFFICIENTS = "shamir"
    BASE_NOISE = "noise"
    SURPLUS_NOISE = "surplus-noise"


def enc(*parts: str | bytes | int) -> bytes:
    """Encode parts so that different tuples never share an encoding.

    Each part is a type tag, an eight-byte big-endian length and its bytes; integers are unsigned
    and of minimal length. A site encodes some 15,000 parts an attempt of 100 sites, nearly all of
    them labels, indices, keys and hashes: what is alike in those is taken from tables.
    """
    pieces: list[bytes] = []
    for part in parts:
        if isinstance(part, bytes):
            size = len(part)
            pieces.append(_BYTES_HEADERS[size] if size < _TABLED else _HEADER.pack(b"b", size))
            pieces.append(part)
        elif isinstance(part, str):
            pieces.append(_LABELS.get(part) or _enc_text(part))
        else:
            pieces.append(_NUMBERS[part] if 0 <= part < _TABLED else _enc_number(part))
    return b"".join(pieces)


def _enc_text(text: str) -> bytes:
    raw = text.encode()
    return _HEADER.pack(b"s", len(raw)) + raw


def _enc_number(number: int) -> bytes:
    raw = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return _HEADER.pack(b"i", len(raw)) + raw


_TABLED = 1024
"""Lengths and numbers below it are looked up; a roster's indices end at 1000."""

_BYTES_HEADERS = tuple(_HEADER.pack(b"b", size) for size in range(_TABLED))
_NUMBERS = tuple(map(_enc_number, range(_TABLED)))
_LABELS: dict[str, bytes] = {label: _enc_text(label) for label in Label}


def dec(encoded: bytes) -> tuple[str | bytes | int, ...]:
    """Decode what ``enc`` gave, and nothing else: ``enc(*dec(e)) == e`` or it raises.

    Raises:
        PeerError: MALFORMED, for a truncated, unknown or not minimal part.
    """
    parts: list[str | bytes | int] = []
    at = 0
    while at < len(encoded):
        start = at + _HEADER.size
        end = start + int.from_bytes(encoded[at + 1 : start], "big")
        if start > len(encoded) or end > len(encoded) or len(parts) >= _MAX_PARTS:
            raise PeerError(Reason.MALFORMED, f"encoding is cut off in part {len(parts)}")
        parts.append(_part(encoded[at : at + 1], encoded[start:end]))
        at = end
    return tuple(parts)


def _part(tag: bytes, raw: bytes) -> str | bytes | int:
    if tag == b"b":
        return raw
    if tag == b"s":
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise PeerError(Reason.MALFORMED, "encoding holds a string not UTF-8") from error
    if tag == b"i" and raw[:1] != b"\x00":
        return int.from_bytes(raw, "big")
    raise PeerError(Reason.MALFORMED, "encoding holds an unknown or not minimal part")


def hash_of(*parts: str | bytes | int) -> bytes:
    """Return SHA-256 of the encoding of the parts: 32 bytes."""
    return hashlib.sha256(enc(*parts)).digest()
