"""Calibration: the target is met, nearly reached, and agrees with what the ledger charges."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.accounting.accountant import ORDERS
from privacy.accounting.budget import Budget, Tally
from privacy.accounting.calibration import (
    NoisePlan,
    Target,
    best_alpha,
    calibrate_noise_multiplier,
    plan_epsilon,
)
from privacy.accounting.events import GaussianRecordEvent, NoDpEvent
from privacy.errors import UsageError

D = 5761
PLAN = NoisePlan(q=0.01, steps=600, D2=4096 + D**0.5 / 2, d=D, n_sites=5)


def test_the_demo_schedule():
    # Issue 2: q=0.01, 600 steps, epsilon 3, delta 1e-5: "about 0.82".
    z = calibrate_noise_multiplier(Target(3.0, 1e-5), PLAN)
    assert 0.80 < z < 0.85


@given(
    epsilon=st.floats(0.05, 20.0),
    q=st.floats(1e-3, 0.5),
    steps=st.integers(1, 3000),
    delta_dp=st.sampled_from([1e-8, 1e-5, 1e-3]),
)
@settings(max_examples=25, deadline=None)
def test_the_target_is_met_and_nearly_reached(epsilon, q, steps, delta_dp):
    plan = NoisePlan(q=q, steps=steps, D2=PLAN.D2, d=D, n_sites=5)
    target = Target(epsilon, delta_dp)
    z = calibrate_noise_multiplier(target, plan)
    reached = plan_epsilon(target, [plan.event(z)])
    assert epsilon - 1e-3 <= reached <= epsilon


@pytest.mark.parametrize("alpha", [6, 12, 40])
def test_at_a_fixed_order_the_ledger_takes_the_whole_plan_and_no_more_than_a_few_steps(alpha):
    target = Target(3.0, 1e-5, alpha=alpha)
    z = calibrate_noise_multiplier(target, PLAN)
    tally = Tally(Budget("loans", "record", 3.0, 1e-5, alpha))
    step = PLAN.event(z, steps=1)
    for _ in range(PLAN.steps):
        tally = tally.charge(step)
    assert tally.remaining < 1e-3
    assert tally.steps_that_fit(step) <= 1


def test_a_fixed_order_never_needs_less_noise_than_the_best_one():
    free = calibrate_noise_multiplier(Target(3.0, 1e-5), PLAN)
    alpha = best_alpha([PLAN.event(free)], 1e-5)
    assert calibrate_noise_multiplier(Target(3.0, 1e-5, alpha), PLAN) == pytest.approx(
        free, abs=1e-4
    )
    for other in (alpha + 2, alpha + 10):
        assert calibrate_noise_multiplier(Target(3.0, 1e-5, other), PLAN) > free


def test_the_best_order_is_the_cheapest_of_all():
    events = [PLAN.event(1.0), GaussianRecordEvent(0.05, 2.0, 20)]
    alpha = best_alpha(events, 1e-6)
    costs = {order: plan_epsilon(Target(1.0, 1e-6, order), events) for order in ORDERS}
    assert costs[alpha] == min(costs.values())


def test_other_events_are_paid_from_the_same_target():
    evaluation = PLAN.event(4.0, steps=60)
    target = Target(3.0, 1e-5)
    z = calibrate_noise_multiplier(target, PLAN, (evaluation,))
    assert z > calibrate_noise_multiplier(target, PLAN)
    assert plan_epsilon(target, [PLAN.event(z), evaluation]) <= 3.0


def test_noise_for_users_exceeds_noise_for_records():
    record = calibrate_noise_multiplier(Target(3.0, 1e-5), PLAN)
    user = calibrate_noise_multiplier(Target(3.0, 1e-5, unit="user", max_rows=4), PLAN)
    assert user > 4 * record


def test_a_lax_target_gives_the_least_noise_on_offer():
    plan = NoisePlan(q=1e-20, steps=1, D2=PLAN.D2, d=D, n_sites=5)
    assert calibrate_noise_multiplier(Target(30.0, 0.5), plan) == 0.1


@pytest.mark.parametrize(
    ("target", "also"),
    [
        (Target(0.5, 1e-6, alpha=2), ()),  # order 2 alone costs more
        (Target(1.0, 1e-5), (NoDpEvent(),)),
        (Target(1.0, 1e-5), (PLAN.event(0.5),)),
    ],
)
def test_a_target_out_of_reach_is_refused(target, also):
    with pytest.raises(UsageError, match="no noise reaches"):
        calibrate_noise_multiplier(target, PLAN, also)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("nan"), float("inf"), True, "3"])
def test_a_bad_target_is_refused(epsilon):
    with pytest.raises(UsageError, match="epsilon"):
        calibrate_noise_multiplier(Target(epsilon, 1e-5), PLAN)


def test_a_sampler_that_eats_delta_is_refused():
    plan = NoisePlan(q=0.01, steps=600, D2=PLAN.D2, d=D, n_sites=5, sampler_tv=1e-9)
    with pytest.raises(UsageError, match="no noise reaches"):
        calibrate_noise_multiplier(Target(3.0, 1e-5), plan)


@pytest.mark.parametrize("events", [[], [NoDpEvent()]])
def test_no_best_order_without_a_finite_cost(events):
    with pytest.raises(UsageError, match="no best order"):
        best_alpha(events, 1e-5)
