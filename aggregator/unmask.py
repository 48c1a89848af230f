"""Stage 10: take masks and surplus noise off a folded sum, as SA-1's state machine says.

A mask costs one pass of AES over the vector. A part of a site's surplus noise costs what drawing it
did at the site, 15 to 40 times that (12 to 40 ns a coordinate), for each survivor that answered and
each level reached: 100 survivors, 4 levels, 10^6 coordinates take some 6 s of one core. Slices of
the vector are shared out to the cores: AES and numpy let go of the interpreter's lock.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from aggregator.fold import FoldedSum
from privacy.noise import subtract_noise
from privacy.secagg import masking
from privacy.secagg.messages import MaskTerm
from privacy.secagg.prg import WORDS_PER_BLOCK
from privacy.surplus import NoiseShare

LEAST_SLICE = 1 << 16
MOST_SLICE = 1 << 21
"""In values: threads cost more than less work is worth, and noise is drawn a slice at a time."""


@dataclass(frozen=True, eq=False, repr=False)
class UnmaskedSum:
    """The exact sum of the updates of a survivor set; the only type that ``decode`` is given.

    Attributes:
        values_d: uint32 below 2^B, shape (d,).
        bits: B.
        updates: How many updates it holds.
    """

    values_d: NDArray[np.uint32]
    bits: int
    updates: int


@dataclass(frozen=True)
class Surplus:
    """The noise that survivors let go of: what draws it, and its part in each site's share.

    Attributes:
        share: Of each site, by the plan.
        seeds: By survivor that answered, then by level.
    """

    share: NoiseShare
    seeds: tuple[tuple[bytes, ...], ...] = field(default=(), repr=False)

    @property
    def parts(self) -> list[tuple[int, bytes]]:
        """Return (variance, seed) of each part to subtract."""
        increments = self.share.increments
        return [part for seeds in self.seeds for part in zip(increments, seeds, strict=False)]

    def variance_left(self, updates: int) -> int:
        """Give the variance of all noise in a sum of so many updates, grid units squared."""
        return updates * self.share.variance - sum(variance for variance, _ in self.parts)


def unmask(
    folded: FoldedSum,
    terms: Sequence[MaskTerm],
    parts: Sequence[tuple[int, bytes]] = (),
    workers: int | None = None,
) -> UnmaskedSum:
    """Apply the terms to the folded sum, in place: exact, or noise to anybody without all terms.

    Args:
        folded: Of exactly the survivor set that the terms are for.
        terms: From ``UnmaskSum``.
        parts: (variance, seed) of noise to subtract, from ``Surplus``.
        workers: Threads; by default as many as this process may use cores.
    """
    values_d, bits = folded.values_d, folded.bits
    threads = workers or len(os.sched_getaffinity(0))
    even = -(-values_d.size // (threads * WORDS_PER_BLOCK)) * WORDS_PER_BLOCK
    width = min(max(even, LEAST_SLICE), MOST_SLICE)

    def take_off(begin: int) -> None:
        slice_s = values_d[begin : begin + width]
        masking.unmask(slice_s, terms, bits, begin)
        for variance, seed in parts:
            subtract_noise(slice_s, variance, seed, bits, begin)

    begins = range(0, values_d.size, width)
    if len(begins) == 1:
        take_off(0)
    else:
        with ThreadPoolExecutor(min(threads, len(begins))) as pool:
            for _ in pool.map(take_off, begins):
                pass
    return UnmaskedSum(values_d, bits, folded.updates)
