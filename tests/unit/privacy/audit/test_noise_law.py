"""Moments against exact sums over the distribution; and what the figures see and do not see."""

import math

import numpy as np
import pytest
from scipy.stats import norm, skellam

from privacy.audit import noise_law
from privacy.audit.noise_law import NoiseLaw
from privacy.errors import UsageError
from privacy.noise import skellam_table

COUNT = 200_000
SEED = bytes(range(32))
LIMIT = noise_law.threshold(1e-6, 5)


@pytest.mark.parametrize("variance", [0.5, 1.0, 7.0, 300.0])
@pytest.mark.parametrize("order", [2, 4, 6, 8])
def test_skellam_moments_are_those_of_the_distribution(variance, order):
    reach = math.ceil(14 * math.sqrt(variance)) + 30
    values = np.arange(-reach, reach + 1).astype(float)
    masses = skellam.pmf(values, variance / 2, variance / 2)
    exact = math.fsum(values**order * masses)
    assert NoiseLaw.skellam(variance).moment(order) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize(("order", "factor"), [(2, 1), (4, 3), (6, 15), (8, 105)])
def test_gaussian_moments(order, factor):
    assert NoiseLaw.gaussian(2.5).moment(order) == pytest.approx(factor * 2.5 ** (order // 2))


def test_other_moments_are_refused():
    with pytest.raises(UsageError, match="orders 2, 4, 6 and 8"):
        NoiseLaw.gaussian(1.0).moment(3)


@pytest.mark.parametrize("variance", [1, 40, 90_000])
def test_the_sampler_follows_its_law(variance):
    noise = skellam_table(variance).sample(SEED, COUNT).astype(float)
    law = NoiseLaw.skellam(float(variance))
    assert noise_law.deviations(noise, law).largest < LIMIT
    assert noise_law.largest_autocorrelation(noise) < LIMIT


def test_each_figure_is_one_standard_error_wide():
    """Over many runs every figure has deviation 1: none is far too strict, none asleep."""
    source, law = np.random.default_rng(6), NoiseLaw.skellam(2.0)
    found = []
    for _ in range(400):
        noise = (source.poisson(1.0, 4000) - source.poisson(1.0, 4000)).astype(float)
        figures = noise_law.deviations(noise, law)
        found.append([figures.mean, figures.variance, figures.skewness, figures.kurtosis])
    spreads = np.std(found, axis=0)
    assert np.all((spreads > 0.85) & (spreads < 1.15)), spreads
    assert np.abs(np.mean(found, axis=0)).max() < 5 / math.sqrt(400)


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("mean", lambda n: n + 0.2),
        ("variance", lambda n: 1.02 * n),
        ("skewness", lambda n: n + 0.03 * (n * n - 10.0)),
        ("kurtosis", lambda n: np.clip(n, -9.0, 9.0)),
    ],
)
def test_a_wrong_distribution_shows_in_its_figure(name, broken):
    noise = np.random.default_rng(7).normal(0, math.sqrt(10), COUNT)
    figures = noise_law.deviations(broken(noise), NoiseLaw.gaussian(10.0))
    assert abs(getattr(figures, name)) > LIMIT


def test_what_repeats_is_seen():
    noise = np.random.default_rng(8).normal(size=COUNT)
    assert noise_law.largest_autocorrelation(np.repeat(noise[: COUNT // 2], 2)) > 100
    assert noise_law.largest_autocorrelation(np.tile(noise[:32_768], 4)) > 100
    assert noise_law.correlation(noise, noise) > 100
    assert noise_law.correlation(noise, noise + noise[::-1]) > 100
    other = np.random.default_rng(9).normal(size=COUNT)
    assert noise_law.correlation(noise, other) < LIMIT


def test_no_noise_at_all_is_the_worst_correlation():
    nothing = np.zeros(100)
    assert noise_law.correlation(nothing, nothing) == math.inf
    assert noise_law.largest_autocorrelation(nothing) == math.inf
    assert noise_law.variance_ratio(nothing, 3.0) == 0.0


def test_the_variance_test_of_the_design_is_seven_deviations_wide():
    """privacy.md, "DP audit": relative sd 0.14 % at d = 1e6, tolerance 1 %."""
    alarm = noise_law.variance_false_alarm(10**6, NoiseLaw.gaussian(4.0), 0.01)
    assert alarm == pytest.approx(2 * norm.sf(0.01 / math.sqrt(2e-6)), rel=1e-9)
    assert alarm < 1e-11
    wider = noise_law.variance_false_alarm(10**6, NoiseLaw.skellam(1.0), 0.01)
    assert alarm < wider < 1e-7, "at V = 1 the tails are heavier"


def test_a_threshold_is_split_among_its_figures():
    assert norm.sf(noise_law.threshold(1e-3, 10)) * 20 == pytest.approx(1e-3)
