"""HKDF under SA-1's labels, and the seeds that everything secret derives from."""

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from privacy.errors import UsageError
from privacy.secagg.encoding import enc

SEED_BYTES = 32


def hkdf(secret: bytes, *info: str | bytes | int, length: int = 32) -> bytes:
    """Derive ``length`` bytes from a secret with HKDF-SHA-256 (RFC 5869), empty salt.

    Args:
        secret: Input key material.
        info: Encoded injectively; the first part is a ``Label``.
        length: At most 8160.
    """
    return HKDF(hashes.SHA256(), length, None, enc(*info)).derive(secret)


def check_seed(seed: bytes) -> bytes:
    """Give a seed back.

    Raises:
        UsageError: It has not 32 bytes.
    """
    if len(seed) != SEED_BYTES:
        raise UsageError(f"a seed has {len(seed)} bytes, it must have {SEED_BYTES}")
    return seed
