"""Draw exact Skellam noise shares from AES-256-CTR and add them to quantised updates.

The rule kept here: noise is an integer drawn from the discrete distribution the accountant counts
with (the difference of two Poisson variables, variance V), not a rounded float, and every bit of
it comes from the CSPRNG seed given by the caller (privacy.md, "Samplers"). The seed must be fresh
for every attempt; that, and the size of V, are the business of the plan and the ledger.

How a sample is drawn stands in `privacy.cdf_table`.

Shapes: d = integers of one vector.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from privacy.cdf_table import START_BITS, TAIL_BITS, CumulativeTable, table_of
from privacy.errors import UsageError
from privacy.keystream import check_seed
from privacy.quantise import QuantisedDelta
from privacy.ring import reduce_in_place
from privacy.secagg.encoding import Label
from privacy.secagg.kdf import hkdf
from privacy.surplus import MAX_LEVELS, NoiseShare

MAX_STD = 2**17
"""Largest standard deviation of one share, in grid units: above it the table outgrows a cache."""


@dataclass(frozen=True, eq=False, repr=False)
class NoisedUpdate:
    """A site's update with its noise share, ready to be masked (`privacy.secagg.masking`).

    Attributes:
        vector_D: Signed integers, shape (d,), before reduction mod 2^B: a retry may change B
            (secure-aggregation.md, "Retry rule"), so reducing is the mask's business. int64, but
            for `privacy.dense`, which takes the narrowest type that holds them.
        surplus_seeds: By level, what the parts of the share were drawn from that may be taken off
            the sum again (`privacy.surplus`): secrets of the attempt that the update is sent in.
    """

    vector_D: NDArray[np.integer]
    surplus_seeds: tuple[bytes, ...] = ()


def add_skellam_noise(update: QuantisedDelta, share: NoiseShare, noise_seed: bytes) -> NoisedUpdate:
    """Add a Skellam share of the given variance.

    Agarwal, Kairouz, Liu, "The Skellam Mechanism", arXiv 2110.04995: the shares of the honest
    survivors add up to Skellam(m_h * V_site), which the accountant charges against the update's
    stated sensitivity.

    Args:
        update: Integers with their sensitivity.
        share: V_site and the parts that it is drawn in. Without levels the seed is the sampler's;
            with them each part has a seed of its own, derived from it one way.
        noise_seed: 32 secret bytes, fresh for this attempt.

    Raises:
        UsageError: The variance is out of range or the seed is not 32 bytes.
    """
    length = update.values_d.size
    if not share.levels:
        vector_D = skellam_table(share.variance).sample(noise_seed, length)
        vector_D += update.values_d
        return NoisedUpdate(vector_D)
    check_seed(noise_seed)
    base_seed = hkdf(noise_seed, Label.BASE_NOISE)
    seeds = tuple(hkdf(noise_seed, Label.SURPLUS_NOISE, level.survivors) for level in share.levels)
    vector_D = skellam_table(share.base).sample(base_seed, length)
    for variance, seed in zip(share.increments, seeds, strict=True):
        vector_D += skellam_table(variance).sample(seed, length)
    vector_D += update.values_d
    return NoisedUpdate(vector_D, seeds)


def subtract_noise(
    sum_d: NDArray[np.uint32], variance: int, seed: bytes, bits: int, offset: int = 0
) -> None:
    """Take one part of a site's share off an opened sum, or a slice of it, in place.

    Costs what drawing the part did at the site.

    Args:
        sum_d: Modulo 2^bits, uint32, shape (d,).
        variance: Of the part.
        seed: As the site revealed it. A wrong one adds noise instead, as the site could anyway.
        bits: B of the ring.
        offset: Coordinate at which a slice starts, a multiple of 4.

    Raises:
        UsageError: The variance is out of range, or the seed is not 32 bytes.
    """
    part_d = skellam_table(variance).sample(seed, sum_d.size, offset=offset)
    sum_d -= part_d.astype(np.uint32)  # the low 32 bits: arithmetic modulo 2^32
    reduce_in_place(sum_d, bits)


def without_noise(update: QuantisedDelta, bits: int) -> NoisedUpdate:
    """Pass an update on without noise: mode ``none``, and record-local, which is noised before.

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
    values_d = update.values_d
    if values_d.size and max(-int(values_d.min()), int(values_d.max())) >= half:
        message = f"the delta leaves the {bits}-bit ring: choose more bits or a smaller scale"
        raise UsageError(message)
    return NoisedUpdate(update.values_d)


@lru_cache(maxsize=2 * (MAX_LEVELS + 1))
def skellam_table(variance: int) -> CumulativeTable:
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
    weights = list(_bessel_weights(variance, _tail_start(variance, START_BITS)))
    return table_of(weights, _tail_start(variance, TAIL_BITS))


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
