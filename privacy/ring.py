"""Count in Z_(2^B) and put its values on the wire with exactly B bits each.

Values live in uint32 and are kept below 2^B. The wire form is one little-endian bit string: value
i takes the bits i*B to (i+1)*B - 1, bit 0 being the lowest bit of the first byte, and the last
byte is filled up with zero bits. Received bytes have exactly the right length and zero padding, or
they are refused: one value has one encoding, so equal digests mean equal vectors.

Shapes: d = values of one vector.
"""

import numpy as np
from numpy.typing import NDArray

from privacy.errors import PeerError, Reason, UsageError
from privacy.kernels.compiled import loops_for
from privacy.kernels.packing import CHUNK, pack_into, unpack_into

MIN_BITS = 8
MAX_BITS = 32


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
    packed = np.empty(packed_length(values_d.size, bits), dtype=np.uint8)
    values_d = np.ascontiguousarray(values_d, dtype="<u4")
    pack_into(packed, values_d, bits, loops_for(values_d.size))
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
    packed_b = check_packed(packed, count, bits)
    values_d = np.empty(count, dtype="<u4")
    unpack_into(values_d, packed_b, bits, loops_for(count))
    return values_d


def add_packed(total_d: NDArray[np.uint32], packed: bytes | memoryview, bits: int) -> None:
    """Add ring values from their packed form, modulo 2^32.

    Args:
        total_d: Added to, contiguous, shape (d,).
        packed: What `pack` wrote of as many values; it comes from the other side.
        bits: Bit width B, 8 to 32.

    Raises:
        PeerError: As `unpack`; nothing has been added then.
    """
    packed_b = check_packed(packed, total_d.size, bits)
    loops = loops_for(total_d.size)
    values_s = np.empty(min(CHUNK, total_d.size), dtype="<u4")
    for begin in range(0, total_d.size, CHUNK):
        total_s = total_d[begin : begin + CHUNK]
        fresh_s = values_s[: total_s.size]
        offset = begin * bits // 8
        source = packed_b[offset : offset + packed_length(total_s.size, bits)]
        unpack_into(fresh_s, source, bits, loops)
        np.add(total_s, fresh_s, out=total_s)


def check_packed(packed: bytes | memoryview, count: int, bits: int) -> NDArray[np.uint8]:
    """Refuse bytes that are not the one packed form of some values, and give them as an array.

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
    return np.frombuffer(packed, dtype=np.uint8)
