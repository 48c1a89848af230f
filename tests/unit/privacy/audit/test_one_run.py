"""The one-run bound against exact binomials, and against mechanisms whose epsilon is known."""

import math
from itertools import product

import numpy as np
import pytest
from scipy.stats import binom

from privacy.audit.gaussian_fit import gaussian_mu
from privacy.audit.one_run import epsilon_refuted, guess_p_value, lower_bound
from privacy.errors import UsageError


@pytest.mark.parametrize(("guesses", "right"), [(1, 1), (7, 5), (40, 0), (40, 33), (40, 40)])
@pytest.mark.parametrize("epsilon", [0.0, 0.7, 3.0])
def test_without_delta_it_is_the_binomial_tail(guesses, right, epsilon):
    share = math.exp(epsilon) / (1 + math.exp(epsilon))
    exact = math.fsum(
        math.comb(guesses, k) * share**k * (1 - share) ** (guesses - k)
        for k in range(right, guesses + 1)
    )
    assert guess_p_value(50, guesses, right, epsilon, 0.0) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(("m", "r", "v", "delta"), [(30, 20, 15, 1e-3), (100, 60, 44, 1e-4)])
def test_delta_adds_the_steepest_mean_mass_below(m, r, v, delta):
    """The paper's second term, summed naively."""
    epsilon = 0.4
    share = 1 / (1 + math.exp(-epsilon))
    tail = [binom.sf(k - 1, r, share) for k in range(v + 1)]
    steepest = max((tail[v - i] - tail[v]) / i for i in range(1, v + 1))
    expected = tail[v] + 2 * m * delta * steepest
    assert guess_p_value(m, r, v, epsilon, delta) == pytest.approx(expected, rel=1e-9)


def test_the_refuted_epsilon_is_where_the_p_value_meets_the_significance():
    epsilon = epsilon_refuted(1000, 200, 170, 1e-6, 1e-3)
    assert guess_p_value(1000, 200, 170, epsilon, 1e-6) == pytest.approx(1e-3, rel=1e-3)
    assert epsilon_refuted(1000, 200, 100, 1e-6, 1e-3) == 0.0, "half right refutes nothing"


def test_randomised_response_is_never_refuted_at_its_own_epsilon_and_nearly_reached():
    """Each canary's coin is told right with probability e^eps/(1+e^eps): exactly the worst case."""
    epsilon, m = 1.5, 4000
    source = np.random.default_rng(1)
    bounds = []
    for _ in range(20):
        included = source.random(m) < 0.5
        told = included ^ (source.random(m) < 1 / (1 + math.exp(epsilon)))
        bounds.append(lower_bound(told + 1e-3 * source.random(m), included, 0.0, 1e-4).epsilon)
    assert max(bounds) <= epsilon, "false alarm: 20 * 1e-4"
    assert min(bounds) > 0.8 * epsilon


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_a_gaussian_mechanism_stays_below_its_epsilon(epsilon):
    delta, m = 1e-6, 3000
    mu = gaussian_mu(epsilon, delta)
    source = np.random.default_rng(2)
    for _ in range(10):
        included = source.random(m) < 0.5
        bound = lower_bound(mu * included + source.normal(size=m), included, delta, 1e-4)
        assert bound.epsilon <= epsilon
        assert 0 < bound.right <= bound.guesses <= m


def test_released_coins_refute_any_small_claim():
    included = np.random.default_rng(3).random(2000) < 0.5
    bound = lower_bound(included.astype(float), included, 1e-9, 1e-5)
    assert bound.right == bound.guesses
    assert bound.epsilon > 4.0


@pytest.mark.parametrize(("canaries", "guesses", "right"), [(5, 6, 1), (5, 3, 4), (5, 3, -1)])
def test_impossible_counts_are_refused(canaries, guesses, right):
    with pytest.raises(UsageError, match="make no sense"):
        guess_p_value(canaries, guesses, right, 1.0, 0.0)


def test_wrong_shapes_and_shares_are_refused():
    coins = np.zeros(10, dtype=np.bool_)
    with pytest.raises(UsageError, match="do not match"):
        lower_bound(np.zeros(9), coins, 0.0, 0.1)
    for shares in ((0.01,), (0.7,)):
        with pytest.raises(UsageError, match="makes guesses"):
            lower_bound(np.zeros(10), coins, 0.0, 0.1, shares)


def test_more_right_guesses_never_refute_less():
    for delta, guesses in product((0.0, 1e-4), (20, 100)):
        found = [epsilon_refuted(200, guesses, v, delta, 1e-2) for v in range(guesses + 1)]
        assert found == sorted(found)
