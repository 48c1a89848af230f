"""The accountant's bounds against exact Renyi divergences of Skellam laws, summed over the grid.

Nothing is sampled here: each divergence is a sum of probabilities, in log space, over a support
whose neglected tails are shown to be negligible. Both directions of add or remove are checked.
"""

import math

import numpy as np
import pytest
from scipy import special, stats

from privacy.accounting.accountant import (
    ORDERS,
    poisson_subsampled_rdp,
    rdp_to_epsilon,
    skellam_rdp,
    step_rdp,
)
from privacy.accounting.events import SkellamRecordEvent
from tests.support.exact_renyi import log_pmf, mixture, renyi


def laws(V, shift, alpha):
    """Give log P (shifted) and log Q on a support that covers P^alpha Q^(1-alpha) too."""
    reach = int(20 * math.sqrt(V) + 60 + 6 * alpha * shift)
    support_K = np.arange(-reach, reach + 1)
    return log_pmf(V, support_K - shift), log_pmf(V, support_K)


@pytest.mark.parametrize("V", [0.3, 25.0, 400.0])
def test_the_reference_law_is_skellam(V):
    support_K = np.arange(-300, 301)
    ours_K = log_pmf(V, support_K)
    assert np.exp(ours_K).sum() == pytest.approx(1, rel=1e-12)
    assert (np.exp(ours_K) * support_K**2).sum() == pytest.approx(V, rel=1e-10)
    near_K = np.arange(-40, 41)
    expected_K = stats.skellam.logpmf(near_K, V / 2, V / 2)
    reliable_K = np.isfinite(expected_K)
    np.testing.assert_allclose(
        log_pmf(V, near_K)[reliable_K], expected_K[reliable_K], rtol=1e-6, atol=1e-6
    )


CASES = [
    (V, shift, alpha)
    for V in (0.3, 2.0, 25.0, 400.0)
    for shift in (1, 2, 5)
    for alpha in (2, 3, 5, 8, 16, 64)
]


@pytest.mark.parametrize(("V", "shift", "alpha"), CASES)
def test_the_skellam_bound_holds_in_one_dimension(V, shift, alpha):
    log_p_K, log_q_K = laws(V, shift, alpha)
    bound = skellam_rdp(np.array([float(alpha)]), V, float(shift), float(shift))[0]
    for exact in (renyi(alpha, log_p_K, log_q_K), renyi(alpha, log_q_K, log_p_K)):
        assert 0 < exact <= bound
    if V >= 400 and alpha * shift <= 16:
        assert exact >= 0.97 * bound  # and it is not wastefully loose


@pytest.mark.parametrize("shifts", [(1, 1), (2, 1, 1), (3, 0, 4), (1,) * 30])
@pytest.mark.parametrize("alpha", [2, 4, 16])
@pytest.mark.parametrize("V", [1.0, 30.0])
def test_the_skellam_bound_holds_for_vectors(shifts, alpha, V):
    # Coordinates are independent, so divergences add up.
    exact = sum(renyi(alpha, *laws(V, shift, alpha)) for shift in shifts if shift)
    D2 = math.sqrt(sum(shift * shift for shift in shifts))
    D1 = min(math.sqrt(len(shifts)) * D2, D2 * D2)
    assert sum(shifts) <= D1 * (1 + 1e-12)
    assert exact <= skellam_rdp(np.array([float(alpha)]), V, D1, D2)[0]


@pytest.mark.parametrize(("V", "shift", "alpha"), CASES)
@pytest.mark.parametrize("q", [0.001, 0.05, 0.5])
def test_the_subsampled_price_holds_in_both_directions(V, shift, alpha, q):
    log_p_K, log_q_K = laws(V, shift, alpha)
    log_mix_K = mixture(q, log_p_K, log_q_K)
    event = SkellamRecordEvent(q, V, float(shift), float(shift), 1, 1)
    price = step_rdp(event, (alpha,))[0]
    added = renyi(alpha, log_mix_K, log_q_K)
    removed = special.logsumexp(alpha * log_q_K + (1 - alpha) * log_mix_K) / (alpha - 1)
    # 1e-13: summing probabilities to 1 in float64.
    assert added <= price + 1e-13
    assert removed <= price + 1e-13
    # Mironov et al., theorem 5: for a symmetric law adding is the worse direction.
    assert removed <= added + 1e-13


@pytest.mark.parametrize(("V", "shift", "alpha"), [case for case in CASES if case[2] <= 16])
@pytest.mark.parametrize("q", [0.001, 0.05, 0.5])
def test_the_subsampling_theorem_is_tight_on_exact_divergences(V, shift, alpha, q):
    log_p_K, log_q_K = laws(V, shift, alpha)
    base_K = np.array([renyi(k, log_p_K, log_q_K) for k in range(2, alpha + 1)])
    amplified = poisson_subsampled_rdp((alpha,), q, base_K)[0]
    exact = renyi(alpha, mixture(q, log_p_K, log_q_K), log_q_K)
    assert exact == pytest.approx(amplified, rel=2e-8, abs=1e-13)


@pytest.mark.parametrize("rows", [2, 3])
@pytest.mark.parametrize("V", [9.0, 100.0])
@pytest.mark.parametrize("alpha", [2, 4, 12])
def test_the_user_price_holds_for_independently_sampled_rows(rows, V, alpha):
    q = 0.05
    event = SkellamRecordEvent(q, V, 1.0, 1.0, 1, 1)
    price = step_rdp(event, (alpha,), "user", rows)[0]
    reach = int(20 * math.sqrt(V) + 60 + 6 * alpha * rows)
    support_K = np.arange(-reach, reach + 1)
    log_q_K = log_pmf(V, support_K)
    # Every row pushes the same way: Bin(rows, q) of them are in the batch.
    weights = [math.comb(rows, k) * q**k * (1 - q) ** (rows - k) for k in range(rows + 1)]
    log_mix_K = special.logsumexp(
        [math.log(w) + log_pmf(V, support_K - k) for k, w in enumerate(weights)], axis=0
    )
    assert renyi(alpha, log_mix_K, log_q_K) <= price
    assert special.logsumexp(alpha * log_q_K + (1 - alpha) * log_mix_K) / (alpha - 1) <= price


@pytest.mark.parametrize("q", [0.05, 0.5])
@pytest.mark.parametrize("alpha", [2, 4, 12])
def test_the_record_price_of_a_user_event_holds_for_opposite_vectors(q, alpha):
    # Losing one row turns the user's clipped sum from +D2 to -D2, the worst case.
    V, shift = 50.0, 2
    event = SkellamRecordEvent(q, V, float(shift), float(shift), 1, 1, unit="user")
    price = step_rdp(event, (alpha,), "record")[0]
    reach = int(20 * math.sqrt(V) + 60 + 12 * alpha * shift)
    support_K = np.arange(-reach, reach + 1)
    log_q_K = log_pmf(V, support_K)
    with_K = mixture(q, log_pmf(V, support_K - shift), log_q_K)
    without_K = mixture(q, log_pmf(V, support_K + shift), log_q_K)
    assert renyi(alpha, with_K, without_K) <= price
    # A user event is no cheaper for a record than the plain reading would have it.
    assert price > step_rdp(event, (alpha,), "user")[0]


@pytest.mark.parametrize(("q", "V"), [(0.2, 4.0), (0.5, 25.0), (1.0, 16.0)])
def test_the_converted_epsilon_bounds_the_exact_hockey_stick_divergence(q, V):
    log_p_K, log_q_K = laws(V, 2, 4)
    log_mix_K = mixture(q, log_p_K, log_q_K) if q < 1 else log_p_K
    event = SkellamRecordEvent(q, V, 2.0, 2.0, 1, 1)
    for delta_dp in (1e-3, 1e-6):
        epsilon = float(np.min(rdp_to_epsilon(step_rdp(event), ORDERS, delta_dp)))
        for one_K, two_K in ((log_mix_K, log_q_K), (log_q_K, log_mix_K)):
            excess_K = np.exp(one_K) - math.exp(epsilon) * np.exp(two_K)
            assert excess_K[excess_K > 0].sum() <= delta_dp
