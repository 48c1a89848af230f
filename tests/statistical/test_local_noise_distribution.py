"""The noise of local steps against the discrete Gaussian that is charged, with stated false alarms.

Seeds are fixed, so a run either always passes or always fails; the rates say how likely a correct
sampler would have been to fail when these seeds were first used.
"""

import dataclasses
import hashlib
import math

import numpy as np
import pytest
from scipy.stats import binom, chi2, norm

from privacy.local_noise import LEVEL_RATIO, MIN_LEVEL_VARIANCE, gaussian_table, local_noise
from privacy.local_steps import LocalStepAccumulator
from privacy.pipeline import Mode
from tests.support.encoding_plans import make_plan

FALSE_ALARM = 1e-6  # of each test below, if nothing else is said
COUNT = 1_000_000


def seed_of(name):
    return hashlib.sha256(name.encode()).digest()


def chi_square_p(observed, expected):
    return chi2.sf(float(((observed - expected) ** 2 / expected).sum()), observed.size - 1)


def table_p(samples, variance):
    """Give the p-value of samples under the exact discrete Gaussian, cells of 20 expected."""
    reach = math.ceil(9 * math.sqrt(variance)) + 9
    values = np.arange(-reach, reach + 1)
    masses = np.exp(-(values**2) / (2 * variance))
    expected = masses / math.fsum(masses) * samples.size
    counts = np.bincount(samples + reach, minlength=values.size)
    inner = expected >= 20
    observed = np.append(counts[inner], counts[~inner].sum())
    wanted = np.append(expected[inner], samples.size - expected[inner].sum())
    observed, wanted = (observed, wanted) if wanted[-1] >= 20 else (observed[:-1], wanted[:-1])
    return chi_square_p(observed, wanted)


def level_p(samples, variance):
    """Give the p-value in 500 cells of equal mass: at deviations of 2^20 a sum is an integral."""
    edges = norm.ppf(np.arange(1, 500) / 500) * math.sqrt(variance)
    counts = np.bincount(np.searchsorted(edges, samples + 0.5), minlength=500)
    return chi_square_p(counts, np.full(500, samples.size / 500))


@pytest.mark.parametrize("variance", [1, 2, 9, 100, 2500])
def test_a_level_follows_the_exact_pmf(variance):
    samples = gaussian_table(variance).sample(seed_of(f"level {variance}"), COUNT)
    assert table_p(samples, variance) > FALSE_ALARM


def test_the_chi_square_test_sees_a_wrong_variance():
    samples = gaussian_table(102).sample(seed_of("control"), COUNT)
    assert table_p(samples, 100) < 1e-12


@pytest.mark.parametrize("level", [MIN_LEVEL_VARIANCE, 2**22, 10_000_019])
def test_two_levels_follow_the_summed_gaussian(level):
    variance = (LEVEL_RATIO**2 + 1) * level
    samples = local_noise(level, seed_of(f"two levels {level}"), COUNT)
    assert level_p(samples, variance) > FALSE_ALARM
    assert level_p(samples, variance * 1.05) < 1e-9, "control: 5 % more variance shows"
    # Beyond 4 and 5 deviations: as many as there should be. False alarm: 4e-6 together.
    for deviations in (4.0, 5.0):
        beyond = int(np.count_nonzero(np.abs(samples) > deviations * math.sqrt(variance)))
        mass = 2 * norm.sf(deviations)
        assert binom.sf(beyond - 1, COUNT, mass) > FALSE_ALARM
        assert binom.cdf(beyond, COUNT, mass) > FALSE_ALARM


def test_no_step_of_the_coarse_level_shows_in_the_fine_one():
    """Residues mod 512 are uniform: the fine level fills the gaps of the coarse one."""
    samples = local_noise(MIN_LEVEL_VARIANCE, seed_of("residues"), COUNT)
    counts = np.bincount(samples % LEVEL_RATIO, minlength=LEVEL_RATIO)
    assert chi_square_p(counts, np.full(LEVEL_RATIO, COUNT / LEVEL_RATIO)) > FALSE_ALARM


def test_levels_and_neighbours_are_uncorrelated():
    noise = local_noise(2**22, seed_of("serial"), COUNT).astype(np.float64)
    variance = (LEVEL_RATIO**2 + 1) * 2.0**22
    for lag in (1, 2, 4, 1 << 15):
        correlation = np.mean(noise[:-lag] * noise[lag:]) / variance
        assert abs(correlation) < norm.isf(FALSE_ALARM / 2) / math.sqrt(noise.size - lag)


def measured_variance(plan):
    """Run one step on an empty batch: what comes out is the noise, in parameter units squared."""
    step = LocalStepAccumulator(plan).finish(seed_of("step"))
    both = np.concatenate([step.gradient_D, step.metric_sums_M])
    assert abs(both.mean()) < norm.isf(FALSE_ALARM / 2) * both.std() / math.sqrt(both.size)
    return float(np.mean(both**2))


@pytest.mark.parametrize("z", [0.6, 1.0, 3.7])
def test_a_step_on_nothing_has_the_charged_variance_within_one_percent(z):
    """privacy.md, "DP audit": zero input, relative sd 0.14 % at d = 1e6, so 1 % is 7 sd."""
    plan = make_plan(Mode.RECORD_LOCAL, gradient=999_997, metrics=3, z=z)
    charged = (z * plan.local.sensitivity * plan.local.grid) ** 2
    assert measured_variance(plan) == pytest.approx(charged, rel=0.01)
    # D2 holds the rounding: more than the clip alone, by a fraction of a percent here.
    assert charged > (z * plan.local.clip) ** 2


@pytest.mark.parametrize("share", [0.25, 0.49])  # half the deviation; 30 % less of it
def test_the_variance_test_sees_too_little_noise(share):
    """Control: no plan with such noise can be made, so it is forced past the check."""
    plan = make_plan(Mode.RECORD_LOCAL, gradient=999_997, metrics=3, z=3.5)
    lazy = dataclasses.replace(
        plan.local, level_variance=math.ceil(share * plan.local.level_variance)
    )
    charged = (plan.noise_multiplier * plan.local.sensitivity * plan.local.grid) ** 2
    object.__setattr__(plan, "local", lazy)
    assert measured_variance(plan) != pytest.approx(charged, rel=0.4)
