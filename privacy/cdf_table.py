"""Draw integers from a symmetric distribution that is stored as a 128-bit cumulative table.

One sample is the table row in which a 128-bit uniform number falls. The first 32 bits decide all
but about rows/2^32 of the samples; the rest read 96 bits more and are decided exactly. So a
sample costs four bytes of keystream, and its distribution is that of the full 128-bit table.
Run time depends on the values drawn, as with any table: updates leave on a schedule, never when
the sampler happens to be done.

Shapes: R = rows of the table.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from privacy.errors import UsageError
from privacy.keystream import Keystream, Label, blocks_at

TAIL_BITS = 130
"""Mass beyond a table, on both sides together: below 2^-130."""

START_BITS = 200
"""Weights beyond this mass need not be exact: what they add is of this order."""

_UNIT = 128  # bits of a table entry
_FIRST = 32  # bits of the first draw
_MAX_GUIDE_BITS = 18
_SAMPLES_OF_A_BLOCK = 4
_CHUNK = 1 << 15  # samples at once: the working arrays stay in the second-level cache


@dataclass(frozen=True, repr=False)
class CumulativeTable:
    """A cumulative distribution of integers, symmetric about 0, in 128-bit fixed point.

    Row r stands for the value r - half_width and covers the 128-bit numbers up to and including
    its bound.

    Attributes:
        half_width: Largest magnitude in the table.
        bounds: Inclusive upper bounds, R of them as 16 little-endian bytes each.
        tv: Bound on the total variation distance between one sample and the distribution, cut
            tails included: the accountant adds steps * n * d times ``DEFAULT_SAMPLER_TV``, which a
            test holds above it, to the delta of the guarantee (privacy.md, "Accounting").
    """

    half_width: int
    bounds: bytes
    tv: float
    _first_R: NDArray[np.uint32] = field(init=False)
    _guide: NDArray[np.int32] = field(init=False)
    _guide_shift: int = field(init=False)

    def __post_init__(self) -> None:
        first_R = np.frombuffer(self.bounds, dtype="<u4")[3::4].copy()
        bits = min(_MAX_GUIDE_BITS, max(8, int(first_R.size).bit_length() + 1))
        starts = np.arange(1 << bits, dtype=np.uint32) << np.uint32(_FIRST - bits)
        guide = np.searchsorted(first_R, starts, side="left").astype(np.int32)
        object.__setattr__(self, "_first_R", first_R)
        object.__setattr__(self, "_guide", guide)
        object.__setattr__(self, "_guide_shift", _FIRST - bits)

    def bound(self, row: int) -> int:
        """Give the largest 128-bit number that falls into a row."""
        return int.from_bytes(self.bounds[16 * row : 16 * row + 16], "little")

    def sample(
        self,
        seed: bytes,
        count: int,
        streams: tuple[Label, Label] = (Label.NOISE_FIRST, Label.NOISE_TIE),
        offset: int = 0,
    ) -> NDArray[np.int64]:
        """Draw independent integers.

        Args:
            seed: 32 secret bytes, used for nothing else and once only.
            count: Number of samples, at least 0.
            streams: Labels of the first words and of the words that decide ties.
            offset: Samples to pass over, a multiple of 4: a slice of what the seed stands for.

        Returns:
            Integers, shape (count,), the same for the same seed on every machine.

        Raises:
            UsageError: The seed is not 32 bytes, or the offset is no multiple of 4.
        """
        if offset % _SAMPLES_OF_A_BLOCK:
            raise UsageError("samples are passed over in whole blocks of the keystream, by fours")
        stream = Keystream(seed, streams[0], offset // _SAMPLES_OF_A_BLOCK)
        samples = np.empty(count, dtype=np.int64)
        for begin in range(0, count, _CHUNK):
            size = min(_CHUNK, count - begin)
            first = stream.read(4 * size).view("<u4")
            rows, tied = self._rows(first)
            if tied.size:
                blocks = blocks_at(seed, streams[1], tied + (offset + begin))
                rows[tied] = self._resolve(first[tied], blocks)
            np.subtract(rows, self.half_width, out=samples[begin : begin + size])
        return samples

    def _rows(self, first: NDArray[np.uint32]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Find the row of each draw, and the draws that 32 bits leave undecided."""
        rows = self._guide.take(first >> np.uint32(self._guide_shift))
        # The guide's row is right for most draws, the next one for most others; a tail has many
        # rows under one guide entry, so what is left is searched for.
        behind = np.flatnonzero(first >= self._first_R.take(rows))
        rows[behind] += first.take(behind) > self._first_R.take(rows.take(behind))
        behind = behind[first.take(behind) >= self._first_R.take(rows.take(behind))]
        rows[behind] = np.searchsorted(self._first_R, first.take(behind), side="left")
        return rows, behind[first.take(behind) == self._first_R.take(rows.take(behind))]

    def _resolve(self, first: NDArray[np.uint32], blocks: list[bytes]) -> list[int]:
        """Decide draws whose first 32 bits equal those of a bound, by 96 bits more each."""
        rows = range(self._first_R.size)
        return [
            bisect_left(
                rows, (int(head) << 96) | int.from_bytes(block[:12], "little"), key=self.bound
            )
            for head, block in zip(first, blocks, strict=True)
        ]


def table_of(weights: Sequence[int], half_width: int) -> CumulativeTable:
    """Build the table of a symmetric distribution from numbers proportional to its masses.

    Args:
        weights: For k = K down to 0, each so close that all masses together are within 2^-140 of
            the whole; K so large that the mass beyond it is no more than that.
        half_width: Largest magnitude in the table, below K: the mass beyond is at most
            2^-TAIL_BITS. Rows whose mass rounds to nothing are left out.

    Returns:
        A table each of whose bounds is within 2^-128 of the true cumulative probability, and both
        halves of which mirror each other exactly.
    """
    total = 2 * sum(weights) - weights[-1]
    # One division and many products: this reciprocal costs each of them less than 2^-160.
    shift = total.bit_length() + 160
    reciprocal = (1 << shift) // total
    half = 1 << (shift - _UNIT - 1)
    lower = [  # 2^128 P(X <= -k) to the nearest, for k = half_width .. 1; the tail in the first
        (mass * reciprocal + half) >> (shift - _UNIT) for mass in accumulate(weights[:-1])
    ][len(weights) - 1 - half_width :]
    bounds = [mass - 1 for mass in lower if mass]
    dropped = half_width - len(bounds)
    half_width -= dropped
    top = (1 << _UNIT) - 1
    bounds += [top - 1 - bound for bound in reversed(bounds)]
    bounds.append(top)
    rows = len(bounds)
    return CumulativeTable(
        half_width=half_width,
        bounds=b"".join([bound.to_bytes(16, "little") for bound in bounds]),
        tv=(rows + 2) * 2.0**-_UNIT,
    )
