"""Count in Z_(2^B) and put its values on the wire with exactly B bits each.

Values live in uint32 and are kept below 2^B. The wire form is one little-endian bit string: value
i takes the bits i*B to (i+1)*B - 1, bit 0 being the lowest bit of the first byte, and the last
byte is filled up with zero bits. Received bytes have exactly the right length and zero padding, or
they are refused: one value has one encoding, so equal digests mean equal vectors.

Shapes: d = values of one vector.
"""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from privacy.errors import PeerError, Reason, UsageError

MIN_BITS = 8
MAX_BITS = 32
_WORD = 64
_CHUNK = 1 << 15  # values at once, a whole number of groups: the working arrays stay in cache


def check_bits(bits: int) -> None:
    """Refuse a bit width outside 8..32.

    Raises:
        UsageError: B is out of range.
    """
    if not MIN_BITS <= bits <= MAX_BITS:
        message = f"a bit width of {bits} is outside {MIN_BITS}..{MAX_BITS}"
        raise UsageError(message)


def packed_length(count: int, bits: int) -> int:
    """Give the number of bytes that `count` values of B bits take.

    Args:
        count: Number of values, at least 0.
        bits: Bit width B, 8 to 32.
    """
    check_bits(bits)
    return (count * bits + 7) // 8


def reduce_in_place(values_d: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
    """Reduce uint32 values, which count mod 2^32, to 0..2^B - 1 and give them back.

    2^B divides 2^32: sums in uint32 are exact mod 2^B, however late they are reduced.

    Args:
        values_d: Overwritten, shape (d,).
        bits: Bit width B, 8 to 32.
    """
    check_bits(bits)
    if bits < MAX_BITS:
        values_d &= np.uint32((1 << bits) - 1)
    return values_d


def centre(values_d: NDArray[np.uint32], bits: int) -> NDArray[np.int64]:
    """Read ring values as signed integers in -2^(B-1) .. 2^(B-1) - 1.

    Args:
        values_d: Values below 2^B, shape (d,).
        bits: Bit width B, 8 to 32.
    """
    check_bits(bits)
    shift = np.uint32(MAX_BITS - bits)
    # Moving the sign bit of the ring to that of int32 and back extends it.
    signed_d = (values_d << shift).view(np.int32) >> np.int32(shift)
    return signed_d.astype(np.int64)


def pack(values_d: NDArray[np.uint32], bits: int) -> bytes:
    """Write ring values as a bit string of exactly B bits each.

    Args:
        values_d: Values below 2^B, shape (d,); a value that is not loses its upper bits.
        bits: Bit width B, 8 to 32.
    """
    check_bits(bits)
    values_d = np.ascontiguousarray(values_d, dtype="<u4")
    if bits == MAX_BITS:
        return values_d.tobytes()
    length = packed_length(values_d.size, bits)
    packed = np.empty(length, dtype=np.uint8)
    if bits % 8 == 0:
        width = bits // 8
        source = values_d.view(np.uint8).reshape(-1, 4)
        target = packed.reshape(-1, width)
        for column in range(width):  # byte by byte: numpy copies rows of two to four bytes slowly
            target[:, column] = source[:, column]
        return packed.tobytes()
    for begin in range(0, values_d.size, _CHUNK):
        chunk = _pack_words(values_d[begin : begin + _CHUNK], bits).view(np.uint8)
        offset = begin * bits // 8
        packed[offset : offset + chunk.size] = chunk[: length - offset]
    return packed.tobytes()


def unpack(packed: bytes | memoryview, count: int, bits: int) -> NDArray[np.uint32]:
    """Read ring values from a bit string of exactly B bits each.

    Args:
        packed: What `pack` wrote; it comes from the other side.
        count: Number of values it must hold.
        bits: Bit width B, 8 to 32.

    Raises:
        PeerError: MALFORMED: the length is not that of `count` values, or a padding bit is set.
    """
    length = packed_length(count, bits)
    if len(packed) != length:
        message = f"{count} values of {bits} bits take {length} bytes, received {len(packed)}"
        raise PeerError(Reason.MALFORMED, message)
    padding = 8 * length - count * bits
    if padding and packed[-1] >> (8 - padding):
        message = f"the last {padding} bits of a packed vector must be zero"
        raise PeerError(Reason.MALFORMED, message)
    source = np.frombuffer(packed, dtype=np.uint8)
    if bits % 8 == 0:
        width = bits // 8
        values_d = np.zeros(count, dtype="<u4")
        target = values_d.view(np.uint8).reshape(-1, 4)
        for column in range(width):
            target[:, column] = source.reshape(-1, width)[:, column]
        return values_d
    values_d = np.empty(count, dtype="<u4")
    for begin in range(0, count, _CHUNK):
        size = min(_CHUNK, count - begin)
        offset = begin * bits // 8
        _unpack_words(source[offset : offset + packed_length(size, bits)], bits, values_d[begin:])
    return values_d


def _group(bits: int) -> tuple[int, int]:
    """Give the fewest values that fill whole 64-bit words, and how many words they fill."""
    common = math.gcd(bits, _WORD)
    return _WORD // common, bits // common


def _places(bits: int) -> Iterator[tuple[int, int, int]]:
    """Say for each value of a group its first word, its shift there, and the bits left over."""
    for index in range(_group(bits)[0]):
        word, shift = divmod(index * bits, _WORD)
        yield word, shift, max(0, shift + bits - _WORD)


def _pack_words(values: NDArray[np.uint32], bits: int) -> NDArray[np.uint64]:
    """Pack values, filled up with zeros to whole groups, into 64-bit words."""
    per_group, words_per_group = _group(bits)
    groups = -(-values.size // per_group)
    # Value-major: each step below then runs over contiguous memory.
    columns = np.zeros((per_group, groups), dtype="<u8")
    whole = values.size // per_group
    columns[:, :whole] = values[: whole * per_group].reshape(whole, per_group).T
    if whole < groups:
        rest = values[whole * per_group :]
        columns[: rest.size, whole] = rest
    columns &= np.uint64((1 << bits) - 1)
    words = np.zeros((words_per_group, groups), dtype="<u8")
    for index, (word, shift, over) in enumerate(_places(bits)):
        words[word] |= columns[index] << np.uint64(shift)
        if over:
            words[word + 1] |= columns[index] >> np.uint64(bits - over)
    return np.ascontiguousarray(words.T).reshape(-1)


def _unpack_words(packed: NDArray[np.uint8], bits: int, values: NDArray[np.uint32]) -> None:
    """Unpack the first values of a vector, as many as the packed bytes hold, into `values`."""
    per_group, words_per_group = _group(bits)
    count = min(packed.size * 8 // bits, values.size)
    groups = -(-count // per_group)
    flat = np.zeros(groups * words_per_group * 8, dtype=np.uint8)
    flat[: packed.size] = packed
    words = np.ascontiguousarray(flat.view("<u8").reshape(groups, words_per_group).T)
    columns = np.empty((groups, per_group), dtype="<u4")
    mask = np.uint64((1 << bits) - 1)
    for index, (word, shift, over) in enumerate(_places(bits)):
        value = words[word] >> np.uint64(shift)
        if over:
            value |= words[word + 1] << np.uint64(_WORD - shift)
        columns[:, index] = value & mask
    values[:count] = columns.reshape(-1)[:count]
