"""The participant between training and evaluation: each update has one purpose."""

import dataclasses

import numpy as np
import pytest

from privacy.errors import Reason
from tests.support.site_simulation import (
    NAMES,
    NOW_S,
    PLAN,
    SimAggregator,
    SimSite,
    updates_of,
)
from tidegate import messages as m
from tidegate.broadcast import Broadcast, ContentName

OTHER = Broadcast(1, checkpoint=ContentName(b"z" * 32, 20))


@pytest.fixture
def evaluated_market():
    """A market whose job has an evaluation, encoded by a plan of its own."""
    aggregator = SimAggregator(NAMES, evaluation=dataclasses.replace(PLAN, bits=PLAN.bits + 1))
    aggregator.connect()
    aggregator.offer()
    return aggregator


def test_training_and_evaluation_take_turns_on_one_version(evaluated_market):
    market = evaluated_market
    for number, purpose in enumerate(("train", "evaluate", "train.adapt", "evaluate"), 1):
        market.round, market.purpose = number, purpose
        assert market.ask_to_train() == NAMES
        updates = updates_of(market)
        kind, total, survivors = market.run_attempt(NAMES)
        assert (kind, survivors) == ("published", NAMES)
        bits = PLAN.bits + purpose.startswith("evaluate")
        whole = sum(updates[name] for name in NAMES).astype(np.uint32)
        assert np.array_equal(total, whole & np.uint32(2**bits - 1))
    assert all(site.trained == 4 for site in market.sites.values())


def test_an_update_of_training_is_not_spent_on_an_evaluation(evaluated_market):
    market = evaluated_market
    market.ask_to_train()
    site = market.sites["bank-a"]
    site.hold_training = True
    market.round, market.purpose = 2, "evaluate"
    site.feed(market.train_request())
    site.feed(market.roster(NAMES))
    assert site.take(m.DealtShares) == []
    assert site.take(m.AttemptFailed)[0].reason == Reason.REPLAY


def test_the_training_plan_is_not_taken_for_an_evaluation(evaluated_market):
    market = evaluated_market
    market.purpose = "evaluate"
    market.ask_to_train()
    site = market.sites["bank-a"]
    roster = market.roster(NAMES)
    plan = dataclasses.replace(roster.plan, encoding=PLAN.to_bytes(), ring_bits=PLAN.bits)
    site.feed(dataclasses.replace(roster, plan=plan))
    assert site.take(m.DealtShares) == []
    assert len(site.take(m.AttemptFailed)) == 1


def test_an_evaluation_that_the_job_does_not_declare_is_refused(market):
    site = market.sites["bank-a"]
    site.feed(market.train_request(purpose="evaluate"))
    assert site.take(m.NotReady)[0].reason == Reason.POLICY
    assert site.trained == 0


@pytest.mark.parametrize(
    "change",
    [{"purpose": "train.other"}, {"config": b"x"}, {"broadcast": OTHER, "chain_head": b""}],
)
def test_two_requests_for_one_round_are_equivocation(market, change):
    market.ask_to_train()
    site = market.sites["bank-a"]
    site.feed(market.train_request(**change))
    assert site.take(m.NotReady)[0].reason == Reason.EQUIVOCATION
    assert site.trained == 1


def test_a_later_round_with_an_older_version_is_a_replay(market):
    market.version, market.round = 3, 4
    market.ask_to_train()
    site = market.sites["bank-a"]
    market.version, market.round = 2, 5
    site.feed(market.train_request())
    assert site.take(m.NotReady)[0].reason == Reason.REPLAY


def test_a_further_round_on_the_same_version_needs_an_update_of_its_own(market):
    market.ask_to_train()
    site = market.sites["bank-a"]
    market.round = 2
    site.feed(market.train_request())
    assert site.take(m.Ready)[0].round == 2
    assert site.trained == 2


def test_an_evaluations_attempt_survives_a_crash(evaluated_market):
    market = evaluated_market
    market.purpose = "evaluate"
    market.ask_to_train()
    site = market.sites["bank-a"]
    roster = market.roster(NAMES)
    site.feed(roster)
    first = site.take(m.DealtShares)[0]
    ctx = roster.context.digest()
    begun, arrived = site.begun[ctx], site.with_secrets(roster)
    again = SimSite("bank-a", market.manifest, None, PLAN, market.evaluation)
    again.participant.restore_job(again.accepted("job-1"))
    names = ("job-1", begun.key.round, begun.attempt)
    held = (arrived.own_bundle, arrived.secrets)
    exchange = again.participant.exchange
    assert exchange.restore(names, begun.facts, held, site.slots[ctx], NOW_S)
    again.participant.exchange.online = True
    again.feed(roster)
    assert again.take(m.DealtShares)[0] == first


def test_no_more_exchanges_than_the_jobs_epsilon_is_counted_for(market):
    """The aggregator cannot go on under a job's name: max_epsilon_per_job was held against it."""
    site = market.sites["bank-a"]
    state = site.participant._jobs["job-1"]
    state.job = dataclasses.replace(state.job, exchanges=3)
    market.round = 4
    assert "bank-a" not in market.ask_to_train()
    assert site.take(m.NotReady)[0].reason == Reason.POLICY
    assert (site.trained, site.charges) == (0, [])
    market.round = 3
    assert "bank-a" in market.ask_to_train()
