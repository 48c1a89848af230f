"""What a site does when the aggregator plays with the groups of a round.

A group is an attempt like any other, and to a site the only one: these are the rules of attempts,
held against an aggregator that puts one site into two groups, or makes groups too small.
"""

import pytest

from privacy.errors import Reason
from privacy.pipeline import Mode
from privacy.secagg.keys import P256
from privacy.secagg.messages import ShareDelivery
from privacy.secagg.server import ServerAttempt, ServerConfig
from tests.support.encoding_plans import make_plan
from tests.support.site_simulation import SimAggregator, open_policy, updates_of
from tidegate import messages as m

NAMES = [f"bank-{letter}" for letter in "abcdefghi"]
FIRST, SECOND = NAMES[:5], NAMES[4:]
BOTH = "bank-e"


@pytest.fixture
def market():
    aggregator = SimAggregator(NAMES)
    aggregator.connect()
    aggregator.offer()
    assert aggregator.ask_to_train() == NAMES
    return aggregator


def charges(market):
    return {name: len(site.charges) for name, site in market.sites.items()}


def ready_again(market):
    for site in market.sites.values():
        site.take(m.Ready)


def test_groups_of_one_round_are_attempts_that_share_nothing(market):
    rosters = [market.roster(NAMES[:4]), market.roster(NAMES[5:])]
    assert len({roster.context.digest() for roster in rosters}) == 2
    assert {roster.context.round for roster in rosters} == {1}
    assert [roster.context.attempt for roster in rosters] == [1, 2]
    for name in NAMES[:4]:
        market.sites[name].feed(rosters[0])
    site, ctx = market.sites["bank-a"], rosters[1].context.digest()
    site.take(m.DealtShares)
    # A frame of the second group finds no attempt at a site of the first.
    site.feed(ShareDelivery(ctx, ()))
    site.feed(m.SurvivorSet(ctx, (1, 2, 3, 4), (1, 2, 3, 4)))
    assert not site.sent
    assert set(site.slots) == {rosters[0].context.digest()}


def test_the_roster_of_a_group_that_a_site_is_not_in_is_refused(market):
    roster = market.roster(SECOND)
    outsider = market.sites["bank-a"]
    outsider.feed(roster)
    assert [failed.reason for failed in outsider.take(m.AttemptFailed)] == [Reason.REPLAY]
    assert outsider.slots == {}


def test_a_site_in_two_groups_is_in_one_sum_for_its_one_charge(market):
    """The second roster comes before the charge: it kills the first attempt at that site."""
    updates = updates_of(market)
    first, second = market.roster(FIRST), market.roster(SECOND)
    both = market.sites[BOTH]
    both.feed(first)
    assert both.take(m.DealtShares)
    both.feed(second)
    # The abort of the first is signed and durable before the second begins.
    assert [signed.ctx for signed in both.take(m.AbortSignature)] == [first.context.digest()]
    assert [dealt.ctx for dealt in both.take(m.DealtShares)] == [second.context.digest()]
    # What comes for the first from now on is for no live attempt: no y leaves, nothing is charged.
    for name in FIRST[:4]:
        market.sites[name].feed(first)
    dealt = [market.sites[name].take(m.DealtShares)[0] for name in FIRST[:4]]
    assert len(dealt) == 4
    both.feed(ShareDelivery(first.context.digest(), ()))
    assert both.charges == []
    assert not both.uploads
    assert updates[BOTH] is not None


def test_a_site_that_was_charged_in_one_group_refuses_the_other(market):
    assert market.run_attempt(FIRST)[0] == "published"
    assert charges(market)[BOTH] == 1
    both = market.sites[BOTH]
    both.feed(market.roster(SECOND))
    assert [failed.reason for failed in both.take(m.AttemptFailed)] == [Reason.REPLAY]
    assert charges(market)[BOTH] == 1
    # Asked to train again for the same round it makes another update, and pays for that one.
    assert BOTH in market.ask_to_train([BOTH])
    assert market.run_attempt(SECOND)[0] == "published"
    assert charges(market) == dict.fromkeys(NAMES, 1) | {BOTH: 2}


def test_a_site_taken_out_of_a_charged_group_for_another_pays_twice(market):
    """Step 3 withheld: the first group's sum might be opened by that time, so it was charged."""
    assert market.run_attempt(FIRST, lose=dict.fromkeys(FIRST, "u3"))[0] == "aborted"
    assert charges(market) == dict.fromkeys(FIRST, 1) | dict.fromkeys(NAMES[5:], 0)
    both = market.sites[BOTH]
    both.feed(market.roster(SECOND))
    assert [failed.reason for failed in both.take(m.AttemptFailed)] == [Reason.REPLAY]
    market.ask_to_train([BOTH])
    assert market.run_attempt(SECOND)[0] == "published"
    assert charges(market)[BOTH] == 2


def test_in_record_local_one_charge_ahead_covers_what_was_sent_to_both():
    """What leaves is private by itself and the same both times: no second release."""
    market = SimAggregator(NAMES, plan=make_plan(Mode.RECORD_LOCAL, gradient=5, metrics=0))
    market.connect()
    market.offer()
    market.ask_to_train()
    before = updates_of(market)[BOTH]
    assert market.run_attempt(FIRST)[0] == "published"
    assert market.run_attempt(SECOND)[0] == "published"
    assert (updates_of(market)[BOTH] == before).all()
    assert market.sites[BOTH].charges == []
    assert market.sites[BOTH].trained == 1


def test_attempt_numbers_that_fall_are_refused_so_no_group_comes_back(market):
    first, second = market.roster(FIRST), market.roster(SECOND)
    both = market.sites[BOTH]
    both.feed(second)
    both.take(m.DealtShares)
    both.feed(first)
    assert [failed.reason for failed in both.take(m.AttemptFailed)] == [Reason.REPLAY]


@pytest.mark.parametrize(
    ("policies", "size"),
    [({}, 3), ({"bank-a": open_policy(min_cohort=5)}, 4)],
    ids=["N_min", "own"],
)
def test_a_group_below_a_floor_is_not_joined_and_nobody_is_charged(policies, size):
    market = SimAggregator(NAMES, policies)
    market.connect()
    market.offer()
    market.ask_to_train()
    roster = market.roster(NAMES[:size])
    site = market.sites["bank-a"]
    site.feed(roster)
    (failed,) = site.take(m.AttemptFailed)
    assert failed.reason in (Reason.BELOW_THRESHOLD, Reason.POLICY)
    assert not site.slots.get(roster.context.digest())
    assert charges(market) == dict.fromkeys(NAMES, 0)


def test_survivors_of_two_groups_cannot_be_joined_to_reach_n_min(market):
    """A U3 that names members of another group is none: indices are those of the own roster."""
    first = market.roster(FIRST)
    attempt = ServerAttempt(
        ServerConfig(P256, first.context, first.bundles, first.plan, market.manifest.pinned())
    )
    site = market.sites["bank-a"]
    site.feed(first)
    site.take(m.DealtShares)
    me = attempt.cohort.index_of(site.me)
    for survivors in ((me,), (me, 6, 7, 8), tuple(range(1, 10))):
        site.feed(m.SurvivorSet(first.context.digest(), tuple(range(1, 10)), survivors))
    assert not site.take(m.SurvivorSignature)
    assert site.charges == []
