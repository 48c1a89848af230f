"""The retry rule: no second sending of one update without a charge, but with A proofs."""

from dataclasses import replace

import pytest

from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg.commands import SiteLost, Start, Step
from privacy.secagg.messages import AbortRequest, RetryProof, RetryVote
from privacy.secagg.retry import check_retry
from privacy.secagg.rules import thresholds
from privacy.secagg.server import ServerAttempt
from privacy.secagg.site import SiteAttempt
from tests.support.secagg_harness import Federation

ALL = (1, 2, 3, 4, 5)


def aborted(n_aborts=3):
    """Upload everywhere, then let the first sites sign the abort."""
    federation = Federation(5)
    federation.upload_all()
    ctx = federation.context.digest()
    votes = []
    for site in federation.sites[:n_aborts]:
        (signature,) = site.feed(AbortRequest(ctx, "stop"))
        votes.append(RetryVote(site.me, signature.signature))
    return federation, votes


def check(federation, votes, index=5, ctx=None):
    site = federation.site(index)
    proof = RetryProof(ctx or federation.context.digest(), tuple(votes))
    return check_retry(site.config, site.slots, proof)


@pytest.mark.parametrize("n", range(3, 41))
def test_a_votes_leave_no_quorum_for_a_set_with_this_site(n):
    for colluders in range(1, n // 3 + 1):
        try:
            limits = thresholds(n, colluders, colluders + 1)
        except PeerError:
            continue
        # n - (A - c) members at most can still sign a U3 that holds the site.
        assert n - (limits.retry - colluders) < limits.quorum
        assert n - (limits.retry - 1 - colluders) >= limits.quorum, "A is not larger than needed"


def test_a_aborts_permit_and_fewer_do_not():
    federation, votes = aborted(3)
    assert check(federation, votes).attempt == 1
    with pytest.raises(PeerError, match="below-threshold"):
        check(federation, votes[:2])


def test_votes_on_a_u3_without_this_site_count():
    federation = Federation(5)
    federation.upload_all()
    survivors = (1, 2, 3, 4)
    message = federation.survivor_set(ALL, survivors)
    votes = [
        RetryVote(
            federation.members[i - 1], federation.site(i).feed(message)[0].signature, ALL, survivors
        )
        for i in (1, 2, 3)
    ]
    assert check(federation, votes, index=5)
    with pytest.raises(PeerError, match="holds this site"):
        check(federation, votes, index=4)


def test_a_vote_on_a_u3_with_this_site_cannot_be_passed_off():
    federation = Federation(5)
    federation.upload_all()
    message = federation.survivor_set(ALL, ALL)
    signatures = [federation.site(i).feed(message)[0].signature for i in (1, 2, 3)]
    for survivors in ((1, 2, 3, 4), ()):
        votes = [
            RetryVote(federation.members[i], signature, ALL, survivors)
            for i, signature in enumerate(signatures)
        ]
        with pytest.raises(PeerError, match="bad-signature"):
            check(federation, votes)


def test_one_signer_counts_once():
    federation, votes = aborted(2)
    with pytest.raises(PeerError, match="votes twice"):
        check(federation, [*votes, votes[0]])


def test_outsiders_and_other_attempts_do_not_count():
    federation, votes = aborted(3)
    with pytest.raises(PeerError, match="unauthenticated"):
        check(federation, [*votes[:2], replace(votes[2], signer=bytes(32))])
    with pytest.raises(PeerError, match="wrong-context"):
        check(federation, votes, ctx=bytes(32))
    other = Federation(5, attempt=2, serial=2)
    other.upload_all()
    proof = RetryProof(other.context.digest(), tuple(votes))
    with pytest.raises(PeerError, match="bad-signature"):
        check_retry(other.site(5).config, other.site(5).slots, proof)


def test_an_attempt_that_charged_nothing_gives_no_permit():
    federation, votes = aborted(3)
    slots = {Step.SHARE_KEYS: federation.site(5).slots[Step.SHARE_KEYS]}
    proof = RetryProof(federation.context.digest(), tuple(votes))
    with pytest.raises(UsageError, match="charge now"):
        check_retry(federation.site(5).config, slots, proof)


def retried(permit, **changes):
    second = Federation(5, attempt=3, serial=3)
    site = second.site(5)
    plan = replace(site.config.plan, **changes.pop("plan", {}))
    config = replace(
        site.config, plan=plan, last_accepted=(7, 2), **{"last_sent": (7, 1), **changes}
    )
    return SiteAttempt(config, site.own, site.secrets, permit)


def test_a_permit_serves_only_the_last_sending_of_the_update():
    # Attempt 2 went out under the permit and was summed: the same permit again would release the
    # update a second time, in another cohort.
    federation, votes = aborted(3)
    permit = check(federation, votes)
    assert retried(permit)
    for last in ((7, 2), (6, 1), None):
        with pytest.raises(UsageError, match="last attempt that sent"):
            retried(permit, last_sent=last)


@pytest.mark.parametrize(
    "change",
    [
        {"length": 9},
        {"chain_head": b"newer"},
        {"own_version": 8},
        {"encoding_core": b"other noise"},
    ],
    ids=str,
)
def test_a_retry_may_change_nothing_but_attempt_roster_and_b(change):
    federation, votes = aborted(3)
    permit = check(federation, votes)
    with pytest.raises(UsageError, match="may differ only"):
        retried(permit, plan=change)
    with pytest.raises(UsageError, match="may differ only"):
        retried(permit, context=replace(federation.context, round=8))
    assert retried(permit, plan={"ring_bits": 21, "encoding": b"encoding with B = 21"})


def test_the_aggregator_collects_the_proof():
    federation = Federation(5)
    outcome = federation.run({2: 1, 3: 2}, silent=True)
    server: ServerAttempt = outcome.server
    assert outcome.abort
    # 1, 4 and 5 had signed U3 = {1, 3, 4, 5}: votes for site 2, not for themselves.
    assert server.proof_for(federation.members[2 - 1]).votes
    assert server.proof_for(federation.members[1 - 1]) is None


def test_the_aggregator_frees_everyone_after_an_early_abort():
    federation = Federation(5)
    dealt = federation.deal_all()
    server = federation.new_server()
    server.handle(Start(), 0.0)
    for message in dealt.values():
        server.handle(message, 0.0)
    for i in ALL:
        federation.site(i).feed(federation.delivery(dealt, i))
    for i in (4, 5):
        server.handle(SiteLost(federation.members[i - 1], Reason.TIMEOUT), 0.0)
    for i in (1, 2, 3):
        (vote,) = federation.site(i).feed(AbortRequest(federation.context.digest(), "x"))
        server.handle(vote, 0.0)
    for i in ALL:
        site = federation.site(i)
        proof = server.proof_for(site.me)
        assert check_retry(site.config, site.slots, proof).attempt == 1
