"""What the participant drops leaves no trace, and sums without noise keep their distance."""

import dataclasses

import pytest

from edge_node import commands as ec
from privacy.errors import PeerError, Reason
from privacy.pipeline import Mode
from privacy.secagg.commands import Step
from tests.support.encoding_plans import make_plan
from tests.support.site_simulation import (
    NAMES,
    NOW_S,
    SimAggregator,
    SimSite,
)
from tidegate import messages as m

PLAIN = make_plan(Mode.NONE, gradient=5, metrics=0)


@pytest.fixture
def plain_market():
    aggregator = SimAggregator(NAMES, plan=PLAIN)
    aggregator.connect()
    aggregator.offer()
    return aggregator


def previous_of(site):
    """Whose sum this site holds the next one against: in memory, and as the store would know."""
    state = site.participant._jobs["job-1"]
    assert state.previous_survivors == site.last_sum
    return site.last_sum


@pytest.mark.parametrize("survivors", [(1, 2, 3), (1, 200), (6,)])
def test_a_survivor_set_that_is_not_due_is_dropped_without_a_trace(plain_market, survivors):
    plain_market.ask_to_train()
    site = plain_market.sites["bank-a"]
    roster = plain_market.roster(NAMES)
    site.feed(roster)
    ctx = roster.context.digest()
    site.feed(m.SurvivorSet(ctx, (1, 2, 3, 4, 5), survivors))
    assert site.participant.exchange._attempts[ctx].survivors == ()
    assert previous_of(site) is None
    assert not site.take(m.SurvivorSignature)


def test_only_a_sum_whose_shares_left_counts_as_the_last_one(plain_market):
    plain_market.ask_to_train()
    for site in plain_market.sites.values():
        site.refuse_step = Step.UNMASK
    assert plain_market.run_attempt(NAMES)[0] == "aborted"
    assert [previous_of(site) for site in plain_market.sites.values()] == [None] * 5

    for site in plain_market.sites.values():
        site.refuse_step = None
    plain_market.ask_to_train()
    assert plain_market.run_attempt(NAMES)[0] == "published"
    everyone = frozenset(plain_market.by_me)
    assert [previous_of(site) for site in plain_market.sites.values()] == [everyone] * 5


def end_and_offer_again(market):
    for site in market.sites.values():
        site.feed(m.JobEnded("job-1", "stopped", ""))
    market.offer()


@pytest.mark.parametrize("forget", [lambda _: None, end_and_offer_again])
def test_without_noise_a_sum_one_site_away_from_the_last_is_refused(plain_market, forget):
    plain_market.ask_to_train()
    assert plain_market.run_attempt(NAMES)[0] == "published"
    forget(plain_market)
    plain_market.version, plain_market.round = 1, 2
    plain_market.ask_to_train()
    outcome = plain_market.run_attempt(NAMES, lose={"bank-c": "upload"})
    assert outcome[0] == "aborted"
    plain_market.ask_to_train()
    assert plain_market.run_attempt(NAMES)[0] == "published"


def test_a_restored_attempt_knows_whose_sum_it_is_about_to_release(plain_market):
    plain_market.ask_to_train()
    site = plain_market.sites["bank-a"]
    kept = {}
    carry_out = site.carry_out

    def watched(command):
        if isinstance(command, ec.EraseAttempt):
            kept.update(slots={s: v for s, v in site.slots[command.ctx].items() if s != 4})
        return carry_out(command)

    site.carry_out = watched
    arrived = []
    with_secrets = site.with_secrets
    site.with_secrets = lambda roster: arrived.append(with_secrets(roster)) or arrived[-1]
    assert plain_market.run_attempt(NAMES)[0] == "published"
    begun = next(iter(site.begun.values()))
    quorum = next(f for _, f in plain_market.delivered if isinstance(f, m.SurvivorQuorum))

    again = SimSite("bank-a", manifest=plain_market.manifest, plan=PLAIN)
    again.slots[begun.ctx] = dict(kept["slots"])
    again.participant.restore_job(ec.AcceptedJob("job-1", PLAIN))
    held = (arrived[0].own_bundle, arrived[0].secrets)
    names = ("job-1", begun.key.round, begun.attempt)
    assert again.participant.exchange.restore(names, begun.facts, held, kept["slots"], NOW_S)
    assert previous_of(again) is None
    again.feed(quorum)
    assert again.take(m.UnmaskShares)
    assert previous_of(again) == frozenset(plain_market.by_me)


def test_a_roster_of_a_used_up_attempt_does_not_kill_the_live_one(market):
    market.ask_to_train()
    site = market.sites["bank-a"]
    first, second = market.roster(NAMES), market.roster(NAMES)
    site.feed(second)
    site.take(m.DealtShares)
    site.feed(first)
    assert site.take(m.AttemptFailed)[0].reason == Reason.REPLAY
    assert not site.take(m.AbortSignature)
    assert second.context.digest() in site.slots


def test_the_secrets_that_were_looked_up_for_a_refused_roster_are_erased(market):
    market.ask_to_train()
    site = market.sites["bank-a"]
    roster = market.roster(NAMES)
    context = dataclasses.replace(roster.context, round=9)
    arrived = site.with_secrets(dataclasses.replace(roster, context=context))
    commands = site.participant.handle(arrived, NOW_S)
    assert ec.EraseAttempt(context.digest()) in commands


def test_a_welcome_with_a_bad_manifest_does_not_make_the_site_speak(market):
    market.ask_to_train()
    site = market.sites["bank-a"]
    site.feed(ec.Disconnected())
    with pytest.raises(PeerError):
        site.feed(m.Welcome(m.PROTOCOL, market.raw, b"s" * 70))
    assert not site.participant.exchange.online


def test_an_app_that_fails_later_than_the_round_is_not_missing_without_a_word(market):
    """A slow failure is told for its own round, and the wanted version is trained after it."""
    market.ask_to_train()
    participant = market.sites["bank-a"].participant
    state = participant._jobs["job-1"]
    wanted = state.wanted_key
    late = dataclasses.replace(wanted, round=wanted.round - 1, version=wanted.version - 1)
    state.update, state.training, spent = None, late, 0.5

    def fail(reason):
        state.training = late
        event = ec.TrainFailed("job-1", late, reason, "it hung", spent)
        return participant.handle(event, NOW_S)

    commands = fail(Reason.TRAINER_FAILED)
    told = [c.message for c in commands if isinstance(c, ec.SendMessage)]
    assert told == [m.NotReady("job-1", late.round, Reason.TRAINER_FAILED, "it hung", spent)]
    assert any(isinstance(command, ec.Train) for command in commands)
    # That an old version is gone comes of being late: to say so would have the job offered anew.
    commands = fail(Reason.UNKNOWN_JOB)
    assert not any(isinstance(command, ec.SendMessage) for command in commands)
    assert any(isinstance(command, ec.Train) for command in commands)
