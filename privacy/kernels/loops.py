"""The compiled loops; only `privacy.kernels.compiled` imports this file, where numba is installed.

Each repeats a reference in numpy bit by bit. Nothing here may be compiled with relaxed arithmetic
(``fastmath``): sums keep the order in which they are written, and a product and a sum stay two
roundings, as in numpy; a test looks for fused instructions in what comes out.

Shapes: D = values before a map, d = after it.
"""

import numpy as np
from numba import njit


def _compiled(function):
    """Compile when first called, and keep the machine code beside the source where that may be."""
    try:
        return njit(nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError:  # there is no folder to keep it in: every process compiles for itself
        return njit(nogil=True, error_model="numpy")(function)


@_compiled
def pack_words(values, bits, words):
    """Write whole groups of 64 values of 9 to 31 bits as ``bits`` words a group.

    Two values, or four that are narrow, are put together first: adding to the bit string is a chain
    of steps that wait for each other.
    """
    mask = np.uint64((1 << bits) - 1)
    one, width = np.uint64(bits), 2 * bits
    if bits <= 16:
        width = 4 * bits
    filled, word, at = 0, np.uint64(0), 0
    step = width // bits
    for i in range(0, values.size, step):
        unit = np.uint64(values[i]) & mask
        unit |= (np.uint64(values[i + 1]) & mask) << one
        if step == 4:
            unit |= (np.uint64(values[i + 2]) & mask) << (one + one)
            unit |= (np.uint64(values[i + 3]) & mask) << (one + one + one)
        word |= unit << np.uint64(filled)
        filled += width
        if filled >= 64:
            words[at] = word
            at += 1
            filled -= 64
            word = unit >> np.uint64(width - filled) if filled else np.uint64(0)


@_compiled
def unpack_words(words, bits, values):
    """Read whole groups of 64 values of 9 to 31 bits, two or four at once as they were put in."""
    mask = np.uint64((1 << bits) - 1)
    one, width = np.uint64(bits), 2 * bits
    if bits <= 16:
        width = 4 * bits
    step = width // bits
    bit = 0
    last = words.size - 1
    for i in range(0, values.size, step):
        at, shift = bit >> 6, np.uint64(bit & 63)
        unit = words[at] >> shift
        unit |= (words[min(at + 1, last)] << np.uint64(1)) << (np.uint64(63) - shift)
        values[i] = np.uint32(unit & mask)
        values[i + 1] = np.uint32((unit >> one) & mask)
        if step == 4:
            values[i + 2] = np.uint32((unit >> (one + one)) & mask)
            values[i + 3] = np.uint32((unit >> (one + one + one)) & mask)
        bit += width
