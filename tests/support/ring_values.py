"""Signed integers as values of the ring, for tests that need no mask."""

import numpy as np

from privacy.ring import reduce_in_place


def reduce_to_ring(values_d, bits):
    """Reduce int64 mod 2^B: the low 32 bits of the two's complement are the value mod 2^32."""
    return reduce_in_place(values_d.astype(np.uint32), bits)
