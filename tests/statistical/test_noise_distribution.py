"""The sampler against the distribution that the accountant charges, with stated false alarms.

Seeds are fixed, so a run either always passes or always fails; the rates say how likely a correct
sampler would have been to fail when these seeds were first used.
"""

import hashlib
import math

import numpy as np
import pytest
from scipy.stats import chi2, norm, skellam

from privacy.noise import skellam_table
from privacy.pipeline import RecordAccumulator
from privacy.ring import centre
from tests.support.encoding_plans import make_plan
from tests.support.ring_values import reduce_to_ring

FALSE_ALARM = 1e-6  # of each test below, if nothing else is said


def seed_of(name):
    return hashlib.sha256(name.encode()).digest()


def chi_square_p(samples, variance):
    """Give the p-value of samples under scipy's Skellam, cells of at least 20 expected."""
    reach = math.ceil(8 * math.sqrt(variance)) + 8
    values = np.arange(-reach, reach + 1)
    counts = np.bincount(samples + reach, minlength=values.size)
    expected = skellam.pmf(values, variance / 2, variance / 2) * samples.size
    inner = expected >= 20
    observed = np.append(counts[inner], counts[~inner].sum())
    wanted = np.append(expected[inner], samples.size - expected[inner].sum())
    observed, wanted = (observed, wanted) if wanted[-1] >= 20 else (observed[:-1], wanted[:-1])
    return chi2.sf(float(((observed - wanted) ** 2 / wanted).sum()), observed.size - 1)


@pytest.mark.parametrize("variance", [1, 2, 9, 100, 2500])
def test_samples_follow_scipys_skellam(variance):
    samples = skellam_table(variance).sample(seed_of(f"chi {variance}"), 1_000_000)
    assert chi_square_p(samples, variance) > FALSE_ALARM


def test_the_chi_square_test_sees_a_wrong_variance():
    """Control: 2 % more variance must fail by far, or the test above means nothing."""
    samples = skellam_table(102).sample(seed_of("control"), 1_000_000)
    assert chi_square_p(samples, 100) < 1e-12


@pytest.mark.parametrize("variance", [1, 1000, 250_000, 4_000_000, 25_000_000])
def test_variance_is_within_one_percent(variance):
    """Relative sd of the estimate at d=1e6: 0.14 % (0.19 % at V=1); 1 % is 5 sd or more."""
    noise = skellam_table(variance).sample(seed_of(f"variance {variance}"), 1_000_000)
    assert float(np.mean(noise.astype(np.float64) ** 2)) == pytest.approx(variance, rel=0.01)
    standard_error = math.sqrt(variance / noise.size)
    assert abs(noise.mean()) < norm.isf(FALSE_ALARM / 2) * standard_error


def test_streams_of_different_seeds_are_uncorrelated():
    """False alarm of all 28 pairs together: 28e-6."""
    table = skellam_table(10_000)
    draws = np.array([table.sample(seed_of(f"seed {i}"), 250_000) for i in range(8)])
    correlations = np.corrcoef(draws)[np.triu_indices(8, 1)]
    assert np.abs(correlations).max() < norm.isf(FALSE_ALARM / 2) / math.sqrt(250_000)


def test_neighbouring_samples_are_uncorrelated():
    noise = skellam_table(10_000).sample(seed_of("serial"), 1_000_000).astype(np.float64)
    for lag in (1, 2, 4, 1 << 15):  # the next sample, the AES block, the chunk
        correlation = np.mean(noise[:-lag] * noise[lag:]) / 10_000
        assert abs(correlation) < norm.isf(FALSE_ALARM / 2) / math.sqrt(noise.size - lag)


def test_shares_of_honest_sites_add_up_to_the_charged_variance():
    """The whole path on an empty batch: m_h shares through the ring give (z * D2)^2 at least.

    d = 300,000: relative sd 0.26 %, so 1.3 % is 5 sd, and half or 30 % less noise fails by far.
    """
    plan = make_plan(gradient=299_997, metrics=3, scale=4096.0, z=0.82, bits=24, honest=3)
    total = np.zeros(plan.length, dtype=np.uint32)
    for site in range(3):
        update = RecordAccumulator(plan).finish(seed_of(f"site {site}"))
        total = reduce_to_ring(total.astype(np.int64) + update.vector_D, plan.bits)
    measured = float(np.mean(centre(total, plan.bits).astype(np.float64) ** 2))
    charged = (plan.noise_multiplier * plan.sensitivity) ** 2
    assert plan.noise_variance * 3 >= charged
    assert measured == pytest.approx(charged, rel=0.013)
