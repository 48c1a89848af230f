"""The Gaussian fit against the exact trade-off, another accountant and its own stated errors."""

import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from scipy import integrate
from scipy.stats import norm

from privacy.audit.gaussian_fit import fit, gaussian_delta, gaussian_epsilon, gaussian_mu
from privacy.errors import UsageError


@pytest.mark.parametrize("mu", [0.2, 1.0, 3.5])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_delta_is_the_hockey_stick_divergence_of_two_normals(mu, epsilon):
    def excess(x):
        return max(norm.pdf(x, mu) - math.exp(epsilon) * norm.pdf(x), 0.0)

    edge = mu / 2 + epsilon / mu  # where the excess begins
    exact = integrate.quad(excess, edge, edge + 12 + mu, limit=200)[0]
    assert gaussian_delta(mu, epsilon) == pytest.approx(exact, rel=1e-6, abs=1e-13)


@pytest.mark.parametrize(("z", "steps"), [(5.0, 10), (1.0, 1), (0.5, 4)])
def test_epsilon_is_that_of_a_privacy_loss_accountant(z, steps):
    accountant = PLDAccountant()
    accountant.compose(dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(z), steps))
    epsilon = gaussian_epsilon(math.sqrt(steps) / z, 1e-5)
    assert epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)


def test_the_theory_of_the_design_is_met():
    """privacy.md, "DP audit": z = 5, 10 steps, delta 1e-5: theory 2.59."""
    assert gaussian_epsilon(math.sqrt(10) / 5, 1e-5) == pytest.approx(2.59, abs=0.005)


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 20.0, 200.0])
def test_mu_and_epsilon_are_inverse(epsilon):
    assert gaussian_epsilon(gaussian_mu(epsilon, 1e-6), 1e-6) == pytest.approx(epsilon, rel=1e-9)


def test_no_noise_at_all_has_no_finite_epsilon():
    assert gaussian_epsilon(math.inf, 1e-6) == math.inf
    assert gaussian_epsilon(1e-9, 1e-6) == 0.0


@pytest.mark.parametrize(
    ("share", "expected"), [(1.0, 2.594), (math.sqrt(0.5), 3.849), (0.5, 5.759), (0.2, 17.857)]
)
def test_the_fit_gives_the_epsilon_of_the_noise_that_was_added(share, expected):
    """The mutants of privacy.md: full noise, half the variance, half the deviation, no clip (5x).

    The design's prototype fitted both sides' deviations apart, which lies about 0.3 above these.
    """
    mu = math.sqrt(10) / 5 / share
    assert gaussian_epsilon(mu, 1e-5) == pytest.approx(expected, abs=1e-3)
    source = np.random.default_rng(4)
    found = []
    for _ in range(20):
        included = source.random(5000) < 0.5
        found.append(fit(included * mu + source.normal(size=5000), included).epsilon(1e-5))
    assert np.mean(found) == pytest.approx(expected, abs=0.03 * expected)
    assert np.std(found) < 0.06 * expected


def test_the_stated_false_alarm_is_how_often_it_happens():
    source, true_mu, m = np.random.default_rng(5), 0.6, 400
    included = np.arange(m) % 2 == 0
    fits = [fit(included * true_mu + source.normal(size=m), included) for _ in range(2000)]
    limit = fits[0].limit(true_mu, 0.05)
    assert fits[0].false_alarm(true_mu, limit) == pytest.approx(0.05, rel=1e-6)
    alarms = sum(one.mu > limit for one in fits)
    assert 55 < alarms < 150, "100 expected, deviation 10"


def test_scores_without_spread_or_order():
    included = np.array([True, True, False, False])
    assert fit(included.astype(float), included).epsilon(1e-5) == math.inf
    assert fit(1.0 - included, included).epsilon(1e-5) == 0.0
    assert fit(np.zeros(4), included).mu == 0.0


def test_bad_arguments_are_refused():
    with pytest.raises(UsageError, match="do not match"):
        fit(np.zeros(3), np.zeros(4, dtype=np.bool_))
    with pytest.raises(UsageError, match="two canaries in"):
        fit(np.zeros(4), np.ones(4, dtype=np.bool_))
    for mu, delta in ((0.0, 0.1), (math.nan, 0.1), (1.0, 0.0), (1.0, 1.0)):
        with pytest.raises(UsageError):
            gaussian_epsilon(mu, delta)
    for epsilon, delta in ((0.0, 0.1), (1.0, 1.0)):
        with pytest.raises(UsageError):
            gaussian_mu(epsilon, delta)
