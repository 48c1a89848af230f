"""Draw exact Skellam noise shares from AES-256-CTR and add them to quantised updates.

The rule kept here: noise is an integer drawn from the discrete distribution the accountant counts
with (the difference of two Poisson variables, variance V), not a rounded float, and every bit of
it comes from the CSPRNG seed given by the caller (privacy.md, "Samplers"). The seed must be fresh
for every attempt; that, and the size of V, are the business of the plan and the ledger.

One sample is the table row in which a 128-bit uniform number falls. The first 32 bits decide all
but about rows/2^32 of the samples; the rest read 96 bits more and are decided exactly. So a
sample costs four bytes of keystream, and its distribution is that of the full 128-bit table.
Run time depends on the values drawn, as with any table: updates leave on a schedule, never when
the sampler happens to be done.

Shapes: d = integers of one vector, R = rows of the table.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from privacy.errors import UsageError
from privacy.keystream import Keystream, Label, blocks_at
from privacy.quantise import QuantisedDelta

MAX_STD = 2**17
"""Largest standard deviation of one share, in grid units: above it the table outgrows a cache."""

_UNIT = 128  # bits of a table entry
_FIRST = 32  # bits of the first draw
_TAIL_BITS = 130  # mass beyond the table, on both sides together: below 2^-130
_START_BITS = 200  # where the recurrence starts: its own truncation is of this order
_MAX_GUIDE_BITS = 18
_CHUNK = 1 << 15  # samples at once: the working arrays stay in the second-level cache


@dataclass(frozen=True, eq=False, repr=False)
class NoisedUpdate:
    """A site's update with its noise share, ready to be masked (`privacy.secagg.masking`).

    Attributes:
        vector_D: int64, shape (d,), before reduction mod 2^B: a retry may change B
            (secure-aggregation.md, "Retry rule"), so reducing is the mask's business.
    """

    vector_D: NDArray[np.int64]


@dataclass(frozen=True, repr=False)
class SkellamTable:
    """The cumulative distribution of Skellam(V), in 128-bit fixed point.

    Row r stands for the value r - half_width and covers the 128-bit numbers up to and including
    its bound.

    Attributes:
        variance: V, grid units squared.
        half_width: Largest magnitude in the table.
        bounds: Inclusive upper bounds, R of them as 16 little-endian bytes each.
        tv: Bound on the total variation distance between one sample and Skellam(V), cut tails
            included: the accountant adds steps * n * d times ``DEFAULT_SAMPLER_TV``, which a test
            holds above it, to the delta of the guarantee (privacy.md, "Accounting").
    """

    variance: int
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

    def sample(self, seed: bytes, count: int) -> NDArray[np.int64]:
        """Draw independent Skellam(V) integers.

        Args:
            seed: 32 secret bytes, used for nothing else and once only.
            count: Number of samples, at least 0.

        Returns:
            Integers, shape (count,), the same for the same seed on every machine.

        Raises:
            UsageError: The seed is not 32 bytes.
        """
        stream = Keystream(seed, Label.NOISE_FIRST)
        samples = np.empty(count, dtype=np.int64)
        for begin in range(0, count, _CHUNK):
            size = min(_CHUNK, count - begin)
            first = stream.read(4 * size).view("<u4")
            rows, tied = self._rows(first)
            if tied.size:
                rows[tied] = self._resolve(seed, first[tied], tied + begin)
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

    def _resolve(
        self, seed: bytes, first: NDArray[np.uint32], positions: NDArray[np.int64]
    ) -> list[int]:
        """Decide draws whose first 32 bits equal those of a bound, by 96 bits more each."""
        blocks = blocks_at(seed, Label.NOISE_TIE, positions)
        rows = range(self._first_R.size)
        return [
            bisect_left(
                rows, (int(head) << 96) | int.from_bytes(block[:12], "little"), key=self.bound
            )
            for head, block in zip(first, blocks, strict=True)
        ]


def add_skellam_noise(update: QuantisedDelta, variance: int, noise_seed: bytes) -> NoisedUpdate:
    """Add a Skellam share of the given variance.

    Agarwal, Kairouz, Liu, "The Skellam Mechanism", arXiv 2110.04995: the shares of the honest
    survivors add up to Skellam(m_h * V_site), which the accountant charges against the update's
    stated sensitivity.

    Args:
        update: Integers with their sensitivity.
        variance: V_site, grid units squared; at least 1.
        noise_seed: 32 secret bytes, fresh for this attempt.

    Raises:
        UsageError: The variance is out of range or the seed is not 32 bytes.
    """
    vector_D = skellam_table(variance).sample(noise_seed, update.values_d.size)
    vector_D += update.values_d
    return NoisedUpdate(vector_D)


def without_noise(update: QuantisedDelta, bits: int) -> NoisedUpdate:
    """Pass an update on without noise: mode ``none`` only.

    Args:
        update: Integers that claim no sensitivity.
        bits: Bit width B that the plan intends.

    Raises:
        UsageError: The update states a sensitivity, so it was made for noise; or an integer lies
            outside the ring, where the sum could only be wrong.
    """
    if math.isfinite(update.sensitivity):
        message = "an update that states a sensitivity must be noised before it leaves"
        raise UsageError(message)
    half = 1 << (bits - 1)
    if update.values_d.size and max(-update.values_d.min(), update.values_d.max()) >= half:
        message = f"the delta leaves the {bits}-bit ring: choose more bits or a smaller scale"
        raise UsageError(message)
    return NoisedUpdate(update.values_d)


@lru_cache(maxsize=4)
def skellam_table(variance: int) -> SkellamTable:
    """Build the 128-bit table of Skellam(V), the difference of two Poisson(V/2) variables.

    P(k) is I_|k|(V) / (I_0(V) + 2 * (I_1(V) + I_2(V) + ...)). The modified Bessel functions come
    from Miller's backward recurrence I_(k-1) = I_(k+1) + (2k/V) I_k in integers: positive terms
    only, started so far out that truncation and the floor of each step stay below 2^-140 of the
    whole (a floor at k adds at most V of 2^230 units). Each bound is then within 2^-128 of the
    true cumulative probability, and both halves mirror each other exactly.

    Args:
        variance: V in grid units squared, a whole number so that all sites hold the same table.

    Raises:
        UsageError: V is not a whole number from 1 to MAX_STD squared.
    """
    if isinstance(variance, bool) or not isinstance(variance, int):
        message = "the noise variance of a share must be a whole number; round it up"
        raise UsageError(message)
    if not 1 <= variance <= MAX_STD**2:
        message = (
            f"a noise variance of {variance} per share is outside 1..{MAX_STD**2}: choose the scale"
            " s smaller; sqrt(d) at 2 % of C*s is enough, a finer grid only costs bits"
        )
        raise UsageError(message)
    half_width = _tail_start(variance, _TAIL_BITS)
    weights = list(_bessel_weights(variance, _tail_start(variance, _START_BITS)))
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
    return SkellamTable(
        variance=variance,
        half_width=half_width,
        bounds=b"".join([bound.to_bytes(16, "little") for bound in bounds]),
        tv=(rows + 2) * 2.0**-_UNIT,
    )


def _bessel_weights(variance: int, start: int) -> Iterator[int]:
    """Give numbers proportional to I_k(V) for k = start down to 0, as large integers."""
    farther, here = 0, 1 << 32
    yield here
    for order in range(2 * start, 0, -2):
        farther, here = here, farther + order * here // variance
        yield here


def _tail_start(variance: int, bits: int) -> int:
    """Find the smallest k for which P(|X| > k) is provably at most 2^-bits.

    Chernoff: P(X >= k) <= exp(V (cosh t - 1) - t k) for every t, best at sinh t = k / V.
    """
    limit = -(bits + 1) * math.log(2)  # one bit less for each of the two tails

    def log_tail(k: int) -> float:
        t = math.asinh(k / variance)
        # cosh t - 1 as 2 sinh^2(t/2): no cancellation when V is large and t small.
        return variance * 2 * math.sinh(t / 2) ** 2 - t * k

    high = 1
    while log_tail(high) > limit:
        high *= 2
    return bisect_left(range(1, high + 1), -limit, key=lambda k: -log_tail(k)) + 1
