"""A charged update goes again without a charge under a proof, once, and under nothing else."""

from dataclasses import replace

import numpy as np
import pytest

from edge_node import commands as ec
from privacy.pipeline import Mode
from privacy.secagg.messages import AbortRequest, RetryProof
from tests.support.encoding_plans import make_plan
from tests.support.site_simulation import NAMES, NOW_S, SimAggregator, SimSite
from tidegate import messages as m


@pytest.fixture
def market():
    aggregator = SimAggregator(NAMES)
    aggregator.connect()
    aggregator.offer()
    assert aggregator.ask_to_train() == NAMES
    return aggregator


def abort(market, lose=None, names=NAMES):
    """Run an attempt that ends without a sum after everybody was charged."""
    outcome = market.run_attempt(names, lose=lose or {"bank-d": "upload", "bank-e": "upload"})
    assert outcome[0] == "aborted"
    return market.failed[-1]


def charges(market):
    return {name: len(site.charges) for name, site in market.sites.items()}


def trained(market):
    return {name: site.trained for name, site in market.sites.items()}


ONCE, TWICE = dict.fromkeys(NAMES, 1), dict.fromkeys(NAMES, 2)


def test_a_freed_update_is_announced_untrained_and_sent_uncharged(market):
    abort(market)
    held = {name: site.held["job-1"][1].copy() for name, site in market.sites.items()}
    market.free(NAMES)
    assert market.ask_to_train() == NAMES
    assert trained(market) == ONCE
    status, sum_d, names = market.run_attempt(NAMES)
    assert (status, names) == ("published", NAMES)
    expected_d = np.mod(sum(held.values()), 1 << market.plan.bits)
    np.testing.assert_array_equal(sum_d, expected_d)
    assert charges(market) == ONCE
    first = market.failed[0].cohort.ctx
    assert all(list(site.served.values()) == [first] for site in market.sites.values())
    assert not any(site.held for site in market.sites.values())


def test_without_a_proof_the_update_is_made_and_charged_anew(market):
    abort(market)
    assert market.ask_to_train() == NAMES
    assert trained(market) == TWICE
    assert market.run_attempt(NAMES)[0] == "published"
    assert charges(market) == TWICE


def test_a_proof_after_the_next_training_is_of_no_use(market):
    failed = abort(market)
    proof = market.proof_of(failed, "bank-a")
    market.ask_to_train()
    site = market.sites["bank-a"]
    site.feed(proof)
    assert market.run_attempt(NAMES)[0] == "published"
    assert charges(market) == TWICE
    assert not site.served


def test_a_chain_of_retries_needs_a_proof_each(market):
    for _ in range(3):
        abort(market)
        market.free(NAMES)
        market.ask_to_train()
    assert market.run_attempt(NAMES)[0] == "published"
    assert charges(market) == trained(market) == ONCE
    serves = [failed.cohort.ctx for failed in market.failed]
    assert list(market.sites["bank-a"].served.values()) == serves


def test_the_proof_of_an_older_attempt_frees_nothing(market):
    """Replayed after the update went out again: that sending is not the one it speaks of."""
    first = abort(market)
    old = market.proof_of(first, "bank-a")
    market.free(NAMES)
    market.ask_to_train()
    abort(market)
    site = market.sites["bank-a"]
    site.feed(old)
    assert "job-1" not in site.ready
    assert "bank-a" in market.ask_to_train()
    assert site.trained == 2


def test_votes_of_two_attempts_do_not_mix(market):
    first = abort(market)
    old = market.proof_of(first, "bank-a")
    market.free(NAMES)
    market.ask_to_train()
    second = abort(market)
    new = market.proof_of(second, "bank-a")
    mixed = RetryProof(new.ctx, (*new.votes[:2], old.votes[2]))
    assert mixed.votes[2].signer not in {vote.signer for vote in new.votes[:2]}
    site = market.sites["bank-a"]
    site.feed(mixed)
    assert "bad-signature" in site.notes[-1].facts["why"]
    assert "job-1" not in site.ready
    site.feed(new)
    assert "job-1" in site.ready, "a bad proof spoils nothing"


def test_a_proof_twice_is_one_permit(market):
    failed = abort(market)
    proof = market.proof_of(failed, "bank-a")
    market.free(NAMES)
    site = market.sites["bank-a"]
    site.feed(proof)
    assert market.ask_to_train() == NAMES
    abort(market)
    site.feed(proof)
    site.feed(proof)
    assert "job-1" not in site.ready
    assert len(site.served) == 1


@pytest.mark.parametrize("votes", [0, 1, 2])
def test_too_few_votes_free_nothing(market, votes):
    failed = abort(market)
    proof = market.proof_of(failed, "bank-a")
    site = market.sites["bank-a"]
    site.feed(replace(proof, votes=proof.votes[:votes]))
    assert "job-1" not in site.ready


def test_a_proof_while_the_attempt_lives_frees_nothing(market):
    """The aggregator has A votes of others and has not told this site that the attempt is over."""
    site = market.sites["bank-a"]
    deliver, feed = [], site.feed

    def deaf(event):
        if not isinstance(event, AbortRequest):
            feed(event)
            return
        deliver.append(event)

    site.feed = deaf
    failed = abort(market)
    proof = market.proof_of(failed, "bank-a")
    site.feed = feed
    site.feed(proof)
    assert "job-1" not in site.ready
    site.feed(deliver[0])
    assert site.take(m.AbortSignature), "it dies first, durably"
    site.feed(proof)
    assert "job-1" in site.ready


def test_one_update_is_never_in_two_live_attempts(market):
    abort(market)
    market.free(NAMES)
    market.ask_to_train()
    first, second = market.roster(NAMES), market.roster(NAMES)
    site = market.sites["bank-a"]
    site.feed(first)
    assert site.take(m.DealtShares)
    site.feed(second)
    assert site.take(m.AbortSignature), "the first is dead before the second begins"
    assert site.take(m.DealtShares)
    assert set(site.slots) >= {second.context.digest()}
    assert len(site.charges) == 1


def test_a_retry_that_died_before_its_charge_keeps_the_proof(market):
    abort(market)
    market.free(NAMES)
    market.ask_to_train()
    lost = {"bank-d": "shares", "bank-e": "shares"}
    assert market.run_attempt(NAMES, lose=lost)[0] == "aborted"
    assert market.ask_to_train() == NAMES
    assert market.run_attempt(NAMES)[0] == "published"
    assert charges(market) == trained(market) == ONCE


def test_a_newer_round_forgets_the_update(market):
    abort(market)
    market.free(NAMES)
    market.version, market.round = 1, 2
    assert market.ask_to_train() == NAMES
    assert trained(market) == TWICE
    assert not any(site.held for site in market.sites.values())


def test_a_held_update_is_forgotten_in_time_and_a_freed_one_is_not(market):
    failed = abort(market)
    free, late = market.sites["bank-a"], market.sites["bank-b"]
    proof = market.proof_of(failed, "bank-b")
    free.feed(market.proof_of(failed, "bank-a"))
    for site in (free, late):
        site.now_s += 601.0
        site.feed(ec.TimePassed())
    late.feed(proof)
    assert "job-1" not in late.ready
    assert not late.held
    assert "job-1" in free.ready


def test_the_end_of_a_job_forgets_the_update(market):
    abort(market)
    site = market.sites["bank-a"]
    site.feed(m.JobEnded("job-1", "stopped", ""))
    assert not site.held


def test_a_released_update_is_not_held(market):
    """Three answers of T = 4: the attempt fails, but these three let shares and seeds out."""
    assert market.run_attempt(NAMES, lose={"bank-d": "unmask", "bank-e": "unmask"})[0] == "aborted"
    assert not any(site.held for site in market.sites.values())
    assert market.ask_to_train() == NAMES
    assert trained(market) == TWICE


def test_updates_that_are_private_by_themselves_are_not_held():
    plan = make_plan(Mode.RECORD_LOCAL, gradient=5, metrics=0)
    local = SimAggregator(NAMES, plan=plan)
    local.connect()
    local.offer()
    local.ask_to_train()
    local.run_attempt(NAMES, lose={"bank-d": "upload", "bank-e": "upload"})
    assert not any(site.held for site in local.sites.values())


# --- after a restart ------------------------------------------------------------------------------


def restarted(market, name="bank-a"):
    """Give a site that knows only what is durable of an aborted attempt."""
    failed = abort(market)
    proof = market.proof_of(failed, name)
    old = market.sites[name]
    ctx = failed.cohort.ctx
    begun, (_, update) = old.begun[ctx], old.held["job-1"]
    again = SimSite(name, manifest=market.manifest)
    again.stock, again.last_accepted = old.stock, old.last_accepted
    again.participant.restore_job(again.accepted("job-1"))
    stored = old.slots_of_dead[ctx]
    names = ("job-1", begun.key.round, begun.attempt)
    assert again.participant.exchange.restore_held(names, begun.facts, stored, NOW_S)
    again.held["job-1"] = (ctx, update)
    market.sites[name] = market.by_me[again.me] = again
    again.feed(ec.Connected())
    again.feed(market.welcome())
    again.sent.clear()
    return again, proof


def test_a_restart_keeps_what_was_held(market):
    site, proof = restarted(market)
    market.free(NAMES[1:])
    site.feed(proof)
    assert market.ask_to_train() == NAMES
    assert market.run_attempt(NAMES)[0] == "published"
    assert site.trained == 0
    assert (len(site.charges), len(site.served)) == (0, 1)


def test_a_held_update_is_not_sent_for_another_model_of_its_version(market):
    """A restart forgets the version chain: another head is then taken as given."""
    market.version, market.round = 1, 2
    market.ask_to_train()
    site, proof = restarted(market)
    site.feed(proof)
    other = replace(market.train_request(), chain_head=b"o" * 32)
    site.feed(other)
    assert site.take(m.Ready)
    assert site.trained == 1
    assert not site.held
