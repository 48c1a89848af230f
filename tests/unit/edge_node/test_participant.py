"""The participant in virtual time: whole jobs, drop-outs, retries, and a lying aggregator."""

import dataclasses

import numpy as np
import pytest

from edge_node import commands as ec
from edge_node.attempt_terms import SiteIdentity
from edge_node.participant import Participant
from privacy.errors import PeerError, Reason
from privacy.pipeline import Mode
from privacy.secagg.commands import Step
from tests.support.encoding_plans import make_plan
from tests.support.site_simulation import (
    NAMES,
    NOW_S,
    OPERATOR,
    PLAN,
    SimAggregator,
    SimSite,
    make_manifest,
    node_fingerprint,
    open_policy,
    updates_of,
)
from tidegate import messages as m
from tidegate.broadcast import Broadcast, ContentName


def expected_sum(market, names, updates):
    return sum(updates[name] for name in names).astype(np.uint32) & np.uint32(2**PLAN.bits - 1)


def test_three_rounds_sum_exactly_and_charge_each_site_once_a_round(market):
    for version in range(3):
        market.version, market.round = version, version + 1
        assert market.ask_to_train() == NAMES
        updates = updates_of(market)
        kind, total, survivors = market.run_attempt(NAMES)
        assert (kind, survivors) == ("published", NAMES)
        assert np.array_equal(total, expected_sum(market, NAMES, updates))
    for site in market.sites.values():
        assert len(site.charges) == 3
        assert site.trained == 3
        assert not site.slots, "everything of a published attempt is erased"


@pytest.mark.parametrize("step", ["shares", "upload", "u3", "unmask"])
def test_a_silent_site_at_each_step_does_not_stop_the_others(market, step):
    market.ask_to_train()
    updates = updates_of(market)
    kind, total, survivors = market.run_attempt(NAMES, lose={"bank-c": step})
    others = [n for n in NAMES if n != "bank-c"]
    assert kind == "published"
    assert survivors == (NAMES if step in ("u3", "unmask") else others)
    assert np.array_equal(total, expected_sum(market, survivors, updates))


def test_an_abort_before_the_charge_keeps_the_update_and_says_ready_again(market):
    market.ask_to_train()
    before = updates_of(market)
    lose = {"bank-a": "shares", "bank-b": "shares"}
    kind, *_ = market.run_attempt(NAMES, lose=lose)
    assert kind == "aborted"
    site = market.sites["bank-d"]
    assert site.charges == []
    assert np.array_equal(site.ready["job-1"][1], before["bank-d"])
    assert site.trained == 1
    assert getattr(site, "early_ready", False) or site.take(m.Ready)
    # The next train request for the same version finds it ready at once.
    market.ask_to_train(["bank-d"])
    assert site.trained == 1


def test_an_abort_after_the_charge_makes_the_site_train_anew_and_charge_again(market):
    market.ask_to_train()
    lose = {"bank-a": "upload", "bank-b": "upload"}
    kind, *_ = market.run_attempt(NAMES, lose=lose)
    assert kind == "aborted"
    site = market.sites["bank-d"]
    assert len(site.charges) == 1
    assert not site.ready, "a charged update is dead"
    assert site.take(m.Ready) == []
    assert "bank-d" in market.ask_to_train()
    assert site.trained == 2
    kind, _, survivors = market.run_attempt(NAMES)
    assert (kind, survivors) == ("published", NAMES)
    assert len(site.charges) == 2


def test_an_update_of_local_steps_outlives_its_attempts_and_is_not_charged_at_step_two():
    """It was charged before it was made, and is private: the same one is offered again."""
    market = SimAggregator(NAMES, plan=make_plan(Mode.RECORD_LOCAL, gradient=5, metrics=0))
    market.connect()
    market.offer()
    market.ask_to_train()
    before = updates_of(market)
    kind, *_ = market.run_attempt(NAMES, lose={"bank-a": "upload", "bank-b": "upload"})
    assert kind == "aborted"
    site = market.sites["bank-d"]
    aborted = [note for note in site.notes if note.event == "attempt aborted"]
    assert aborted[-1].facts["charged"], "step 2 was durable: the update could have left"
    assert site.charges == []
    assert getattr(site, "early_ready", False) or site.take(m.Ready), "offered again at once"
    assert "bank-d" in market.ask_to_train()
    assert site.trained == 1
    kind, total, survivors = market.run_attempt(NAMES)
    assert (kind, survivors) == ("published", NAMES)
    assert np.array_equal(total, expected_sum(market, NAMES, before))
    assert site.charges == []
    # The next round is another update.
    market.version, market.round = 1, 2
    market.ask_to_train()
    assert site.trained == 2
    assert not np.array_equal(site.ready["job-1"][1], before["bank-d"])


def test_a_refused_charge_leaves_the_attempt_and_nothing_leaves_the_site(market):
    market.ask_to_train()
    site = market.sites["bank-b"]
    site.refuse_step = Step.MASKED_UPDATE
    kind, _, survivors = market.run_attempt(NAMES)
    assert kind == "published"
    assert "bank-b" not in survivors
    assert site.charges == []
    assert site.uploads == {}


def test_accepting_a_newer_attempt_kills_the_older_one_first(market):
    market.ask_to_train()
    site = market.sites["bank-a"]
    first, second = market.roster(NAMES), market.roster(NAMES)
    site.feed(first)
    assert len(site.take(m.DealtShares)) == 1
    site.feed(second)
    kinds = [type(message) for message in site.sent]
    assert kinds.index(m.AbortSignature) < kinds.index(m.DealtShares)
    assert site.take(m.AbortSignature)[0].ctx == first.context.digest()
    assert site.take(m.DealtShares)[0].ctx == second.context.digest()


def test_the_same_roster_again_gives_the_same_shares(market):
    market.ask_to_train()
    site = market.sites["bank-a"]
    roster = market.roster(NAMES)
    site.feed(roster)
    site.feed(roster)
    first, second = site.take(m.DealtShares)
    assert first == second


def test_a_roster_without_a_ready_update_is_answered_and_not_joined(market):
    site = market.sites["bank-a"]
    site.feed(market.roster(NAMES))
    assert site.take(m.AttemptFailed)[0].reason == Reason.UNKNOWN_JOB
    assert site.slots == {}


def test_a_roster_with_another_serial_of_ours_is_refused(market):
    market.ask_to_train()
    site = market.sites["bank-a"]
    site.stock.clear()
    site.feed(market.roster(NAMES))
    assert site.take(m.AttemptFailed)[0].reason == Reason.REPLAY


@pytest.mark.parametrize("field", ["manifest_hash", "round", "roster_epoch", "consortium_id"])
def test_a_roster_under_another_context_is_refused(market, field):
    market.ask_to_train()
    site = market.sites["bank-a"]
    roster = market.roster(NAMES)
    wrong = {"manifest_hash": b"x" * 32, "round": 9, "roster_epoch": 2, "consortium_id": "other"}
    context = dataclasses.replace(roster.context, **{field: wrong[field]})
    site.feed(dataclasses.replace(roster, context=context))
    assert site.take(m.AttemptFailed)[0].reason == Reason.WRONG_CONTEXT
    assert site.take(m.DealtShares) == []


@pytest.mark.parametrize(
    "change",
    [
        {"encoding": b"other"},
        {"ring_bits": PLAN.bits - 1},
        {"chain_head": b"h" * 32},
        {"min_survivors": 3},
    ],
)
def test_a_plan_that_differs_from_the_sites_own_derivation_is_refused(market, change):
    market.ask_to_train()
    site = market.sites["bank-a"]
    roster = market.roster(NAMES)
    site.feed(dataclasses.replace(roster, plan=dataclasses.replace(roster.plan, **change)))
    assert site.take(m.DealtShares) == []
    assert len(site.take(m.AttemptFailed)) == 1
    assert site.charges == []


def test_a_cohort_below_the_sites_own_floor_is_not_joined():
    aggregator = SimAggregator(NAMES, policies={"bank-a": open_policy(min_cohort=5)})
    aggregator.connect()
    aggregator.offer()
    aggregator.ask_to_train()
    site = aggregator.sites["bank-a"]
    site.feed(aggregator.roster(NAMES[:4]))
    assert site.take(m.DealtShares) == []
    assert len(site.take(m.AttemptFailed)) == 1


# --- the version chain ---------------------------------------------------------------------------


def test_two_models_for_one_version_are_equivocation(market):
    market.ask_to_train()
    site = market.sites["bank-a"]
    other = Broadcast(0, checkpoint=ContentName(b"z" * 32, 20))
    site.feed(market.train_request(broadcast=other))
    assert site.take(m.NotReady)[0].reason == Reason.EQUIVOCATION
    assert site.trained == 1


def test_a_version_that_does_not_continue_the_chain_is_refused(market):
    market.ask_to_train()
    market.version, market.round = 1, 2
    site = market.sites["bank-a"]
    site.feed(market.train_request(chain_head=b"z" * 32))
    assert site.take(m.NotReady)[0].reason == Reason.EQUIVOCATION


@pytest.mark.parametrize(("version", "number"), [(0, 1), (0, 2), (1, 2)])
def test_what_a_version_announces_is_in_its_chain(market, version, number):
    market.ask_to_train()
    market.version = version
    site = market.sites["bank-a"]
    other = ContentName.of(b"another basis")
    told = dataclasses.replace(market.broadcast(version), announcement=other)
    site.feed(market.train_request(round=number, broadcast=told, announcement=b"another basis"))
    assert site.take(m.NotReady)[0].reason == Reason.EQUIVOCATION
    assert site.trained == 1


def test_a_first_version_must_start_the_jobs_own_chain(market):
    site = market.sites["bank-a"]
    site.feed(market.train_request(chain_head=b"z" * 32))
    assert site.take(m.NotReady)[0].reason == Reason.EQUIVOCATION


def test_a_late_joiner_takes_the_head_as_given(market):
    market.version, market.round = 7, 8
    site = market.sites["bank-a"]
    site.feed(market.train_request())
    assert site.take(m.Ready)[0].version == 7


def test_an_older_round_is_a_replay(market):
    market.version, market.round = 3, 4
    market.ask_to_train(["bank-a"])
    market.version, market.round = 2, 3
    site = market.sites["bank-a"]
    site.feed(market.train_request())
    assert site.take(m.NotReady)[0].reason == Reason.REPLAY


# --- training ------------------------------------------------------------------------------------


def test_an_exhausted_budget_is_said_before_ready(market):
    site = market.sites["bank-a"]
    site.train_error = (Reason.BUDGET_EXHAUSTED, "epsilon is used up")
    site.feed(market.train_request())
    answer = site.take(m.NotReady)[0]
    assert (answer.reason, answer.epsilon_spent) == (Reason.BUDGET_EXHAUSTED, 0.5)
    assert site.take(m.Ready) == []


def test_a_result_for_an_older_version_is_dropped_and_the_newer_one_trained(market):
    site = market.sites["bank-a"]
    site.hold_training = True
    site.feed(market.train_request())
    old = site.held_training
    market.version, market.round = 1, 2
    site.feed(market.train_request())
    site.hold_training = False
    site.feed(site.finish_training(old))
    assert [ready.version for ready in site.take(m.Ready)] == [1]


def test_an_unknown_job_is_answered(market):
    site = market.sites["bank-a"]
    site.feed(market.train_request(job_id="job-9"))
    assert site.take(m.NotReady)[0].reason == Reason.UNKNOWN_JOB


def test_times_by_kind_come_with_ready(market):
    site = market.sites["bank-a"]
    site.hold_training = True
    site.feed(market.train_request())
    site.now_s += 2.0
    site.feed(site.finish_training(site.held_training))
    ready = site.take(m.Ready)[0]
    assert (ready.train_s, ready.exchange_s, ready.wait_s) == (2.0, 0.0, 0.0)


# --- sessions and manifests ----------------------------------------------------------------------


def test_the_first_manifest_is_pinned_and_another_one_closes_the_session(market):
    site = market.sites["bank-a"]
    assert site.pinned == market.raw
    _, (raw, signature) = make_manifest(NAMES, min_survivors=5)
    with pytest.raises(PeerError) as caught:
        site.feed(m.Welcome(m.PROTOCOL, raw, signature))
    assert caught.value.reason is Reason.EQUIVOCATION


def test_a_manifest_not_signed_by_the_operator_is_refused():
    site = SimSite("bank-a")
    _, (raw, signature) = make_manifest(NAMES)
    forged = signature[:-1] + bytes([signature[-1] ^ 1])
    with pytest.raises(PeerError) as caught:
        site.feed(m.Welcome(m.PROTOCOL, raw, forged))
    assert caught.value.reason in (Reason.BAD_SIGNATURE, Reason.MALFORMED)
    assert site.pinned is None


def test_a_manifest_with_other_keys_for_this_site_is_refused():
    _, (raw, signature) = make_manifest(NAMES)
    true = SimSite("bank-a")
    identity = SiteIdentity(
        "bank-a", true.me, node_fingerprint("bank-b").hex(), OPERATOR.spki(), b"i" * 16, "cpu"
    )
    participant = Participant(identity, open_policy(), None)
    with pytest.raises(PeerError) as caught:
        participant.handle(m.Welcome(m.PROTOCOL, raw, signature), NOW_S)
    assert caught.value.reason is Reason.EQUIVOCATION


def test_before_sealing_a_site_waits_and_refuses_offers():
    site = SimSite("bank-a")
    site.feed(m.Welcome(m.PROTOCOL, b"", b""))
    site.feed(m.JobOffer("job-1", b"job", b"a" * 32, 10, b"spec", b"plan"))
    assert not site.take(m.JobReply)[0].accepted


def test_another_protocol_closes_the_session():
    site = SimSite("bank-a")
    with pytest.raises(PeerError):
        site.feed(m.Welcome("tidegate/9.0", b"", b""))


def test_a_reconnect_repeats_what_the_last_slot_determines(market):
    market.ask_to_train()
    site = market.sites["bank-a"]
    site.feed(market.roster(NAMES))
    first = site.take(m.DealtShares)[0]
    site.feed(ec.Disconnected())
    site.feed(ec.Connected())
    hello = site.take(m.Hello)[0]
    assert hello.jobs == ("job-1",)
    site.feed(market.welcome())
    assert site.take(m.DealtShares) == [first]


def test_an_attempt_survives_a_crash_with_the_same_bytes(market):
    market.ask_to_train()
    site = market.sites["bank-a"]
    roster = market.roster(NAMES)
    site.feed(roster)
    first = site.take(m.DealtShares)[0]
    ctx = roster.context.digest()
    begun = site.begun[ctx]
    arrived = site.with_secrets(roster)

    again = SimSite("bank-a", manifest=market.manifest)
    again.participant.restore_job(ec.AcceptedJob("job-1", PLAN))
    taken = again.participant.exchange.restore(
        ("job-1", begun.key.round, begun.attempt),
        begun.facts,
        (arrived.own_bundle, arrived.secrets),
        site.slots[ctx],
        NOW_S,
    )
    assert taken
    again.feed(ec.Connected())
    again.feed(market.welcome())
    assert again.take(m.DealtShares) == [first]


def test_an_attempt_times_out_and_signs_its_abort(market):
    market.ask_to_train()
    site = market.sites["bank-a"]
    site.feed(market.roster(NAMES))
    site.take(m.DealtShares)
    site.now_s = site.participant.next_deadline_s()
    site.feed(ec.TimePassed())
    assert len(site.take(m.AbortSignature)) == 1
    assert site.take(m.AttemptFailed)[0].reason == Reason.TIMEOUT
    assert len(site.take(m.Ready)) == 1
    assert site.participant.next_deadline_s() is None


def test_the_end_of_a_job_erases_its_attempts(market):
    market.ask_to_train()
    site = market.sites["bank-a"]
    site.feed(market.roster(NAMES))
    site.feed(m.JobEnded("job-1", "stopped", "by the operator"))
    assert site.slots == {}
    assert site.participant.next_deadline_s() is None
    site.feed(market.train_request())
    assert site.take(m.NotReady)[0].reason == Reason.UNKNOWN_JOB


def test_frames_of_unknown_attempts_change_nothing(market):
    site = market.sites["bank-a"]
    site.feed(m.SurvivorSet(b"c" * 32, (1, 2), (1, 2)))
    site.feed(m.AttemptResult(b"c" * 32, b"t" * 32, (1,)))
    assert not site.take(m.SurvivorSignature)
    assert site.slots == {}
