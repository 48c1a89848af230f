"""Budgets and tallies: one fixed order, exact sums, refusals that say what is left."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.accounting.accountant import Accountant, step_rdp
from privacy.accounting.budget import RDP_BITS, Budget, Tally
from privacy.accounting.events import GaussianRecordEvent, NoDpEvent, SkellamRecordEvent
from privacy.errors import PeerError, Reason, UsageError

RECORD = Budget("loans", "record", 3.0, 1e-5, 8)
USER = Budget("loans", "user", 8.0, 1e-5, 6, max_rows_per_user=2)
D2 = 4134.0
STEP = SkellamRecordEvent(0.01, (1.2 * D2) ** 2, 60 * D2, D2, 5761, 5)


@pytest.mark.parametrize("alpha", [8.0, 2.5, 1, 0, -3, True, 1025, "8", None, math.inf])
def test_the_order_is_one_integer(alpha):
    with pytest.raises(UsageError, match="alpha"):
        replace(RECORD, alpha=alpha)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dataset_id", ""),
        ("dataset_id", "a\nb"),
        ("dataset_id", "x" * 201),
        ("dataset_id", None),
        ("unit", "site"),
        ("epsilon", 0.0),
        ("epsilon", math.inf),
        ("epsilon", math.nan),
        ("epsilon", 30.1),
        ("delta_dp", 0.0),
        ("delta_dp", 1.0),
        ("allow_no_dp", 1),
        ("allow_no_dp", "yes"),
    ],
)
def test_a_bad_budget_is_refused_by_name(name, value):
    with pytest.raises(UsageError, match=name):
        replace(RECORD, **{name: value})


def test_an_order_too_small_for_the_epsilon_is_refused_with_the_mend():
    with pytest.raises(UsageError, match="larger alpha"):
        Budget("loans", "record", 1.0, 1e-6, 2)


def test_a_user_budget_needs_a_row_cap():
    with pytest.raises(UsageError, match="max_rows_per_user"):
        Budget("loans", "user", 8.0, 1e-5, 6)
    for rows in (0, 1.5, True):
        with pytest.raises(UsageError, match="max_rows_per_user"):
            replace(USER, max_rows_per_user=rows)
    with pytest.raises(UsageError, match="user budgets only"):
        replace(RECORD, max_rows_per_user=2)


@pytest.mark.parametrize("budget", [RECORD, USER, replace(RECORD, allow_no_dp=True)])
def test_budgets_round_trip_and_refuse_unknown_keys(budget):
    assert Budget.from_dict(budget.to_dict()) == budget
    with pytest.raises(UsageError, match="alphas"):
        Budget.from_dict({**budget.to_dict(), "alphas": [2, 3]})
    with pytest.raises(UsageError, match="object"):
        Budget.from_dict([])


def test_an_empty_tally_has_spent_nothing():
    assert Tally(RECORD).spent_epsilon == 0.0
    assert Tally(RECORD).remaining == 3.0


@given(steps=st.integers(1, 300), unit_budget=st.sampled_from([RECORD, USER]))
@settings(max_examples=30, deadline=None)
def test_the_tally_agrees_with_the_accountant_at_its_order(steps, unit_budget):
    tally = Tally(unit_budget).after(replace(STEP, steps=steps))
    accountant = Accountant(
        (unit_budget.alpha,), unit_budget.unit, unit_budget.max_rows_per_user or 1
    ).compose(replace(STEP, steps=steps))
    assert tally.spent_epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-9)


@given(parts=st.lists(st.integers(1, 50), min_size=1, max_size=6), data=st.data())
@settings(max_examples=30, deadline=None)
def test_order_and_grouping_of_charges_do_not_matter(parts, data):
    events = [replace(STEP, steps=steps) for steps in parts]
    events.append(GaussianRecordEvent(0.02, 3.0, 7))
    shuffled = data.draw(st.permutations(events))
    one = two = Tally(RECORD)
    for event in events:
        one = one.after(event)
    for event in shuffled:
        for _ in range(event.steps):
            two = two.after(replace(event, steps=1))
    assert one == two


@given(q=st.floats(1e-4, 0.2), z=st.floats(0.7, 6.0), epsilon=st.floats(2.0, 10.0))
@settings(max_examples=30, deadline=None)
def test_exactly_the_predicted_number_of_steps_fits(q, z, epsilon):
    budget = replace(RECORD, epsilon=epsilon)
    event = SkellamRecordEvent(q, (z * D2) ** 2, 60 * D2, D2, 5761, 5)
    fits = Tally(budget).steps_that_fit(event)
    if fits:
        tally = Tally(budget).charge(replace(event, steps=fits))
        assert tally.spent_epsilon <= epsilon * (1 + 1e-12)
        assert tally.steps_that_fit(event) == 0
    else:
        tally = Tally(budget)
    with pytest.raises(PeerError):
        tally.charge(event)
    with pytest.raises(PeerError):
        Tally(budget).charge(replace(event, steps=fits + 1))


def test_the_used_share_grows_evenly_to_one_while_epsilon_begins_with_a_leap():
    steps = Tally(RECORD).steps_that_fit(STEP)
    shares = [Tally(RECORD).after(replace(STEP, steps=n)).used_share for n in (1, 2, steps)]
    assert shares[1] == pytest.approx(2 * shares[0], rel=1e-9)
    assert shares[2] == pytest.approx(steps * shares[0], rel=1e-6)
    assert 1 - shares[0] < shares[2] <= 1
    assert Tally(RECORD).after(STEP).spent_epsilon / RECORD.epsilon > 5 * shares[0]
    assert Tally(RECORD, no_dp_steps=1).used_share == math.inf


def test_a_charge_that_meets_the_limit_exactly_fits_and_one_unit_more_does_not():
    one = Tally(RECORD).after(STEP).rdp_units
    limit = RECORD.limit_units(Tally(RECORD).after(STEP).tv_units)
    exact = Tally(RECORD, rdp_units=limit - one)
    assert exact.allows(STEP)
    full = exact.charge(STEP)
    assert full.rdp_units == limit
    assert full.spent_epsilon == pytest.approx(3.0, abs=1e-12)
    assert full.remaining == pytest.approx(0.0, abs=1e-12)
    over = Tally(RECORD, rdp_units=limit - one + 1)
    assert not over.allows(STEP)
    with pytest.raises(PeerError):
        over.charge(STEP)


def test_the_price_is_rounded_up():
    price = Accountant((8,)).compose(STEP)
    spent = Tally(RECORD).after(STEP).rdp_units
    assert math.ldexp(spent, -RDP_BITS) >= float(price._rdp_A[0])


def test_the_refusal_says_what_would_be_reached_and_what_is_left():
    fits = Tally(RECORD).steps_that_fit(STEP)
    tally = Tally(RECORD).charge(replace(STEP, steps=fits - 2))
    with pytest.raises(PeerError) as caught:
        tally.charge(replace(STEP, steps=500))
    assert caught.value.reason is Reason.BUDGET_EXHAUSTED
    message = str(caught.value)
    reached = tally.after(replace(STEP, steps=500)).spent_epsilon
    for part in (
        "'loans'",
        "record unit",
        f"reach epsilon {reached:.6g}",
        "allowed 3,",
        f"spent {tally.spent_epsilon:.6g}",
        f"left {tally.remaining:.6g}",
        "2 such steps still fit",
        "delta_dp 1e-05",
    ):
        assert part in message
    assert reached > 3.0


def test_the_samplers_total_variation_spends_delta():
    coarse = replace(STEP, sampler_tv=1e-15)
    exact = replace(STEP, sampler_tv=0.0)
    assert Tally(RECORD).after(coarse).spent_epsilon > Tally(RECORD).after(exact).spent_epsilon
    fits = Tally(RECORD).steps_that_fit(coarse)
    assert 0 < fits < Tally(RECORD).steps_that_fit(exact)
    # (1 + e^3) * steps * n * d * tv must stay below delta_dp.
    assert (1 + math.exp(3)) * fits * 5 * 5761 * 1e-15 < 1e-5
    tally = Tally(RECORD).charge(replace(coarse, steps=fits))
    assert tally.steps_that_fit(coarse) == 0
    with pytest.raises(PeerError):
        tally.charge(coarse)
    useless = replace(STEP, sampler_tv=1e-9)
    assert Tally(RECORD).steps_that_fit(useless) == 0
    assert Tally(RECORD).after(useless).spent_epsilon == math.inf
    with pytest.raises(PeerError, match="total variation alone would use up delta_dp 1e-05"):
        Tally(RECORD).charge(useless)
    with pytest.raises(PeerError, match=r"would reach epsilon 1\.84467e"):
        Tally(RECORD).charge(replace(STEP, V=1e-300, sampler_tv=0.0))


def test_a_user_pays_more_than_a_record_for_the_same_event():
    same_terms = replace(USER, epsilon=3.0, alpha=8)
    assert Tally(same_terms).after(STEP).rdp_units > 4 * Tally(RECORD).after(STEP).rdp_units


def test_release_without_dp_needs_consent():
    with pytest.raises(PeerError, match="allow_no_dp") as caught:
        Tally(RECORD).charge(NoDpEvent())
    assert caught.value.reason is Reason.BUDGET_EXHAUSTED
    assert Tally(RECORD).steps_that_fit(NoDpEvent()) == 0


def test_a_consented_release_without_dp_shows_as_infinite_and_lifts_no_limit():
    budget = replace(RECORD, allow_no_dp=True)
    tally = Tally(budget).charge(NoDpEvent(2))
    assert tally.spent_epsilon == math.inf
    assert tally.remaining == 0.0
    assert tally.steps_that_fit(STEP) == Tally(RECORD).steps_that_fit(STEP)
    with pytest.raises(PeerError):
        tally.charge(replace(STEP, steps=10**6))


def test_costs_beyond_any_float_are_refused_without_overflow():
    huge = SkellamRecordEvent(0.5, 1e-300, 1e18, 1e18, 2**40, 5, steps=2**40, sampler_tv=1.0)
    tally = Tally(RECORD)
    for _ in range(3):
        tally = tally.after(huge)
    assert tally.spent_epsilon == math.inf
    assert tally.remaining == 0.0
    with pytest.raises(PeerError, match="total variation alone"):
        Tally(RECORD).charge(huge)


@pytest.mark.parametrize("event", [None, "no-dp", {"kind": "no-dp"}])
def test_an_unknown_event_is_never_charged(event):
    with pytest.raises(UsageError, match="unknown privacy event"):
        Tally(RECORD).charge(event)


@pytest.mark.parametrize(
    "event",
    [
        GaussianRecordEvent(0.02, 3.0, 7, d=100, sampler_tv=2.0**-96),
        replace(STEP, steps=7),
    ],
)
def test_each_unit_pays_what_the_event_bounds_for_it(event):
    """A record event costs a user its row cap's worth, a user event a record twice the shift."""
    by_user = replace(event, unit="user")
    record, user = replace(RECORD, epsilon=8.0, alpha=USER.alpha), USER

    def paid(budget, charged):
        return math.ldexp(Tally(budget).after(charged).rdp_units, -RDP_BITS)

    assert paid(record, event) == pytest.approx(7 * step_rdp(event, (USER.alpha,))[0])
    assert paid(user, by_user) == paid(record, event), "as it is: the cap plays no part"
    assert paid(user, event) > paid(user, by_user)
    assert paid(record, by_user) > paid(record, event)
    more_rows = replace(user, max_rows_per_user=3)
    assert paid(more_rows, event) > paid(user, event)
    assert paid(more_rows, by_user) == paid(user, by_user)


def test_a_user_column_is_part_of_a_user_budget_only():
    named = replace(USER, user_column="customer")
    assert Budget.from_dict(named.to_dict()) == named != USER
    assert "user_column" not in USER.to_dict()
    with pytest.raises(UsageError, match="user budgets only"):
        replace(RECORD, user_column="customer")
    with pytest.raises(UsageError, match="user_column"):
        replace(USER, user_column="")


@given(counts=st.lists(st.integers(1, 5), min_size=1, max_size=3), epsilon=st.floats(1.0, 10.0))
@settings(max_examples=30, deadline=None)
def test_exactly_the_predicted_number_of_whole_jobs_fits(counts, epsilon):
    tally = Tally(Budget("loans", "record", epsilon, 1e-5, 16))
    events = [GaussianRecordEvent(0.2, 1.0 + i, steps) for i, steps in enumerate(counts)]
    number = tally.times_that_fit(events)
    for _ in range(number):
        for event in events:
            tally = tally.charge(event)
    assert tally.times_that_fit(events) == 0
    assert Tally(tally.budget).times_that_fit([*events, NoDpEvent()]) == 0
