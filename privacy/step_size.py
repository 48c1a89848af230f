"""Choose bit widths and step sizes of sums that carry no noise of their own: none, record-local.

The ring holds the *sum*, not the addend: sites' coordinates may wrap as long as their sum does not
(traffic.md, "Modulus"). After a rotation a sum's coordinates are about normal with one deviation
sigma, so a ring of +-4.5 sigma with some room holds them, and random rounding at each of n sites
adds an error of n/6 steps squared at the most likely: hence the bits. Sigma comes from the last
public sum, never from a site's data.

Shapes: d = integers.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privacy.ring import MAX_BITS, MIN_BITS

RANGE_DEVIATIONS = 4.5 * 1.15
"""Deviations of a sum's coordinate from zero to the end of the ring, room for growth included."""

DEFAULT_NMSE = 0.03
"""Error that rounding may add to a sum, as a share of the sum's energy."""

METRICS_SHARE = 0.5
"""Most deviations of the sum that the metrics may add to the coordinates of one rotated block."""

WRAP_ROOM = 4.0
"""By how much the range is widened after a sum that has wrapped."""

SPOILT_RATE = 1e-2
"""Share of wrapped coordinates above which nothing of a sum is applied."""

_WRAP_SHARE = 1e-4  # of the coordinates: above it the range is widened; the plan is for 7e-6
_SHRINK = 0.85
"""Sigma falls by no more a version: even and odd versions differ, and so do sums of few sites."""

_LEAST_STEPS = 1.0  # of a deviation: below it a sum says nothing of its size
_FIRST_ROOM = 4.0
"""By how much the next sum may exceed the first one's sigma: learnt bases catch far more."""


def bits_for(sites: int, nmse: float = DEFAULT_NMSE) -> int:
    """Give B at which random rounding at all sites adds at most this error: 107 n / (6 NMSE) = 4^B.

    Args:
        sites: n.
        nmse: Mean square error over mean square of the sum.
    """
    needed = math.ceil(0.5 * math.log2(107 * sites / (6 * nmse)))
    return min(MAX_BITS, max(MIN_BITS, needed))


def scale_for(deviation: float, bits: int) -> float:
    """Give the scale at which the ring just holds a sum of this deviation, grid steps per unit."""
    return 2.0 ** (bits - 1) / (RANGE_DEVIATIONS * deviation)


@dataclass(frozen=True)
class RingUse:
    """How the updates of a sum were fitted into their ring.

    Attributes:
        bits: B.
        scale: That they were encoded at, grid steps per unit.
        first: Whether that scale was the job's own, from public constants alone.
        wrap_rate: Estimated share of coordinates that wrapped (`privacy.wrap`).
    """

    bits: int
    scale: float
    first: bool
    wrap_rate: float


def next_scale(use: RingUse, sum_d: NDArray[np.int64]) -> float:
    """Give the scale to announce after a sum: one at which a sum of its deviation fits the ring.

    A larger sum widens the range at once, a smaller one narrows it slowly; only after the first
    sum, whose range was a guess from public constants, it may narrow by much.

    Args:
        use: How the sum's updates were encoded.
        sum_d: The centred sum, shape (d,); the rounding of its updates counts as signal.
    """
    if use.wrap_rate > _WRAP_SHARE:
        return use.scale / WRAP_ROOM
    measured = math.sqrt(float(np.mean(np.square(sum_d, dtype=np.float64))))
    expected = 2.0 ** (use.bits - 1) / RANGE_DEVIATIONS  # in steps, as the range was made for
    if use.first:
        return use.scale * expected / max(_FIRST_ROOM * measured, _LEAST_STEPS)
    return use.scale * expected / max(measured, _SHRINK * expected)
