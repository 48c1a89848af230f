"""One injective encoding for everything that is hashed or signed, so no two values collide."""

import hashlib


def enc(*parts: str | bytes | int) -> bytes:
    """Encode parts so that different tuples never share an encoding.

    Each part is a type tag, an eight-byte big-endian length and its bytes; integers are unsigned
    and of minimal length.
    """
    out = bytearray()
    for part in parts:
        if isinstance(part, str):
            tag, raw = b"s", part.encode()
        elif isinstance(part, bytes):
            tag, raw = b"b", part
        else:
            tag, raw = b"i", part.to_bytes((part.bit_length() + 7) // 8, "big")
        out += tag + len(raw).to_bytes(8, "big") + raw
    return bytes(out)


def hash_of(*parts: str | bytes | int) -> bytes:
    """Return SHA-256 of the encoding of the parts: 32 bytes."""
    return hashlib.sha256(enc(*parts)).digest()
