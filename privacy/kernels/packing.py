"""Move ring values into a bit string of B bits each, and back: the format stands in `privacy.ring`.

Whole groups of 64 values go through the compiled loops where the caller gives them, all else
through numpy. Both give the same bytes.

Shapes: d = values, b = bytes.
"""

import math
from collections.abc import Iterator
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

CHUNK = 1 << 15
"""Values at once, a whole number of groups: the working arrays stay in the second-level cache."""

_WORD = 64
_GROUP = 64  # values of a compiled group: they fill B words, whatever B is
_PLAIN = {8: "<u1", 16: "<u2", 32: "<u4"}


def pack_into(
    packed_b: NDArray[np.uint8],
    values_d: NDArray[np.uint32],
    bits: int,
    loops: ModuleType | None = None,
) -> None:
    """Write values; their upper bits are dropped.

    Args:
        packed_b: Overwritten; exactly the bytes that the values take.
        values_d: Contiguous.
        bits: Bit width B, 8 to 32.
        loops: From ``loops_for`` the whole vector; None for numpy.
    """
    if bits in _PLAIN:
        np.copyto(packed_b.view(_PLAIN[bits]), values_d, casting="unsafe")
        return
    done = 0
    if loops is not None:
        whole = values_d.size - values_d.size % _GROUP
        words = packed_b[: whole * bits // 8].view("<u8")
        if words.flags.aligned:
            loops.pack_words(values_d[:whole], bits, words)
            done = whole
    for begin in range(done, values_d.size, CHUNK):
        chunk = _pack_words(values_d[begin : begin + CHUNK], bits).view(np.uint8)
        rest = packed_b[begin * bits // 8 :]
        rest[: chunk.size] = chunk[: rest.size]


def unpack_into(
    values_d: NDArray[np.uint32],
    packed_b: NDArray[np.uint8],
    bits: int,
    loops: ModuleType | None = None,
) -> None:
    """Read values.

    Args:
        values_d: Overwritten, contiguous.
        packed_b: Exactly the bytes that the values take.
        bits: Bit width B, 8 to 32.
        loops: From ``loops_for`` the whole vector; None for numpy.
    """
    if bits in _PLAIN:
        np.copyto(values_d, packed_b.view(_PLAIN[bits]))
        return
    done = 0
    if loops is not None:
        whole = values_d.size - values_d.size % _GROUP
        words = packed_b[: whole * bits // 8].view("<u8")
        words.flags.writeable = False  # one kind of array: the loop is compiled for each kind
        if words.flags.aligned:
            loops.unpack_words(words, bits, values_d[:whole])
            done = whole
    for begin in range(done, values_d.size, CHUNK):
        size = min(CHUNK, values_d.size - begin)
        offset = begin * bits // 8
        source = packed_b[offset : offset + (size * bits + 7) // 8]
        _unpack_words(source, bits, values_d[begin : begin + size])


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
