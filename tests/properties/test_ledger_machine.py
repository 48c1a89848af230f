"""Whatever jobs charge, in whatever order, no budget is ever spent beyond its epsilon at its order.

A state machine over random events, units and budgets. Its own sum is kept in exact fractions, from
the prices alone, so that the tally's integers are held against something else than themselves.
"""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from privacy.accounting.accountant import rdp_to_epsilon, sampler_tv, step_rdp
from privacy.accounting.budget import Budget
from privacy.accounting.chain import TIER_ENFORCED, TIER_NONE, Anchor, Occasion
from privacy.accounting.events import GaussianRecordEvent, NoDpEvent, SkellamRecordEvent
from privacy.accounting.ledger import LedgerState, replay
from privacy.errors import PeerError, Reason

RATES = st.sampled_from([0.001, 0.01, 0.1, 0.5, 1.0])
MULTIPLIERS = st.floats(0.5, 30.0)
UNITS = st.sampled_from(["record", "user"])


@st.composite
def skellam_events(draw):
    unit = draw(st.sampled_from(["record", "user", "site"]))
    q = 1.0 if unit == "site" else draw(RATES)
    d, D2 = draw(st.sampled_from([1, 100, 10**6])), draw(st.sampled_from([50.0, 4134.0]))
    V = (draw(MULTIPLIERS) * D2) ** 2
    D1 = max(D2, min(math.sqrt(d) * D2, D2 * D2))
    return SkellamRecordEvent(q, V, D1, D2, d, 5, draw(st.integers(1, 30)), unit=unit)


@st.composite
def gaussian_events(draw):
    steps = draw(st.integers(1, 30))
    z, unit = draw(MULTIPLIERS), draw(UNITS)
    return GaussianRecordEvent(draw(RATES), z, steps, d=1000, sampler_tv=2.0**-96, unit=unit)


EVENTS = st.one_of(skellam_events(), gaussian_events(), st.builds(NoDpEvent, st.integers(1, 3)))


@st.composite
def budgets(draw):
    record = Budget(
        "loans", "record", draw(st.floats(1.0, 12.0)), 1e-6, draw(st.sampled_from([16, 32, 64])),
        allow_no_dp=draw(st.booleans()),
    )  # fmt: skip
    user = Budget(
        "loans", "user", draw(st.floats(2.0, 20.0)), 1e-5, draw(st.sampled_from([12, 40])),
        max_rows_per_user=draw(st.integers(1, 4)), allow_no_dp=record.allow_no_dp,
    )  # fmt: skip
    return draw(st.sampled_from([(record,), (user,), (record, user)]))


def price(event, budget):
    """Give what an event costs a budget, divergence and total variation, as exact fractions."""
    if isinstance(event, NoDpEvent):
        return Fraction(0), Fraction(0)
    rows = budget.max_rows_per_user or 1
    one = float(step_rdp(event, (budget.alpha,), budget.unit, rows)[0])
    if math.isinf(one):
        return Fraction(2) ** 64, Fraction(0)
    return event.steps * Fraction(one), Fraction(sampler_tv(event))


def epsilon_of(rdp, tv, budget):
    return float(
        rdp_to_epsilon(np.array([float(rdp)]), (budget.alpha,), budget.delta_dp, float(tv))[0]
    )


def entry_of(state, event, number):
    tier = TIER_NONE if isinstance(event, NoDpEvent) else TIER_ENFORCED
    occasion = Occasion(f"job-{number % 3}", number, 1, f"{number:064x}", tier)
    return state.next_entry(event, occasion, float(number))


class LedgerMachine(RuleBasedStateMachine):
    """Jobs charge a ledger as they like."""

    @initialize(budgets=budgets())
    def open(self, budgets):
        self.budgets = budgets
        self.genesis = self.state = LedgerState.open("bank-a", budgets)
        self.accepted = []

    @rule(event=EVENTS)
    def charge(self, event):
        before = self.state
        entry = entry_of(before, event, len(self.accepted))
        if all(tally.allows(event) for tally in before.tallies):
            self.state = before.charge(entry)
            self.accepted.append(entry)
            return
        tallies = before.tallies
        with pytest.raises(PeerError, match=r"would reach epsilon|infinite|use up") as refusal:
            before.charge(entry)
        assert refusal.value.reason is Reason.BUDGET_EXHAUSTED
        assert "left" in str(refusal.value.args[0])
        assert before.tallies == tallies, "a refused charge changes nothing"

    @rule(event=EVENTS)
    def ask(self, event):
        for tally in self.state.tallies:
            if not isinstance(event, NoDpEvent):
                steps = tally.steps_that_fit(event)
                one = tally.times_that_fit((event,))
                assert one == steps // event.steps

    @invariant()
    def no_budget_is_overdrawn(self):
        for tally in self.state.tallies:
            budget = tally.budget
            prices = [price(entry.event, budget) for entry in self.accepted]
            rdp, tv = (sum((p[i] for p in prices), Fraction(0)) for i in (0, 1))
            # What is counted is never less than the exact sum, and by no more than the rounding.
            counted = Fraction(tally.rdp_units, 2**64)
            steps = sum(entry.event.steps for entry in self.accepted)
            assert rdp <= counted <= rdp + Fraction(steps, 2**64)
            if rdp or tv:
                assert epsilon_of(rdp, tv, budget) <= budget.epsilon * (1 + 1e-12)
            if not tally.no_dp_steps:
                assert tally.spent_epsilon <= budget.epsilon
            else:
                assert budget.allow_no_dp
                assert tally.spent_epsilon == math.inf

    @invariant()
    def a_restart_gives_the_same(self):
        anchor = Anchor(self.state.sequence, self.state.head)
        assert replay(self.genesis, self.accepted, anchor) == self.state


LedgerMachine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestLedger = LedgerMachine.TestCase


@given(events=st.lists(EVENTS, min_size=2, max_size=4), budgets=budgets())
@settings(max_examples=40, deadline=None)
def test_the_order_of_charges_does_not_matter(events, budgets):
    ends = set()
    for order in itertools.permutations(events):
        tallies = tuple(tally for tally in LedgerState.open("bank-a", budgets).tallies)
        for event in order:
            tallies = tuple(tally.after(event) for tally in tallies)
        ends.add(tuple((t.rdp_units, t.tv_units, t.no_dp_steps) for t in tallies))
    assert len(ends) == 1


@pytest.mark.parametrize("rows", [1, 3])
def test_a_record_event_costs_every_budget_of_the_data_set(rows):
    record = Budget("loans", "record", 3.0, 1e-6, 32)
    user = Budget("loans", "user", 9.0, 1e-6, 32, max_rows_per_user=rows)
    event = SkellamRecordEvent(0.01, (8 * 50.0) ** 2, 500.0, 50.0, 100, 5)
    state = LedgerState.open("bank-a", (record, user))
    after = state.charge(entry_of(state, event, 0))
    paid = {tally.budget.unit: tally.rdp_units for tally in after.tallies}
    assert 0 < paid["record"] <= paid["user"]
    assert (paid["record"] == paid["user"]) is (rows == 1)
