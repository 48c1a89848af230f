"""Stage 7: mask an update so that it is uniform on Z_(2^B); and take the masks off a sum.

The masks cancel only in the sum over the survivor set, with the terms that the site's and the
aggregator's machines give. Shapes: d = integers of one vector.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from privacy.errors import UsageError
from privacy.kernels.compiled import loops_for
from privacy.kernels.packing import pack_into
from privacy.noise import NoisedUpdate
from privacy.ring import check_bits, packed_length, reduce_in_place
from privacy.secagg.messages import MaskTerm
from privacy.secagg.prg import CHUNK_WORDS, MaskStreams, Words, add_keystreams


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
    _check_update(update, terms, ring_bits)
    # The cast keeps the low 32 bits of the two's complement: reduction modulo 2^32, one copy.
    masked_d = update.vector_D.astype(np.uint32, order="C", copy=True)
    apply_terms(masked_d, terms)
    return MaskedUpdate(reduce_in_place(masked_d, ring_bits), ring_bits)


def mask_and_pack(update: NoisedUpdate, terms: Sequence[MaskTerm], ring_bits: int) -> memoryview:
    """Mask an update and write it as it travels: ``ring.pack`` of what `mask` gives.

    Chunk by chunk, so that no vector but the packed one is made, and the integers without all
    their masks never leave one small buffer.

    Args:
        update: As for `mask`.
        terms: As for `mask`.
        ring_bits: B of the attempt's plan, 8..32.

    Returns:
        Exactly B bits a value; a buffer of its own, kept by nobody else.

    Raises:
        UsageError: As `mask`.
    """
    _check_update(update, terms, ring_bits)
    vector_D = update.vector_D
    loops = loops_for(vector_D.size)
    streams = MaskStreams([(term.key, term.sign) for term in terms])
    packed_b = np.empty(packed_length(vector_D.size, ring_bits), dtype=np.uint8)
    masked_s = np.empty(min(CHUNK_WORDS, vector_D.size), dtype=np.uint32)
    for begin in range(0, vector_D.size, CHUNK_WORDS):
        source_s = vector_D[begin : begin + CHUNK_WORDS]
        chunk_s = masked_s[: source_s.size]
        np.copyto(chunk_s, source_s, casting="unsafe")  # the low 32 bits, as in `mask`
        streams.add_next(chunk_s)
        offset = begin * ring_bits // 8
        target = packed_b[offset : offset + packed_length(chunk_s.size, ring_bits)]
        pack_into(target, chunk_s, ring_bits, loops)
    return packed_b.data


def _check_update(update: NoisedUpdate, terms: Sequence[MaskTerm], ring_bits: int) -> None:
    if not terms:
        raise UsageError("refusing to mask an update with no terms: it would leave in the clear")
    check_bits(ring_bits)
    if update.vector_D.ndim != 1 or update.vector_D.dtype.kind not in "iu":
        raise UsageError("an update to mask is a vector of integers")


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
