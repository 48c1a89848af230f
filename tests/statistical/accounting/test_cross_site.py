"""A person in several sites: the bounds against exact divergences of the mixture.

Nothing is sampled: every divergence is a sum of probabilities over the integers, or an integral on
a fine grid, for each direction of adjacency.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from privacy.accounting.accountant import ORDERS, Accountant, rdp_to_epsilon, step_rdp
from privacy.accounting.cross_site import PersonAccountant, person_rdp
from privacy.accounting.events import GaussianRecordEvent, NoDpEvent, SkellamRecordEvent
from privacy.accounting.sensitivity import choose_scale, record_rounding_sensitivity
from privacy.errors import UsageError
from tests.support.exact_renyi import log_pmf, renyi


def event_of(q, V, D2, d=1, D1=None, unit="record"):
    return SkellamRecordEvent(q, V, D2 if D1 is None else D1, D2, d, 1, unit=unit)


def skellam(q, z, steps, d=2**20):
    sensitivity = record_rounding_sensitivity(1.0, choose_scale(1.0, d), d)
    D1, D2 = sensitivity.D1, sensitivity.D2
    return SkellamRecordEvent(q, (z * D2) ** 2, D1, D2, d, 5, steps)


def removed(alpha, log_mix_K, log_q_K):
    return special.logsumexp(alpha * log_q_K + (1 - alpha) * log_mix_K) / (alpha - 1)


def mixture_of(q, vectors, log_law):
    """Give the log law of a sum to which each vector is added with probability q."""
    laws = []
    for drawn in itertools.product((False, True), repeat=len(vectors)):
        count = sum(drawn)
        weight = count * math.log(q) + (len(vectors) - count) * math.log1p(-q)
        total = np.sum([v for v, taken in zip(vectors, drawn, strict=True) if taken], axis=0)
        laws.append(weight + log_law(total if count else np.zeros_like(vectors[0])))
    return special.logsumexp(laws, axis=0)


@pytest.mark.parametrize("vectors", [(1,), (1, 1), (2, 2), (2, -2), (1, 1, 1), (2, 1, -2)])
@pytest.mark.parametrize("V", [4.0, 25.0, 400.0])
@pytest.mark.parametrize("q", [0.001, 0.05, 0.5])
@pytest.mark.parametrize("alpha", [2, 3, 5, 16])
def test_the_price_holds_in_both_directions_in_one_dimension(vectors, V, q, alpha):
    D2 = float(max(map(abs, vectors)))
    price = person_rdp(event_of(q, V, D2), len(vectors), (alpha,))[0]
    reach = int(20 * math.sqrt(V) + 60 + 8 * alpha * D2 * len(vectors))
    support_K = np.arange(-reach, reach + 1)
    log_q_K = log_pmf(V, support_K)
    log_mix_K = mixture_of(q, np.array(vectors), lambda shift: log_pmf(V, support_K - shift))
    # 1e-13: summing probabilities to 1 in float64.
    assert renyi(alpha, log_mix_K, log_q_K) <= price + 1e-13
    assert removed(alpha, log_mix_K, log_q_K) <= price + 1e-13


@pytest.mark.parametrize("vectors", [((1, 1), (1, 1)), ((2, 1), (1, -2)), ((1, 0), (0, 1), (1, 0))])
@pytest.mark.parametrize("V", [6.0, 30.0])
@pytest.mark.parametrize("q", [0.02, 0.4])
@pytest.mark.parametrize("alpha", [2, 4, 7])
def test_the_price_holds_for_any_directions_in_two_dimensions(vectors, V, q, alpha):
    D2 = max(math.hypot(*v) for v in vectors)
    event = event_of(q, V, D2, d=2, D1=max(math.sqrt(2) * D2, D2))
    price = person_rdp(event, len(vectors), (alpha,))[0]
    reach = int(14 * math.sqrt(V) + 20 + 3 * alpha * D2)
    support_K = np.arange(-reach, reach + 1)

    def law(shift):
        one_K = log_pmf(V, support_K - shift[0])
        return (one_K[:, None] + log_pmf(V, support_K - shift[1])[None, :]).ravel()

    log_q_K = law((0, 0))
    log_mix_K = mixture_of(q, np.array(vectors), law)
    assert np.exp(log_mix_K).sum() == pytest.approx(1, abs=1e-12)
    assert special.logsumexp(alpha * log_mix_K + (1 - alpha) * log_q_K) / (alpha - 1) <= price
    assert removed(alpha, log_mix_K, log_q_K) <= price


def gaussian_mixture(q, z, sites, alpha):
    """Give both exact divergences of Bin(k, q) shifts under Gaussian noise, on a fine grid."""
    x_K = np.linspace(-45 * z, 45 * z + sites * alpha, 200_001)
    log_step = math.log(x_K[1] - x_K[0])
    log_q_K = stats.norm.logpdf(x_K, 0, z)
    log_weights_J = stats.binom.logpmf(np.arange(sites + 1), sites, q)
    log_mix_K = special.logsumexp(
        [w + stats.norm.logpdf(x_K, j, z) for j, w in enumerate(log_weights_J)], axis=0
    )
    with_K, without_K = log_mix_K + log_step, log_q_K + log_step
    return renyi(alpha, with_K, without_K), removed(alpha, with_K, without_K)


@pytest.mark.parametrize(
    ("sites", "design", "ours"), [(1, 2.437, 2.437), (2, 5.45, 5.586), (3, 8.60, 8.964)]
)
def test_the_figures_of_the_design_are_met_from_above(sites, design, ours):
    # privacy.md states the exact mixture of Gaussians; no theorem gives it for Skellam noise.
    few = tuple(range(2, 13))
    exact_A = np.array([max(gaussian_mixture(0.01, 1.0, sites, alpha)) for alpha in few])
    assert min(rdp_to_epsilon(1000 * exact_A, few, 1e-6)) == pytest.approx(design, abs=6e-3)
    epsilon = PersonAccountant(sites).compose(skellam(0.01, 1.0, 1000)).get_epsilon(1e-6)
    assert round(epsilon, 3) == ours
    assert design - 6e-3 <= epsilon <= 1.05 * design
    # "more than the sum of per-site epsilon": nobody may multiply by k instead.
    alone = Accountant().compose(skellam(0.01, 1.0, 1000)).get_epsilon(1e-6)
    assert epsilon >= sites * alone


@pytest.mark.parametrize(("q", "z"), [(0.001, 0.7), (0.01, 1.0), (0.05, 2.0), (0.3, 8.0)])
@pytest.mark.parametrize("sites", [2, 4])
@pytest.mark.parametrize("alpha", [2, 3, 6, 12])
def test_a_fine_grid_prices_no_less_than_the_mixture_of_gaussians(q, z, sites, alpha):
    price = person_rdp(skellam(q, z, 1), sites, (alpha,))[0]
    added, taken = gaussian_mixture(q, z, sites, alpha)
    assert max(added, taken) <= price * (1 + 1e-9)


@given(
    q=st.one_of(st.floats(1e-9, 1.0), st.just(1.0)),
    z=st.floats(0.3, 50.0),
    sites=st.integers(1, 40),
)
@settings(max_examples=60, deadline=None)
def test_more_sites_cost_more_and_one_site_costs_what_the_ledger_charges(q, z, sites):
    event = skellam(q, z, 1)
    one_A, k_A, more_A = (person_rdp(event, k) for k in (1, sites, sites + 1))
    np.testing.assert_array_equal(one_A, step_rdp(event))
    assert not np.isnan(k_A).any()
    assert (more_A >= k_A * (1 - 1e-9)).all()
    # Every site draws the person: a shift of k*D2. Nothing is dearer.
    all_drawn = person_rdp(skellam(1.0, z, 1), sites)
    assert (k_A <= all_drawn * (1 + 1e-9)).all()
    assert (k_A >= one_A * (1 - 1e-9)).all()


@pytest.mark.parametrize("q", [1e-9, 1e-6, 1e-3])
def test_small_rates_lose_nothing_to_cancellation(q):
    # To first order k sites are one that samples at k*q: k^2 q^2 (e^(1/z^2) - 1) at order 2.
    price = person_rdp(skellam(q, 4.0, 1), 2, (2,))[0]
    least = (2 * q) ** 2 * math.expm1(1 / 16)
    assert least <= price <= 1.01 * least * (1 + 4 * q)


def test_local_noise_adds_up():
    event = GaussianRecordEvent(0.01, 1.0, 10, d=1000, sampler_tv=2.0**-96)
    np.testing.assert_array_equal(person_rdp(event, 3), 3 * step_rdp(event))
    three = PersonAccountant(3).compose(event)
    thrice = Accountant().compose(event).compose(event).compose(event)
    assert three.get_epsilon(1e-6) == pytest.approx(thrice.get_epsilon(1e-6), rel=1e-12)


def test_a_user_in_several_sites_costs_as_a_record_there():
    record, user = (event_of(0.02, 900.0, 10.0, d=4, D1=20.0, unit=u) for u in ("record", "user"))
    np.testing.assert_array_equal(person_rdp(user, 2), person_rdp(record, 2))


@pytest.mark.parametrize("alpha", [2, 5])
def test_a_site_event_lets_a_person_turn_every_vector_round(alpha):
    # Each of two sites' integers goes from +3 to -3: the sum moves by 12.
    V, D2 = 200.0, 3.0
    event = event_of(1.0, V, D2, unit="site")
    support_K = np.arange(-900, 901)
    exact = renyi(alpha, log_pmf(V, support_K - 6), log_pmf(V, support_K + 6))
    price = person_rdp(event, 2, (alpha,))[0]
    assert exact <= price <= 1.1 * exact
    np.testing.assert_allclose(person_rdp(event, 1), step_rdp(event, unit="record"), rtol=1e-9)


def test_no_privacy_in_one_site_is_none_in_several():
    assert np.isinf(person_rdp(NoDpEvent(), 2)).all()
    assert len(person_rdp(NoDpEvent(), 2)) == len(ORDERS)


@pytest.mark.parametrize("sites", [0, -1, 1001, 2.0, True])
def test_a_bad_number_of_sites_is_refused(sites):
    with pytest.raises(UsageError, match="sites of a person"):
        person_rdp(NoDpEvent(), sites)
