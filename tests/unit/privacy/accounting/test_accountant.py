"""The accountant: check figures of privacy.md, peers' figures, properties."""

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.accounting.accountant import (
    ORDERS,
    Accountant,
    gaussian_rdp,
    poisson_subsampled_rdp,
    rdp_to_epsilon,
    sampler_tv,
    skellam_rdp,
    step_rdp,
)
from privacy.accounting.events import GaussianRecordEvent, NoDpEvent, SkellamRecordEvent
from privacy.accounting.sensitivity import choose_scale, record_rounding_sensitivity
from privacy.errors import UsageError


def skellam(q=0.01, z=1.0, steps=1, d=2**20, unit="record", **more):
    sensitivity = record_rounding_sensitivity(1.0, choose_scale(1.0, d), d)
    D1, D2 = sensitivity.D1, sensitivity.D2
    return SkellamRecordEvent(q, (z * D2) ** 2, D1, D2, d, 5, steps, unit=unit, **more)


# delta_dp = 1e-6, d = 2^20, C = 1, s = 65536 (so sqrt(d) is 1.6 % of C*s), record rounding:
# D2 = 65536 + 512 = 66048, D1 = 1024 * D2; orders ORDERS = 2..128, 160, 192, 256, 320, 384, 512.
# The figures move by less than 1e-5 for any s from 20000 to 2^24, and with sum rounding.
@pytest.mark.parametrize(
    ("q", "z", "steps", "epsilon", "alpha"),
    [(0.01, 1.0, 1000, 2.437, 8), (0.05, 2.0, 200, 1.952, 12), (0.1, 4.0, 100, 1.228, 18)],
)
def test_check_figures_of_the_design(q, z, steps, epsilon, alpha):
    event = skellam(q, z, steps)
    assert event.D2 == 66048.0
    accountant = Accountant().compose(event)
    assert round(accountant.get_epsilon(1e-6), 3) == epsilon
    assert accountant.best_alpha(1e-6) == alpha


def test_the_published_gaussian_figure():
    # privacy.md: q=.01, z=1, T=1000, delta=1e-5: RDP 2.1014, over fractional orders too;
    # integer orders cost a little more and never less.
    epsilon = Accountant().compose(GaussianRecordEvent(0.01, 1.0, 1000)).get_epsilon(1e-5)
    assert 2.1014 - 1e-4 <= epsilon <= 2.1014 + 0.02
    assert epsilon > 1.8282  # the PLD truth; the banned accountant says 1.618


@pytest.mark.parametrize("q", [1e-4, 0.01, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("z", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("alpha", [2, 3, 8, 33, 128])
def test_gaussian_agrees_with_dp_accounting_at_every_integer_order(q, z, alpha):
    peer = RdpAccountant([alpha])
    peer.compose(
        dp_event.SelfComposedDpEvent(
            dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(z)), 100
        )
    )
    ours = Accountant((alpha,)).compose(GaussianRecordEvent(q, z, 100)).get_epsilon(1e-6)
    assert ours == pytest.approx(peer.get_epsilon(1e-6), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("q", [0.01, 0.2])
def test_skellam_on_a_fine_grid_becomes_the_gaussian(q):
    D2 = 2.0**40
    for z in (0.8, 3.0):
        event = SkellamRecordEvent(q, (z * D2) ** 2, D2, D2, 1, 5)
        np.testing.assert_allclose(step_rdp(event), step_rdp(GaussianRecordEvent(q, z)), rtol=1e-8)


def test_on_a_coarse_grid_skellam_costs_more_than_the_gaussian():
    event = SkellamRecordEvent(0.05, 16.0, 4.0, 2.0, 4, 5)
    assert (step_rdp(event) > step_rdp(GaussianRecordEvent(0.05, 2.0))).all()


def test_the_skellam_bound_by_hand():
    # alpha 3, V 50, D2 2, D1 4: 3*4/100 + min((5*4 + 24)/10000, 12/100)
    rdp = skellam_rdp(np.array([3.0]), 50.0, 4.0, 2.0)
    assert rdp[0] == pytest.approx(0.12 + 0.0044, rel=1e-14)
    # A tiny variance makes the second branch the smaller one: 2*1/2 + min((3+6)/4*100, 1.5*10)
    rdp = skellam_rdp(np.array([2.0]), 0.1, 1.0, 1.0)
    assert rdp[0] == pytest.approx(10 + 15.0, rel=1e-14)


@pytest.mark.parametrize("q", [1e-7, 1e-3, 0.3, 0.999])
@pytest.mark.parametrize("alpha", [2, 3, 40, 512])
@pytest.mark.parametrize("slope", [1e-9, 1e-2, 0.5, 30.0])
def test_subsampling_against_the_theorem_in_200_digits(q, alpha, slope):
    base_K = slope * np.arange(2, alpha + 1, dtype=np.float64)
    ours = float(poisson_subsampled_rdp((alpha,), q, base_K)[0])
    with mpmath.workdps(200):
        rate = mpmath.mpf(q)
        total = (1 - rate) ** (alpha - 1) * (1 + (alpha - 1) * rate)
        for k in range(2, alpha + 1):
            weight = mpmath.binomial(alpha, k) * (1 - rate) ** (alpha - k) * rate**k
            total += weight * mpmath.exp((k - 1) * mpmath.mpf(float(base_K[k - 2])))
        exact = mpmath.log(total) / (alpha - 1)
        assert exact <= ours <= exact * (1 + mpmath.mpf("3e-10"))


@given(q=st.floats(1e-6, 1.0), z=st.floats(0.3, 20.0), factor=st.floats(1.01, 3.0))
@settings(max_examples=40, deadline=None)
def test_cost_falls_with_noise_and_grows_with_rate_order_and_sensitivity(q, z, factor):
    rdp_A = step_rdp(skellam(q, z))
    assert (rdp_A > 0).all()
    assert (np.diff(rdp_A) >= -1e-12 * rdp_A[1:]).all()
    assert (step_rdp(skellam(q, z * factor)) <= rdp_A).all()
    assert (step_rdp(skellam(min(1.0, q * factor), z)) >= rdp_A * (1 - 1e-9)).all()
    unsampled_A = step_rdp(skellam(1.0, z))
    assert (rdp_A <= unsampled_A * (1 + 1e-9)).all()


@given(steps=st.integers(1, 2000), more=st.integers(1, 2000))
@settings(max_examples=20, deadline=None)
def test_composition_adds_and_epsilon_grows_with_steps(steps, more):
    together = Accountant().compose(skellam(steps=steps + more)).get_epsilon(1e-6)
    apart = Accountant().compose(skellam(steps=steps)).compose(skellam(steps=more))
    assert apart.get_epsilon(1e-6) == pytest.approx(together, rel=1e-12)
    assert Accountant().compose(skellam(steps=steps)).get_epsilon(1e-6) <= together


def test_epsilon_falls_as_delta_grows():
    accountant = Accountant().compose(skellam(steps=100))
    epsilons = [accountant.get_epsilon(delta_dp) for delta_dp in (1e-9, 1e-6, 1e-3, 0.1)]
    assert epsilons == sorted(epsilons, reverse=True)


def test_nothing_composed_costs_nothing_and_no_dp_costs_everything():
    assert Accountant().get_epsilon(1e-6) == 0.0
    assert Accountant().compose(NoDpEvent()).get_epsilon(1e-6) == math.inf
    assert Accountant().compose(skellam()).compose(NoDpEvent()).get_epsilon(1e-6) == math.inf


def test_extreme_events_overflow_to_infinity_not_to_nan():
    event = SkellamRecordEvent(0.5, 1e-300, 1e18, 1e18, 1, 5)
    rdp_A = step_rdp(event)
    assert not np.isnan(rdp_A).any()
    assert (rdp_A > 1e300).all()
    assert Accountant().compose(event).get_epsilon(1e-6) > 1e300


def test_the_conversion_by_hand_and_its_certificate():
    # r = 0.5 at alpha = 10, delta = 1e-5.
    expected = 0.5 + math.log1p(-0.1) - math.log(1e-4) / 9
    assert rdp_to_epsilon(np.array([0.5]), (10,), 1e-5)[0] == pytest.approx(expected, rel=1e-12)
    with_tv = rdp_to_epsilon(np.array([0.5]), (10,), 1e-5, tv=1e-6)[0]
    left = 1e-5 - (1 + math.exp(with_tv)) * 1e-6
    needed = 0.5 + math.log1p(-0.1) - math.log(left * 10) / 9
    assert expected < needed <= with_tv < needed + 1e-9


def test_the_sampler_spends_delta():
    exact = Accountant().compose(skellam(steps=100, sampler_tv=0.0)).get_epsilon(1e-6)
    default = Accountant().compose(skellam(steps=100)).get_epsilon(1e-6)
    assert exact == pytest.approx(default, rel=1e-12)
    # steps * n * d * tv = 100 * 5 * 2^20 * 1e-16 = 5e-8, times 1 + e^epsilon.
    coarse = Accountant().compose(skellam(steps=100, sampler_tv=1e-16)).get_epsilon(1e-6)
    assert coarse > exact + 1e-3
    # A sampler that is not exact enough leaves nothing: a 53-bit table at this size.
    sloppy = Accountant().compose(skellam(steps=100, sampler_tv=2.0**-53 * 1e4))
    assert sloppy.get_epsilon(1e-6) == math.inf


@pytest.mark.parametrize("orders", [(2.5,), (1,), (0,), (2.0,), (True,), (1025,), (), [2, 3], "23"])
def test_only_integer_orders_are_taken(orders):
    with pytest.raises(UsageError, match="order"):
        step_rdp(skellam(), orders)


@pytest.mark.parametrize("delta_dp", [0.0, 1.0, -1e-6, math.nan, True, "1e-6", None])
def test_a_bad_delta_is_refused(delta_dp):
    with pytest.raises(UsageError, match="delta_dp"):
        Accountant().compose(skellam()).get_epsilon(delta_dp)


def test_subsampling_refuses_what_the_theorem_does_not_cover():
    base_K = np.ones(4)
    for orders in ((6,), (2.5,), (1,)):
        with pytest.raises(UsageError):
            poisson_subsampled_rdp(orders, 0.1, base_K)
    with pytest.raises(UsageError, match="non-negative"):
        poisson_subsampled_rdp((3,), 0.1, np.array([0.1, -0.1]))
    with pytest.raises(UsageError, match="non-negative"):
        poisson_subsampled_rdp((3,), 0.1, np.array([0.1, np.nan]))


def test_prices_are_cached_and_cannot_be_changed():
    first = step_rdp(skellam())
    assert step_rdp(skellam(steps=7)) is first
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0.0


def test_a_user_costs_as_its_rows_together():
    event = skellam(0.01, 2.0)
    user_A = step_rdp(event, ORDERS, "user", 3)
    # Any of 3 rows sampled, and at most 3 * D2 moved: the user-level event with those values.
    q_any = 1 - 0.99**3
    same = SkellamRecordEvent(q_any, event.V, 3 * event.D1, 3 * event.D2, event.d, 5, unit="user")
    np.testing.assert_allclose(user_A, step_rdp(same, ORDERS, "user", 3), rtol=1e-9)
    # At least the price that privacy.md names, D2*m at the rate q.
    named = SkellamRecordEvent(0.01, event.V, 3 * event.D1, 3 * event.D2, event.d, 5)
    assert (user_A >= step_rdp(named)).all()
    assert (step_rdp(event, ORDERS, "user", 1) == step_rdp(event)).all()


def test_a_user_event_costs_the_user_once_and_the_record_twice_the_shift():
    event = skellam(0.01, 2.0, unit="user")
    assert (step_rdp(event, ORDERS, "user", 9) == step_rdp(skellam(0.01, 2.0))).all()
    record_A = step_rdp(event, ORDERS, "record")
    alphas_A = np.array(ORDERS, dtype=float)
    twice_A = skellam_rdp(alphas_A, event.V, 2 * event.D1, 2 * event.D2)
    # Between the amplified and the plain cost of twice the shift.
    assert (record_A <= twice_A).all()
    gain_8 = (alphas_A[:8] - 1) * twice_A[:8]
    expected_8 = np.log1p(0.01 * np.expm1(gain_8)) / (alphas_A[:8] - 1)
    np.testing.assert_allclose(record_A[:8], expected_8, rtol=1e-6)


@pytest.mark.parametrize("unit", ["silo", "", None])
def test_an_unknown_unit_is_refused(unit):
    with pytest.raises(UsageError, match="unit"):
        step_rdp(skellam(), ORDERS, unit)


@pytest.mark.parametrize("rows", [0, -1, 1.5, True, None])
def test_a_bad_row_cap_is_refused(rows):
    with pytest.raises(UsageError, match="max_rows"):
        step_rdp(skellam(), ORDERS, "user", rows)


@pytest.mark.parametrize("unit", ["record", "user"])
def test_what_a_site_event_costs_those_inside_the_site(unit):
    event = skellam(1.0, 20.0, unit="site")
    plain_A = step_rdp(event, ORDERS, "site")
    np.testing.assert_array_equal(plain_A, step_rdp(skellam(1.0, 20.0)))
    # Whatever changes inside, the site's vector stays within D2: it moves by at most 2 * D2.
    twice_A = skellam_rdp(np.array(ORDERS, dtype=float), event.V, 2 * event.D1, 2 * event.D2)
    np.testing.assert_allclose(step_rdp(event, ORDERS, unit, 3), twice_A, rtol=1e-6)


@pytest.mark.parametrize("event", [skellam(), GaussianRecordEvent(0.1, 1.0)])
def test_what_bounds_a_record_does_not_bound_a_site(event):
    for narrow in (event, replace(event, unit="user")):
        assert np.isinf(step_rdp(narrow, ORDERS, "site")).all()
        assert Accountant(unit="site").compose(narrow).get_epsilon(1e-5) == math.inf


def test_site_events_are_not_sampled():
    with pytest.raises(UsageError, match="q is 1"):
        skellam(0.5, unit="site")
    with pytest.raises(UsageError, match="unit"):
        GaussianRecordEvent(1.0, 1.0, unit="site")


def test_a_gaussian_user_event_costs_the_user_once_and_the_record_twice_the_shift():
    event = GaussianRecordEvent(0.01, 2.0, unit="user")
    plain = GaussianRecordEvent(0.01, 2.0)
    assert (step_rdp(event, ORDERS, "user", 9) == step_rdp(plain)).all()
    alphas_A = np.array(ORDERS, dtype=float)[:8]
    gain_8 = (alphas_A - 1) * gaussian_rdp(alphas_A, 1.0)
    expected_8 = np.log1p(0.01 * np.expm1(gain_8)) / (alphas_A - 1)
    record_A = step_rdp(event, ORDERS, "record")
    np.testing.assert_allclose(record_A[:8], expected_8, rtol=1e-6)
    # A record event is never cheaper for its user than for the record.
    assert (step_rdp(plain, ORDERS, "user", 4) > step_rdp(plain)).all()
    assert (record_A > step_rdp(plain)).all()


def test_a_samplers_total_variation_is_counted_for_gaussian_noise():
    ideal = GaussianRecordEvent(0.01, 1.0, 1000)
    discrete = GaussianRecordEvent(0.01, 1.0, 1000, d=10**7, sampler_tv=2.0**-50)
    assert sampler_tv(ideal) == 0.0
    assert sampler_tv(discrete) == 1000 * 10**7 * 2.0**-50
    epsilon = Accountant().compose(ideal).get_epsilon(1e-3)
    assert Accountant().compose(discrete).get_epsilon(1e-3) > epsilon
    fine = replace(discrete, sampler_tv=2.0**-96)
    assert Accountant().compose(fine).get_epsilon(1e-3) == pytest.approx(epsilon, rel=1e-9)


def test_one_of_several_events_costs_the_most_at_every_order():
    low, high = GaussianRecordEvent(0.3, 4.0, 3), skellam(1.0, 9.0)
    both = Accountant().compose_any([low, high])
    for chosen in (low, high):
        alone = Accountant().compose(chosen)
        assert alone.get_epsilon(1e-5) <= both.get_epsilon(1e-5)
    separate = Accountant().compose(low).compose(high)
    assert both.get_epsilon(1e-5) < separate.get_epsilon(1e-5)
