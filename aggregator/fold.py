"""Stage 9: add whole masked uploads into one accumulator, whatever the number of sites.

Arithmetic is that of int32 with wrap-around, on the torch device: sums mod 2^32, and 2^B divides
2^32, so reducing once at the end is exact and the order does not matter. Memory is one vector and
one chunk. On a CPU the chunk is unpacked by ``privacy.ring``, elsewhere by its torch twin here; a
test holds both to the same bits.

Shapes: d = integers of one vector.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from privacy import ring
from privacy.errors import PeerError, Reason, UsageError

CHUNK_VALUES = 1 << 20
"""Values unpacked at once; a multiple of 8, so that every chunk begins at a whole byte."""

_WORD = 64


class PackedVector(Protocol):
    """Where packed bytes are read from; ``spool.Upload`` is one."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes from an offset on."""
        ...


@dataclass(frozen=True, eq=False, repr=False)
class FoldedSum:
    """The sum of the masked updates of a survivor set, masks still on.

    Attributes:
        values_d: uint32 below 2^B, shape (d,), on the CPU.
        bits: B.
        updates: How many were folded.
    """

    values_d: NDArray[np.uint32]
    bits: int
    updates: int


def pick_device(name: str) -> torch.device:
    """Return the torch device of a configuration; "auto" takes an accelerator where there is one.

    Raises:
        UsageError: There is no such device here.
    """
    try:
        if name == "auto":
            found = torch.accelerator.current_accelerator(check_available=True)
            return found if found is not None else torch.device("cpu")
        device = torch.device(name)
        torch.zeros(1, dtype=torch.int32, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"device = {name!r} cannot be used here: {error}") from error
    return device


class Fold:
    """One attempt's accumulator."""

    def __init__(self, length: int, bits: int, device: torch.device) -> None:
        """Make an accumulator of zeros.

        Args:
            length: d.
            bits: B, 8 to 32.
            device: Where the accumulator lives.
        """
        ring.check_bits(bits)
        self._length = length
        self._bits = bits
        self._sum_d = torch.zeros(length, dtype=torch.int32, device=device)
        self._updates = 0

    @property
    def packed_bytes(self) -> int:
        """Return the size of one upload."""
        return ring.packed_length(self._length, self._bits)

    def add(self, packed: PackedVector) -> None:
        """Add one whole upload.

        Raises:
            PeerError: MALFORMED, wrong length or padding: the accumulator is then void, as a part
                of the upload may be in it.
        """
        for begin in range(0, self._length, CHUNK_VALUES):
            count = min(CHUNK_VALUES, self._length - begin)
            size = ring.packed_length(count, self._bits)
            chunk = packed.read_at(begin * self._bits // 8, size)
            target = self._sum_d[begin : begin + count]
            if target.device.type == "cpu":
                ring.add_packed(target.numpy().view(np.uint32), chunk, self._bits)
            else:
                target += unpack_on_device(chunk, count, self._bits, target.device)
        self._updates += 1

    def finish(self) -> FoldedSum:
        """Reduce mod 2^B and hand the sum over; the accumulator is not to be used again."""
        values_d = self._sum_d.cpu().numpy().view(np.uint32)
        return FoldedSum(ring.reduce_in_place(values_d, self._bits), self._bits, self._updates)


def unpack_on_device(packed: bytes, count: int, bits: int, device: torch.device) -> torch.Tensor:
    """Do what ``ring.unpack`` does, on a device.

    Returns:
        int32 with the bits of the uint32 values, shape (count,).

    Raises:
        PeerError: MALFORMED, the length is not that of ``count`` values, or a padding bit is set.
    """
    length = ring.packed_length(count, bits)
    padding = 8 * length - count * bits
    if len(packed) != length or (padding and packed[-1] >> (8 - padding)):
        raise PeerError(Reason.MALFORMED, f"no packed vector of {count} values of {bits} bits")
    per_group = _WORD // math.gcd(bits, _WORD)
    words_per_group = bits // math.gcd(bits, _WORD)
    groups = -(-count // per_group)
    padded = np.zeros(groups * words_per_group * 8, dtype=np.uint8)
    padded[:length] = np.frombuffer(packed, dtype=np.uint8)
    words = torch.from_numpy(padded.view(np.int64)).to(device).view(groups, words_per_group)
    columns = torch.empty((groups, per_group), dtype=torch.int32, device=device)
    for index in range(per_group):
        word, shift = divmod(index * bits, _WORD)
        # int64 shifts drag the sign along: the bits above those of this word are masked off.
        value = (words[:, word] >> shift) & ((1 << min(bits, _WORD - shift)) - 1)
        if shift + bits > _WORD:
            rest = shift + bits - _WORD
            value |= (words[:, word + 1] & ((1 << rest) - 1)) << (_WORD - shift)
        columns[:, index] = value.to(torch.int32)
    return columns.view(-1)[:count]
