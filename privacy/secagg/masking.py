"""Stage 7: mask an update so that it is uniform on Z_(2^B); and take the masks off a sum.

The masks cancel only in the sum over the survivor set, with the terms that the site's and the
aggregator's machines give. Shapes: d = integers of one vector.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from privacy.errors import UsageError
from privacy.noise import NoisedUpdate
from privacy.ring import check_bits, reduce_in_place
from privacy.secagg.messages import MaskTerm
from privacy.secagg.prg import Words, add_keystreams


@dataclass(frozen=True, eq=False, repr=False)
class MaskedUpdate:
    """A masked vector: what may leave the site.

    Attributes:
        values_d: Integers in [0, 2^bits), uint32, shape (d,).
        bits: Bit width B of the ring.
    """

    values_d: Words
    bits: int


def mask(update: NoisedUpdate, terms: Sequence[MaskTerm], ring_bits: int) -> MaskedUpdate:
    """Mask an update with exactly the terms of ``MaskAndUpload``.

    Args:
        update: Takes nothing but the type of the noise stage (or of its ``without_noise``); the
            integers may be negative or large, they wrap modulo 2^B.
        terms: The self mask and one pairwise mask for each other member of U2.
        ring_bits: B of the attempt's plan, 8..32.

    Raises:
        UsageError: There is no term (the vector would leave bare), or an argument is malformed.
    """
    if not terms:
        raise UsageError("refusing to mask an update with no terms: it would leave in the clear")
    check_bits(ring_bits)
    if update.vector_D.ndim != 1 or update.vector_D.dtype.kind not in "iu":
        raise UsageError("an update to mask is a vector of integers")
    # The cast keeps the low 32 bits of the two's complement: reduction modulo 2^32, one copy.
    masked_d = update.vector_D.astype(np.uint32, order="C", copy=True)
    apply_terms(masked_d, terms)
    return MaskedUpdate(reduce_in_place(masked_d, ring_bits), ring_bits)


def unmask(sum_d: Words, terms: Sequence[MaskTerm], ring_bits: int, offset: int = 0) -> None:
    """Take the masks off a folded sum, in place; the result is exact, in [0, 2^B).

    Args:
        sum_d: Sum of the masked updates of U3 modulo 2^32 or 2^B, uint32, shape (d,), or a slice.
        terms: From ``UnmaskSum``, applied with their signs as they are.
        ring_bits: B, 8..32.
        offset: Coordinate at which a slice starts, as in ``add_keystreams``.
    """
    check_bits(ring_bits)
    apply_terms(sum_d, terms, offset)
    reduce_in_place(sum_d, ring_bits)


def apply_terms(acc_d: Words, terms: Sequence[MaskTerm], offset: int = 0) -> None:
    """Add every term's keystream in place modulo 2^32; ``offset`` as in ``add_keystreams``."""
    add_keystreams(acc_d, [(term.key, term.sign) for term in terms], offset)
