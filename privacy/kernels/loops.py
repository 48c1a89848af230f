"""The compiled loops; only `privacy.kernels.compiled` imports this file, where numba is installed.

Each repeats a reference in numpy bit by bit. Nothing here may be compiled with relaxed arithmetic
(``fastmath``): sums keep the order in which they are written, and a product and a sum stay two
roundings, as in numpy.

Shapes: D = values before a map, d = after it.
"""

import numpy as np
from numba import njit

BLOCK = 4096
_SIDE = 64.0
_LANES = 16
_SIGNS = 1.0 - 2.0 * np.unpackbits(
    np.arange(256, dtype=np.uint8)[:, np.newaxis], axis=1, bitorder="little"
)
"""The eight signs that a byte stands for."""


def _compiled(function):
    """Compile when first called, and keep the machine code beside the source where that may be."""
    try:
        return njit(nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError:  # there is no folder to keep it in: every process compiles for itself
        return njit(nogil=True, error_model="numpy")(function)


def _part(function):
    """Let a loop be compiled into those that call it, constants and all."""
    return njit(inline="always", error_model="numpy")(function)


@_part
def _radix8(v, h):
    """Do three stages of butterflies at once, of distances h, 2h and 4h."""
    for base in range(0, BLOCK, 8 * h):
        for k in range(base, base + h):
            a0, a1, a2, a3 = v[k], v[k + h], v[k + 2 * h], v[k + 3 * h]
            a4, a5, a6, a7 = v[k + 4 * h], v[k + 5 * h], v[k + 6 * h], v[k + 7 * h]
            b0, b1, b2, b3 = a0 + a1, a0 - a1, a2 + a3, a2 - a3
            b4, b5, b6, b7 = a4 + a5, a4 - a5, a6 + a7, a6 - a7
            c0, c1, c2, c3 = b0 + b2, b1 + b3, b0 - b2, b1 - b3
            c4, c5, c6, c7 = b4 + b6, b5 + b7, b4 - b6, b5 - b7
            v[k], v[k + h], v[k + 2 * h], v[k + 3 * h] = c0 + c4, c1 + c5, c2 + c6, c3 + c7
            v[k + 4 * h], v[k + 5 * h] = c0 - c4, c1 - c5
            v[k + 6 * h], v[k + 7 * h] = c2 - c6, c3 - c7


@_part
def _radix8_lanes(v):
    """Do the first three stages; a loop of its own, as each step of it is eight neighbours."""
    for i in range(BLOCK // 8):
        k = 8 * i
        a0, a1, a2, a3 = v[k], v[k + 1], v[k + 2], v[k + 3]
        a4, a5, a6, a7 = v[k + 4], v[k + 5], v[k + 6], v[k + 7]
        b0, b1, b2, b3 = a0 + a1, a0 - a1, a2 + a3, a2 - a3
        b4, b5, b6, b7 = a4 + a5, a4 - a5, a6 + a7, a6 - a7
        c0, c1, c2, c3 = b0 + b2, b1 + b3, b0 - b2, b1 - b3
        c4, c5, c6, c7 = b4 + b6, b5 + b7, b4 - b6, b5 - b7
        v[k], v[k + 1], v[k + 2], v[k + 3] = c0 + c4, c1 + c5, c2 + c6, c3 + c7
        v[k + 4], v[k + 5], v[k + 6], v[k + 7] = c0 - c4, c1 - c5, c2 - c6, c3 - c7


@_compiled
def _hadamard(v):
    """Multiply 4096 values by the Hadamard matrix of entries +-1, in place.

    Compiled once and called: its stages, taken into each loop that rotates, would be most of the
    compile time of each.
    """
    _radix8_lanes(v)
    _radix8(v, 8)
    _radix8(v, 64)
    _radix8(v, 512)


@_compiled
def rotate_blocks(source_d, out_d):
    """Multiply each block of 4096 by the orthonormal Hadamard matrix."""
    work = np.empty(BLOCK, np.float64)
    for begin in range(0, out_d.size, BLOCK):
        work[:] = source_d[begin : begin + BLOCK]
        _hadamard(work)
        for i in range(BLOCK):
            out_d[begin + i] = work[i] / _SIDE


@_part
def _round_to_nearest(values, half, out):
    """Round to nearest, ties to even; returns how many reach ``half`` or are no numbers."""
    beyond = 0
    for i in range(values.size):
        rounded = np.rint(values[i])
        beyond += not (abs(rounded) < half)  # true for NaN too
        out[i] = np.int32(rounded)
    return beyond


@_part
def _round_by_coins(values, coins, half, out):
    """Round up where the coin is below the fraction; returns how many reach ``half``."""
    beyond = 0
    for i in range(values.size):
        floor = np.floor(values[i])
        rounded = floor + np.float64(np.float64(coins[i]) < (values[i] - floor) * 4294967296.0)
        beyond += not (abs(rounded) < half)  # true for NaN too
        out[i] = np.int32(rounded)
    return beyond


@_part
def _round(values, coins, half, out):
    """Round by coins where there are any."""
    if coins.size:
        return _round_by_coins(values, coins, half, out)
    return _round_to_nearest(values, half, out)


@_compiled
def scale_and_round(source_d, factor, scale, coins_d, half, out_d):
    """Clip by a factor, scale and round; returns how many integers do not fit the ring.

    Args:
        source_d: float32.
        factor: Of the clip.
        scale: s, grid steps per unit.
        coins_d: uint32, one a value, or none at all: then round to nearest.
        half: Magnitudes from here on do not fit.
        out_d: Signed integers that hold what is below ``half``.
    """
    work = np.empty(BLOCK, np.float64)
    beyond = 0
    for begin in range(0, source_d.size, BLOCK):
        end = min(begin + BLOCK, source_d.size)
        for i in range(end - begin):
            work[i] = (np.float64(source_d[begin + i]) * factor) * scale
        beyond += _round(work[: end - begin], coins_d[begin:end], half, out_d[begin:end])
    return beyond


@_compiled
def rotate_and_round(source_D, factor, sign_bits, scale, coins_d, half, out_d):
    """Do the same with signs and blocks of 4096 between clip and scale.

    Args:
        source_D: float32; values that are wanting in the last block are zeros.
        factor: Of the clip.
        sign_bits: uint8, a bit a value of all blocks, lowest bit of a byte first; 1 is minus.
        scale: s, grid steps per unit.
        coins_d: As above.
        half: As above.
        out_d: As above; whole blocks.
    """
    work = np.empty(BLOCK, np.float64)
    beyond = 0
    for begin in range(0, out_d.size, BLOCK):
        end = begin + BLOCK
        count = max(0, min(BLOCK, source_D.size - begin))
        for i in range(count):
            work[i] = np.float64(source_D[begin + i]) * factor
        for i in range(count, BLOCK):
            work[i] = 0.0
        for i in range(BLOCK // 8):
            signs = _SIGNS[sign_bits[begin // 8 + i]]
            for k in range(8):
                work[8 * i + k] *= signs[k]
        _hadamard(work)
        for i in range(BLOCK):
            work[i] = (work[i] / _SIDE) * scale
        beyond += _round(work, coins_d[begin:end], half, out_d[begin:end])
    return beyond


@_compiled
def square_sums(source_D, lanes):
    """Add the squares of values i, i + 16, i + 32, ... to lane i, in that order."""
    whole = source_D.size - source_D.size % _LANES
    for begin in range(0, whole, _LANES):
        for lane in range(_LANES):
            value = np.float64(source_D[begin + lane])
            lanes[lane] += value * value
    for i in range(whole, source_D.size):
        value = np.float64(source_D[i])
        lanes[i - whole] += value * value


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
