"""Cohorts that an aggregator cuts to its liking: Sybils, phantoms, friends, copied keys, old names.

All of it is refused when the roster comes, or when the first share does: nobody is charged.
"""

import time
from dataclasses import replace

import pytest

from privacy.errors import Reason
from privacy.secagg.messages import AbortSignature, BaseVersion, DealtShares, SignedBundle
from privacy.secagg.statements import bundle_statement
from tests.support.hostile_aggregator import hostile
from tests.support.hostile_attempt import peer_secrets, signed
from tests.support.wire_runs import run
from tidegate import messages as m

P256_PRIME = 2**256 - 2**224 + 2**192 + 2**96 - 1


async def refuses(evil, roster, reason, clause=""):
    """Send a roster that must be refused with nothing dealt, uploaded or charged."""
    evil.send(roster)
    await evil.refused(reason, clause)
    await evil.quiet()
    assert not any(isinstance(said, DealtShares) for said in evil.said)
    assert (evil.uploads, evil.charges()) == ([], 0)


# --- who is in it ---------------------------------------------------------------------------------


def test_a_phantom_that_the_manifest_does_not_know_is_refused(tmp_path):
    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            phantom = signed("phantom", peer_secrets("phantom", 1), 1, "market")
            roster = attempt.with_bundle(attempt.others[0], phantom)
            await refuses(evil, roster, Reason.UNAUTHENTICATED, "not in the sealed manifest")
            await evil.goes_on(2)

    run(scenario())


def test_a_phantom_under_an_honest_name_is_refused(tmp_path):
    """The aggregator's own keys, signed with a friend's key, in the place of an honest site."""

    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            friend, target = attempt.others[:2]
            made = signed("bank-9", peer_secrets("bank-9", 1), 1, "market").bundle
            claimed = replace(made, site=attempt.members[target - 1])
            signature = attempt.peers[friend].key.sign(bundle_statement(claimed))
            roster = attempt.with_bundle(target, SignedBundle(claimed, signature))
            await refuses(evil, roster, Reason.BAD_SIGNATURE)
            await evil.goes_on(2)

    run(scenario())


def test_a_cohort_with_too_few_pinned_peers_is_refused(tmp_path):
    async def scenario():
        async with hostile(tmp_path, policy="min_pinned_peers = 4") as evil:
            attempt = await evil.attempt(members=evil.names[:4])
            await refuses(evil, attempt.roster, Reason.POLICY, "min_pinned_peers")
            await evil.goes_on(2)

    run(scenario())


def test_a_replayed_bundle_cannot_play_a_site(tmp_path):
    """The bundle of an absent site is good; its step 1 can be signed by nobody else."""

    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            await attempt.deal()
            friend, absent = attempt.others[:2]
            played = attempt.dealt[absent]
            forged = attempt.peers[friend].key.sign(b"tidegate/sa/1 signature\0 anything")
            dealt = {**attempt.dealt, absent: replace(played, signature=forged)}
            evil.send(attempt.delivery(attempt.victim, dealt=dealt))
            await evil.refused(Reason.BAD_SIGNATURE)
            abort = await evil.expect(AbortSignature)
            assert abort.accused == attempt.members[absent - 1]
            assert (evil.uploads, evil.charges()) == ([], 0)
            await evil.goes_on(2)

    run(scenario())


def test_the_sites_own_bundle_cannot_be_exchanged(tmp_path):
    """With a c_pk of the attacker's in it, the shares for the victim would be the attacker's."""

    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            own = attempt.roster.bundles[attempt.victim - 1]
            key = signed("bank-9", peer_secrets("bank-9", 1), 1, "market").bundle.c_pk
            bent = replace(own, bundle=replace(own.bundle, c_pk=key))
            roster = attempt.with_bundle(attempt.victim, bent)
            await refuses(evil, roster, Reason.EQUIVOCATION, "own bundle")
            await evil.goes_on(2)

    run(scenario())


def negated(point):
    """Give minus a P-256 point: key agreement cannot tell it from the point."""
    y = int.from_bytes(point[33:], "big")
    return point[:33] + (P256_PRIME - y).to_bytes(32, "big")


@pytest.mark.parametrize("place", ["c_pk", "m_pk"])
@pytest.mark.parametrize("negative", [False, True])
def test_the_same_key_twice_is_refused(tmp_path, place, negative):
    """A friend that copies an honest site's key would share its pairwise masks."""

    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            friend, target = attempt.others[:2]
            key = attempt.roster.bundles[target - 1].bundle.m_pk
            copied = attempt.bundle_of_friend(friend, **{place: negated(key) if negative else key})
            roster = attempt.with_bundle(friend, copied)
            await refuses(evil, roster, Reason.POLICY, "repeats a key")
            await evil.goes_on(2)

    run(scenario())


def test_a_key_off_the_curve_is_refused(tmp_path):
    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            friend = attempt.others[0]
            bent = attempt.bundle_of_friend(friend, m_pk=b"\x04" + b"\x07" * 64)
            await refuses(evil, attempt.with_bundle(friend, bent), Reason.MALFORMED, "curve")
            await evil.goes_on(2)

    run(scenario())


def test_an_expired_bundle_is_refused(tmp_path):
    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            friend = attempt.others[0]
            old = attempt.bundle_of_friend(friend, not_after_s=int(time.time()) - 1)
            await refuses(evil, attempt.with_bundle(friend, old), Reason.REPLAY, "not_after")
            await evil.goes_on(2)

    run(scenario())


# --- how many -------------------------------------------------------------------------------------


def test_concentrated_colluders_below_3c_are_refused(tmp_path):
    """C = 2 friends among 5 of 7 sites: they are two fifths of what they should be a third of."""

    async def scenario():
        async with hostile(tmp_path, sites=7, colluders=2, min_survivors=5) as evil:
            attempt = await evil.attempt(members=evil.names[:5])
            await refuses(evil, attempt.roster, Reason.POLICY, "3c")
            await evil.goes_on(2)

    run(scenario())


def test_a_cohort_below_the_thresholds_is_refused(tmp_path):
    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt(members=evil.names[:3])
            await refuses(evil, attempt.roster, Reason.BELOW_THRESHOLD, "cannot finish")
            await evil.goes_on(2)

    run(scenario())


def test_a_cohort_below_the_sites_own_policy_is_refused(tmp_path):
    async def scenario():
        async with hostile(tmp_path, policy="min_cohort = 5") as evil:
            attempt = await evil.attempt(members=evil.names[:4])
            await refuses(evil, attempt.roster, Reason.POLICY, "min_cohort")
            await evil.goes_on(2)

    run(scenario())


def test_u2_below_the_sites_own_policy_charges_nobody(tmp_path):
    """The roster was large enough; the shares of too few are delivered."""

    async def scenario():
        async with hostile(tmp_path, policy="min_cohort = 5") as evil:
            attempt = await evil.attempt()
            await attempt.deal()
            some = [index for index in attempt.all if index != attempt.others[0]]
            evil.send(attempt.delivery(attempt.victim, some))
            await evil.refused(Reason.BELOW_THRESHOLD, "not charged")
            assert (evil.uploads, evil.charges()) == ([], 0)
            await evil.goes_on(2)

    run(scenario())


def test_u3_below_the_sites_own_policy_is_not_signed(tmp_path):
    async def scenario():
        async with hostile(tmp_path, policy="min_cohort = 5") as evil:
            attempt = await evil.attempt()
            await attempt.deal()
            await attempt.upload()
            some = [index for index in attempt.all if index != attempt.others[0]]
            evil.send(attempt.survivor_set(some))
            await evil.refused(Reason.POLICY, "min_cohort")
            assert evil.charges() == 1
            await evil.goes_on(2)

    run(scenario())


def test_too_few_honest_sites_are_refused_without_the_sites_consent(tmp_path):
    """N_min - c = 2: the manifest allows it, this site does not."""

    async def scenario():
        async with hostile(tmp_path, sites=6, colluders=2, min_survivors=4) as evil:
            attempt = await evil.attempt()
            await refuses(evil, attempt.roster, Reason.POLICY, "min_honest")
            await evil.site.stop()
            consent = "min_honest = 2\nsmall_cohort_consent = true\n"
            evil.change_policy(lambda text: consent + text)
            evil.site.start()
            await evil.greet()
            await evil.goes_on(2)

    run(scenario())


# --- under which name -----------------------------------------------------------------------------


CONTEXTS = {
    "suite": "X25519_ED25519_SHA256_AES256",
    "consortium_id": "market-2",
    "manifest_hash": bytes(32),
    "roster_epoch": 2,
    "round": 2,
}


@pytest.mark.parametrize("name", [*CONTEXTS, "job_id"])
def test_a_roster_under_another_context_is_refused(tmp_path, name):
    value, reason = CONTEXTS.get(name, "job-2"), Reason.WRONG_CONTEXT
    if name == "job_id":
        reason = Reason.UNKNOWN_JOB

    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            context = replace(attempt.roster.context, **{name: value})
            await refuses(evil, replace(attempt.roster, context=context), reason)
            await evil.goes_on(2)

    run(scenario())


def test_bases_of_other_sites_than_the_cohorts_are_refused(tmp_path):
    """A frame in itself contradictory ends the session; the site comes back uncharged."""

    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            plan = attempt.roster.plan
            bases = (BaseVersion(bytes(32), 0), *plan.bases[1:])
            evil.send(replace(attempt.roster, plan=replace(plan, bases=bases)))
            await evil.greet()
            assert evil.charges() == 0
            await evil.goes_on(2)

    run(scenario())


def test_signatures_under_another_context_are_refused(tmp_path):
    """Votes of an earlier round, on the same sets and the same members, make no quorum."""

    async def scenario():
        async with hostile(tmp_path) as evil:
            old = await evil.attempt()
            await old.deal()
            await old.upload()
            await old.vote()
            await evil.train(2)
            attempt = await evil.attempt(2)
            await attempt.deal()
            await attempt.upload()
            await attempt.vote()
            replayed = [replace(vote, ctx=attempt.ctx) for vote in old.votes.values()]
            evil.send(attempt.quorum(replayed))
            await evil.refused(Reason.BAD_SIGNATURE)
            assert evil.charges() == 2
            await evil.goes_on(3)

    run(scenario())


def test_a_friends_signature_for_something_else_is_no_vote(tmp_path):
    """Signatures that sites gave for bundles and aborts, shown as votes on U3."""

    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            await attempt.deal()
            await attempt.upload()
            await attempt.vote()
            honest = attempt.others[1]
            votes = dict(attempt.votes)
            signature = attempt.roster.bundles[honest - 1].signature
            votes[honest] = replace(votes[honest], signature=signature)
            evil.send(attempt.quorum(votes.values()))
            await evil.refused(Reason.BAD_SIGNATURE)
            await evil.goes_on(2)

    run(scenario())


# --- stock ----------------------------------------------------------------------------------------


def test_an_exhausted_stock_and_a_burnt_bundle_are_refused(tmp_path):
    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            await attempt.run_honestly()
            await evil.train(2)
            evil.stock = [attempt.roster.bundles[attempt.victim - 1]]
            again = await evil.attempt(2)
            evil.send(again.roster)
            await evil.refused(Reason.REPLAY, "stock")
            assert evil.charges() == 1
            evil.send(m.BundleRequest(4))
            evil.stock = [*(await evil.expect(m.BundleStock)).bundles]
            await evil.goes_on(3)

    run(scenario())


def test_an_aggregator_that_hoards_bundles_makes_old_ones_void_and_nothing_worse(tmp_path):
    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            for _ in range(2):
                evil.send(m.BundleRequest(256))
                evil.stock = [*(await evil.expect(m.BundleStock)).bundles]
            await refuses(evil, attempt.roster, Reason.REPLAY, "stock")
            await evil.goes_on(2)

    run(scenario())
