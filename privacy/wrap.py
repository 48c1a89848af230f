"""Tell from an opened sum how much of it has wrapped around the ring, and when it certainly has.

Sums are read back centred in Z_(2^B): a coordinate beyond +-2^(B-1) comes out with the other sign,
and nothing says so. A range that is too small does that, and so does a site that adds half the
ring. Only the published sum is looked at, and public constants: no site says anything more.

Two judgements, of different strength:

- **Certain.** The outermost eighth of the ring holds more coordinates than any honest sum leaves
  there. Of a signal of L2 norm R at most (R/u)^2 coordinates exceed u, whatever the signal is, and
  noise carries others across the rest of the way no oftener than Chernoff's bounds for a Skellam
  and a binomial variable allow. False for an honest sum with probability `CERTAIN_ALARM` at most.
- **The wrap rate**, an estimate to warn by: the tail that a normal variable of the sum's robust
  spread has beyond the ring, or the share of coordinates near the edge beyond what that predicts.

Shapes: d = integers of one vector.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privacy.pipeline import EncodingPlan, Mode
from privacy.ring import centre, check_bits

WARN_RATE = 1e-5
"""Estimated share of wrapped coordinates to warn above; plans are made for 6e-7 (5 deviations)."""

CERTAIN_ALARM = 1e-9
"""Most probability with which an honest sum is taken for one that has certainly wrapped."""

_EDGE_ALARM = 1e-6
"""Most probability with which a normal sum's coordinates near the edge count as too many."""

_EDGE_PART = 8  # the zone is an eighth of the ring
_STEPS = 64  # thresholds that are tried between signal and noise
_SAMPLE = 1 << 20
_CHUNK = 1 << 20
_NORMAL_MAD = 1.4826  # standard deviation over median absolute deviation, of a normal variable
_MAD_DEVIATION = 1.17  # relative standard error of that estimate, times the root of the sample
_DEVIATIONS = 5.0
_COUNT_DEVIATIONS = 8.0  # of a Poisson sample's size: beyond with probability below 1e-14


@dataclass(frozen=True)
class SumBounds:
    """What an honest sum is at most, from public constants, in grid steps.

    Attributes:
        noise_variance: Of all noise in the sum; 0 where the sum itself is not noised.
        signal_norm: L2 norm of the summed signal, rounding included; infinite where unknown.
        signal_most: Magnitude of one coordinate of it; infinite where unknown.
    """

    noise_variance: float
    signal_norm: float
    signal_most: float

    @classmethod
    def of(
        cls,
        plan: EncodingPlan,
        updates: int,
        noise_variance: float,
        records: float,
        site_most: float = 0.0,
    ) -> "SumBounds":
        """Bound the sum of honest updates that were encoded by a plan.

        Args:
            plan: The plan.
            updates: How many updates the sum holds.
            noise_variance: Of all noise that is left in it, grid steps squared.
            records: Mode record-distributed: the public expected number of records (or users) in
                the sum; the bound allows for the draw, not for a number that is stated too low.
            site_most: For sums of counts: the most that one coordinate of a site's sum can be, in
                units; their norm is not bounded. 0 for other work.
        """
        if site_most:
            return cls(noise_variance, math.inf, updates * site_most * (plan.scale + 1))
        if plan.mode is Mode.RECORD_DISTRIBUTED:
            drawn = records + _COUNT_DEVIATIONS * (math.sqrt(records) + 1)
            norm = drawn * plan.sensitivity
        elif plan.mode is Mode.SITE:
            norm = updates * plan.sensitivity
        else:
            norm = updates * (plan.clip * plan.scale + math.sqrt(plan.length) / 2)
        return cls(noise_variance, norm, norm)


@dataclass(frozen=True)
class WrapReading:
    """What a sum shows of wrapping.

    Attributes:
        rate: Estimated share of coordinates that have wrapped.
        at_edge: Coordinates in the outermost eighth of the ring.
        most: The most coordinates that an honest sum leaves there.
    """

    rate: float
    at_edge: int
    most: int

    @property
    def is_certain(self) -> bool:
        """Say whether no honest sum that fits its ring looks like this."""
        return self.at_edge > self.most

    @property
    def is_high(self) -> bool:
        """Say whether to warn."""
        return self.rate > WARN_RATE


def read_wrap(values_d: NDArray[np.uint32], bits: int, bounds: SumBounds) -> WrapReading:
    """Read an opened sum.

    Args:
        values_d: The exact sum mod 2^B, uint32 below 2^B, shape (d,).
        bits: B.
        bounds: See `SumBounds`.
    """
    check_bits(bits)
    length, half = values_d.size, 1 << (bits - 1)
    width = half // _EDGE_PART
    at_edge = _count_edge(values_d, half, width)
    inner = float(half - width)
    if bounds.signal_most < half:
        predicted = noise_tail(half - bounds.signal_most, bounds.noise_variance)
        expected = noise_tail(inner - bounds.signal_most, bounds.noise_variance)
    else:
        low, high = _spread(values_d, bits, math.sqrt(bounds.noise_variance))
        predicted, expected = _normal_tail(half, low), _normal_tail(inner, high)
    most = _most_at_edge(length, inner, bounds)
    excess = 0
    if at_edge > min(most, most_of(length, expected, _EDGE_ALARM)):
        excess = at_edge - min(most, math.floor(length * expected))
    return WrapReading(max(predicted, excess / length if length else 0.0), at_edge, most)


def noise_tail(beyond: float, variance: float) -> float:
    """Bound P(|X| >= beyond) of a Skellam variable: 2 exp(sqrt(V^2+t^2) - V - t asinh(t/V)).

    Chernoff's bound with E[exp(lX)] = exp(V (cosh l - 1)), at l = asinh(t/V).
    """
    if beyond <= 0:
        return 1.0
    if variance == 0:
        return 0.0
    root = beyond * beyond / (math.hypot(variance, beyond) + variance)
    return min(1.0, 2 * math.exp(root - beyond * math.asinh(beyond / variance)))


def most_of(count: int, share: float, alarm: float) -> int:
    """Give k such that Bin(count, share) > k with probability ``alarm`` at most.

    Chernoff: P(X >= x) <= exp(x - m - x ln(x/m)) for x above the mean m.
    """
    mean = count * share
    if share >= 1.0:
        return count
    if mean == 0:
        return 0
    limit = math.log(alarm)

    def is_rare(x: int) -> bool:
        return x > mean and x - mean - x * math.log(x / mean) <= limit

    low, high = math.floor(mean), count
    while low < high:  # the least x that is rare lies in (low, high + 1]
        middle = (low + high) // 2
        low, high = (low, middle) if is_rare(middle + 1) else (middle + 1, high)
    return low


def _most_at_edge(length: int, inner: float, bounds: SumBounds) -> int:
    """Give the most coordinates beyond ``inner``: by signal beyond u, or by noise from u on.

    Any u gives a bound; it is chosen by public constants alone, so the alarm stays what it is.
    """
    found = length
    for step in range(1, _STEPS + 1):
        threshold = inner * step / _STEPS
        if threshold > bounds.signal_most:
            by_signal = 0
        elif math.isinf(bounds.signal_norm):
            continue
        else:
            by_signal = math.floor((bounds.signal_norm / threshold) ** 2)
        crossing = noise_tail(inner - threshold, bounds.noise_variance)
        if threshold == inner:  # without noise, nothing comes across from below
            crossing = 0.0 if bounds.noise_variance == 0 else 1.0
        found = min(found, by_signal + most_of(length, crossing, CERTAIN_ALARM))
    return found


def _count_edge(values_d: NDArray[np.uint32], half: int, width: int) -> int:
    """Count the coordinates whose centred value is at least ``half - width`` in magnitude.

    Uncentred, these are the ones within ``width`` of 2^(B-1), below or above.
    """
    first, last = np.uint32(half - width), np.uint32(half + width)
    counts = (
        np.count_nonzero((chunk >= first) & (chunk <= last))
        for chunk in (values_d[i : i + _CHUNK] for i in range(0, values_d.size, _CHUNK))
    )
    return int(sum(counts))


def _spread(values_d: NDArray[np.uint32], bits: int, noise: float) -> tuple[float, float]:
    """Give a lower and an upper estimate of the spread of coordinates, robust to a few of them.

    From the median magnitude of an even sample: a minority of shifted coordinates, however far,
    hardly moves it. Never below the noise, which is known.
    """
    sample = values_d[:: max(1, values_d.size // _SAMPLE)]
    if not sample.size:
        return noise, noise
    robust = _NORMAL_MAD * float(np.median(np.abs(centre(sample, bits))))
    error = min(1.0, _DEVIATIONS * _MAD_DEVIATION / math.sqrt(sample.size))
    return max(noise, robust * (1 - error)), max(noise, robust * (1 + error))


def _normal_tail(beyond: float, deviation: float) -> float:
    """Return P(|X| > beyond) of a normal variable."""
    return math.erfc(beyond / (deviation * math.sqrt(2))) if deviation > 0 else 0.0
