"""Expand a mask key into a vector of Z_(2^B): AES-256-CTR, little-endian uint32, low B bits.

The counter starts at 0 and a key is used for one vector only. Sums in uint32 are exact modulo 2^32,
hence modulo 2^B: the reduction to B bits is done once, at the end (``masking``).
Shapes: d = integers of one vector, s = of one chunk.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from privacy.counter_mode import BLOCK_BYTES, KEY_BYTES, SLACK_BYTES, CounterStream
from privacy.errors import UsageError
from privacy.ring import reduce_in_place

Words = npt.NDArray[np.uint32]

WORDS_PER_BLOCK = 4
"""One AES block is four words: a chunk may start at any multiple of it (16 bytes)."""

CHUNK_WORDS = 1 << 15
"""128 KiB: keystream, its text and a slice of the sum stay in the second-level cache together."""

_LITTLE = np.dtype("<u4")


class MaskStreams:
    """Keystreams that pass over a vector together, chunk by chunk, so that sums stay in the cache.

    Keystreams go through one buffer that is gone with this object: what masked one vector is never
    in memory that another one's is made in.
    """

    def __init__(self, keyed: Sequence[tuple[bytes, int]], offset: int = 0) -> None:
        """Open the streams.

        Args:
            keyed: Keys of 32 bytes, each with its sign: +1 adds, -1 subtracts.
            offset: Coordinate at which the first chunk starts, a multiple of 4.

        Raises:
            UsageError: An argument is not as above.
        """
        self._streams = [(_open_stream(key, offset), _operation(sign)) for key, sign in keyed]
        self._buffer = bytearray()

    def add_next(self, chunk_s: Words) -> None:
        """Add every stream's next words in place, modulo 2^32.

        Args:
            chunk_s: Contiguous uint32; a multiple of 4 long, but for the last one.
        """
        if len(self._buffer) < 4 * chunk_s.size + SLACK_BYTES:
            self._buffer = bytearray(4 * chunk_s.size + SLACK_BYTES)
        view = memoryview(self._buffer)
        fresh_s = np.frombuffer(self._buffer, dtype=_LITTLE, count=chunk_s.size)
        for stream, operation in self._streams:
            stream.read_into(view, 4 * chunk_s.size)
            operation(chunk_s, fresh_s, out=chunk_s)


def add_keystreams(acc_d: Words, keyed: Sequence[tuple[bytes, int]], offset: int = 0) -> None:
    """Add (sign +1) or subtract (sign -1) keystreams in place, modulo 2^32.

    Args:
        acc_d: A vector or a slice of it, contiguous uint32.
        keyed: Keys of 32 bytes, each with its sign.
        offset: Coordinate at which a slice starts, a multiple of 4.

    Raises:
        UsageError: An argument is not as above.
    """
    if acc_d.dtype != np.uint32 or acc_d.ndim != 1 or not acc_d.flags.c_contiguous:
        raise UsageError("masks are added to a contiguous vector of uint32")
    streams = MaskStreams(keyed, offset)
    for start in range(0, acc_d.size, CHUNK_WORDS):
        streams.add_next(acc_d[start : start + CHUNK_WORDS])


def keystream(key: bytes, length: int, ring_bits: int) -> Words:
    """Return the first ``length`` mask values of a key, each in [0, 2^B), shape (length,)."""
    acc_d = np.zeros(length, dtype=np.uint32)
    add_keystreams(acc_d, ((key, 1),))
    return reduce_in_place(acc_d, ring_bits)


def _operation(sign: int) -> np.ufunc:
    if sign not in (1, -1):
        raise UsageError(f"a mask's sign is +1 or -1, not {sign}")
    return np.add if sign == 1 else np.subtract


def _open_stream(key: bytes, offset: int) -> CounterStream:
    if len(key) != KEY_BYTES:
        raise UsageError(f"a mask key has {len(key)} bytes, it must have {KEY_BYTES}")
    if offset < 0 or offset % WORDS_PER_BLOCK:
        raise UsageError(f"a chunk starts at coordinate {offset}, not at a multiple of 4")
    return CounterStream(key, (offset // WORDS_PER_BLOCK).to_bytes(BLOCK_BYTES, "big"))
