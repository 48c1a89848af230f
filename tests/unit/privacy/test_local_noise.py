"""The two-level sampler against the discrete Gaussian that the accountant charges for."""

import math
from decimal import Decimal, getcontext
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from privacy.accounting.events import DEFAULT_SAMPLER_TV
from privacy.errors import PeerError, Reason, UsageError
from privacy.keystream import Label
from privacy.local_noise import (
    LEVEL_RATIO,
    MAX_LEVEL_VARIANCE,
    MIN_LEVEL_VARIANCE,
    LocalNoise,
    choose_local_noise,
    gaussian_table,
    local_noise,
)
from tests.support.encoding_plans import SEED

getcontext().prec = 60


def masses(table):
    bounds = [-1] + [table.bound(row) for row in range(2 * table.half_width + 1)]
    return [high - low for low, high in pairwise(bounds)]


def weight(x, variance):
    return (Decimal(-x * x) / (2 * Decimal(variance))).exp()


@pytest.mark.parametrize("variance", [1, 2, 37, 1000])
def test_table_is_the_discrete_gaussian(variance):
    table = gaussian_table(variance)
    reach = 40 * math.isqrt(variance) + 40
    total = sum(weight(k, variance) for k in range(-reach, reach + 1))
    for value, mass in enumerate(masses(table), start=-table.half_width):
        exact = weight(value, variance) / total
        assert abs(Decimal(mass) / Decimal(2**128) - exact) <= Decimal(2) ** -126


def test_two_levels_together_are_the_discrete_gaussian_of_the_summed_variance():
    """P(K*a + b = x) from the table's own masses, near and far out, and between the coarse steps.

    At the least variance allowed, where the claim is weakest. A mass there is some 2^-22, so that
    128-bit rows hold 2^-100 of it.
    """
    variance = MIN_LEVEL_VARIANCE
    table = gaussian_table(variance)
    exact = masses(table)
    width = table.half_width

    def two_levels(x):
        low, high = -(-(x - width) // LEVEL_RATIO), (x + width) // LEVEL_RATIO
        coarse = range(max(low, -width), min(high, width) + 1)
        return Decimal(sum(exact[a + width] * exact[x - LEVEL_RATIO * a + width] for a in coarse))

    whole = (LEVEL_RATIO**2 + 1) * variance
    centre = two_levels(0)
    for x in (1, 17, 256, 511, 512, 513, 100_000, 740_737, 2_000_001):
        wanted = weight(x, whole)
        assert abs(two_levels(x) / centre / wanted - 1) < Decimal(2) ** -90


def test_a_finer_level_that_is_too_narrow_would_show():
    """Control of the test above: without the lower bound on V the law has bumps."""
    exact = masses(gaussian_table(LEVEL_RATIO**2 // 16))
    width = len(exact) // 2

    def two_levels(x):
        low, high = -(-(x - width) // LEVEL_RATIO), (x + width) // LEVEL_RATIO
        return sum(exact[a + width] * exact[x - LEVEL_RATIO * a + width] for a in range(low, high))

    whole = (LEVEL_RATIO**2 + 1) * LEVEL_RATIO**2 // 16
    ratio = Decimal(two_levels(256)) / Decimal(two_levels(0)) / weight(256, whole)
    assert abs(ratio - 1) > Decimal("0.01")


@pytest.mark.parametrize("variance", [MIN_LEVEL_VARIANCE, 2**24])
def test_both_tables_stay_below_the_total_variation_that_is_charged(variance):
    smoothing = 4 * math.exp(-2 * math.pi**2 * variance / (LEVEL_RATIO**2 + 1))
    assert 2 * gaussian_table(variance).tv + smoothing < DEFAULT_SAMPLER_TV
    assert DEFAULT_SAMPLER_TV > (2 * 14 * 2**17 + 2) * 2.0**-128 * 2  # the largest variance


def test_levels_read_streams_of_their_own():
    table = gaussian_table(2**22)
    samples = local_noise(2**22, SEED, 1000)
    coarse = table.sample(SEED, 1000, (Label.LOCAL_COARSE, Label.LOCAL_COARSE_TIE))
    fine = table.sample(SEED, 1000, (Label.LOCAL_FINE, Label.LOCAL_FINE_TIE))
    assert np.array_equal(samples, LEVEL_RATIO * coarse + fine)
    assert np.count_nonzero(coarse == fine) < 10
    assert np.array_equal(local_noise(2**22, SEED, 10), samples[:10])
    assert np.count_nonzero(local_noise(2**22, bytes(32), 1000) == samples) < 10


@pytest.mark.parametrize("variance", [0, MIN_LEVEL_VARIANCE - 1, MAX_LEVEL_VARIANCE + 1])
def test_a_variance_outside_what_the_proof_covers_is_refused(variance):
    with pytest.raises(UsageError):
        local_noise(variance, SEED, 1)


@pytest.mark.parametrize("variance", [0, -1, 1.0, True, MAX_LEVEL_VARIANCE + 1])
def test_variances_that_no_table_holds_are_refused(variance):
    with pytest.raises(UsageError):
        gaussian_table.__wrapped__(variance)


@pytest.mark.parametrize("d", [1, 5_000, 10_000_000])
@pytest.mark.parametrize("z", [0.1, 0.7, 1.0, 3.3, 50.0])
@pytest.mark.parametrize("clips", [(1.0, 0.0), (0.3, 0.7), (1e-6, 0.0), (1e6, 1.0)])
def test_noise_is_z_times_the_integer_sensitivity_and_the_grid_is_fine(clips, z, d):
    noise = choose_local_noise(clips, d, z, 4, 32.0)
    clip = math.hypot(*clips)
    # D2 with its rounding term, in grid units.
    assert noise.sensitivity == pytest.approx(clip / noise.grid + math.sqrt(d) / 2, rel=1e-12)
    assert noise.sensitivity >= clip / noise.grid
    needed = (Fraction(z) * Fraction(noise.sensitivity)) ** 2
    assert needed <= noise.variance <= needed * (1 + Fraction(1, 2**20))
    # Near sigma / 2^20, a power of two.
    assert 2**20 <= z * clip / noise.grid < 2**21
    assert math.frexp(noise.grid)[0] == 0.5


def test_rounding_costs_little_noise():
    noise = choose_local_noise((1.0, 0.0), 10_000_000, 1.0, 1, 1.0)
    assert math.sqrt(noise.variance) * noise.grid == pytest.approx(1.0, rel=0.002)


def test_the_mutant_that_leaves_the_rounding_out_has_too_little_noise():
    noise = choose_local_noise((1.0, 0.0), 1_000_000, 1.0, 1, 1.0)
    clip_only = choose_local_noise((1.0, 0.0), 1, 1.0, 1, 1.0)
    assert clip_only.variance < noise.variance
    lazy = LocalNoise(
        1, 1.0, 0.0, 1.0, noise.grid_exponent, noise.sensitivity, clip_only.level_variance
    )
    with pytest.raises(PeerError, match="ask for") as caught:
        lazy.check_noise(1.0)
    assert caught.value.reason is Reason.POLICY


@pytest.mark.parametrize(
    ("clips", "z", "d"), [((1.0, 0.0), 1000.0, 2**36), ((1e-30, 0.0), 1e-3, 1), ((0.0, 0.0), 1, 1)]
)
def test_what_no_grid_carries_is_refused(clips, z, d):
    with pytest.raises(UsageError):
        choose_local_noise(clips, d, z, 1, 1.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 0},
        {"steps": 10**7},
        {"clip_gradient": 0.0},
        {"clip_gradient": math.nan},
        {"clip_metrics": -1.0},
        {"expected_batch": 0.0},
        {"expected_batch": math.inf},
        {"grid_exponent": -100},
        {"sensitivity": math.inf},
        {"level_variance": MIN_LEVEL_VARIANCE - 1},
        {"level_variance": MAX_LEVEL_VARIANCE + 1},
    ],
    ids=str,
)
def test_numbers_out_of_range_are_malformed(changes):
    good = vars(choose_local_noise((1.0, 0.5), 10, 1.0, 4, 32.0))
    with pytest.raises(PeerError) as caught:
        LocalNoise(**{**good, **changes})
    assert caught.value.reason is Reason.MALFORMED
