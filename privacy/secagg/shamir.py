"""Shamir's secret sharing over the prime p = 2^256 + 297, so that any 32-byte secret fits.

x is the 1-based rank of the holder in the roster, never 0. A share is 33 bytes, big-endian, below
p. Coefficients come from an injected seed: dealing twice gives the same shares.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate

from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg.encoding import Label
from privacy.secagg.kdf import hkdf

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33

_WIDE_BYTES = 48
"""48 bytes modulo p: the bias is below 2^-127."""

_COEFFICIENTS_A_KEY = 160
"""HKDF gives at most 8160 bytes: 170 coefficients."""


def coefficients(seed: bytes, count: int, *binding: str | bytes | int) -> tuple[int, ...]:
    """Derive a polynomial's higher coefficients, uniform modulo p.

    Args:
        seed: 32 bytes, fresh for each attempt.
        count: t - 1.
        binding: What the polynomial is for: rh, owner, kind.
    """
    wide = b"".join(
        hkdf(
            seed,
            Label.SHAMIR_COEFFICIENTS,
            start,
            *binding,
            length=_WIDE_BYTES * min(_COEFFICIENTS_A_KEY, count - start),
        )
        for start in range(0, count, _COEFFICIENTS_A_KEY)
    )
    return tuple(
        int.from_bytes(wide[at : at + _WIDE_BYTES], "big") % PRIME
        for at in range(0, _WIDE_BYTES * count, _WIDE_BYTES)
    )


def split(secret: bytes, higher: Sequence[int], holders: Sequence[int]) -> tuple[bytes, ...]:
    """Share a secret among holders so that any ``len(higher) + 1`` of them find it.

    Args:
        secret: 32 bytes.
        higher: From ``coefficients``.
        holders: Each one's x, from 1; the shares come in their order.

    Raises:
        UsageError: The secret has not 32 bytes, or the threshold is not in 1..len(holders).
    """
    if len(secret) != SECRET_BYTES:
        raise UsageError(f"a secret to share has {len(secret)} bytes, not {SECRET_BYTES}")
    if not 1 <= len(higher) + 1 <= len(holders):
        raise UsageError(f"threshold {len(higher) + 1} is not in 1..{len(holders)}")
    descending = (*reversed(higher), int.from_bytes(secret, "big"))
    return tuple(_evaluate(descending, x).to_bytes(SHARE_BYTES, "big") for x in holders)


def _evaluate(descending: Sequence[int], x: int) -> int:
    """Evaluate a polynomial at x modulo p by Horner's rule.

    A rank x has few bits, so that one reduction at the end is cheaper than one for each term.
    """
    value = 0
    for coefficient in descending:
        value = value * x + coefficient
    return value % PRIME


def check_share(share: bytes) -> int:
    """Return a share as a number below p.

    Raises:
        PeerError: BAD_SHARE, wrong length or not below p.
    """
    value = int.from_bytes(share, "big")
    if len(share) != SHARE_BYTES or value >= PRIME:
        raise PeerError(Reason.BAD_SHARE, "a share is not 33 bytes below the prime")
    return value


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Find the 32-byte secret from shares by holder's index; the first ``threshold`` are used.

    Raises:
        PeerError: BAD_SHARE, too few shares, a holder that is 0 or above p, a share out of range,
            or a secret of 2^256 or more.
    """
    holders = tuple(sorted(shares))[:threshold]
    if len(holders) < threshold or not holders or not 0 < holders[0] <= holders[-1] < PRIME:
        raise PeerError(Reason.BAD_SHARE, f"{len(holders)} usable shares, {threshold} are needed")
    values = [check_share(shares[x]) for x in holders]
    weights = _lagrange_at_zero(holders)
    secret = sum(w * v for w, v in zip(weights, values, strict=True)) % PRIME
    if secret >> (8 * SECRET_BYTES):
        raise PeerError(Reason.BAD_SHARE, "shares combine to no 32-byte secret: dealt wrongly")
    return secret.to_bytes(SECRET_BYTES, "big")


@lru_cache(maxsize=8)
def _lagrange_at_zero(holders: tuple[int, ...]) -> tuple[int, ...]:
    """Return each holder's weight at x = 0: the product of o / (o - x) over the others o.

    Few are worth keeping: in the complete graph all owners have the same holders, in a sparse one
    each has its own. Holders are small numbers, so products are taken plain, and one inversion
    modulo p serves all (Montgomery's trick).
    """
    everyone = math.prod(holders) % PRIME
    below = [x * math.prod(other - x for other in holders if other != x) % PRIME for x in holders]
    before = list(accumulate(below, lambda left, right: left * right % PRIME, initial=1))
    inverse = pow(before[-1], -1, PRIME)
    weights = []
    for value, product in zip(reversed(below), reversed(before[:-1]), strict=True):
        weights.append(everyone * product * inverse % PRIME)
        inverse = inverse * value % PRIME
    return tuple(reversed(weights))
