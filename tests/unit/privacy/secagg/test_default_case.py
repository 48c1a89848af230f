"""The default case on paper: n = 5, c = 1, N_min = t = T = 4, m_h = 3, A = 3. One test for each."""

import pytest

from privacy.errors import PeerError, Reason
from privacy.secagg.commands import Step, Tick
from privacy.secagg.messages import (
    AbortRequest,
    AbortSignature,
    RetryProof,
    RetryVote,
    UnmaskShares,
)
from privacy.secagg.retry import check_retry
from privacy.secagg.rules import thresholds
from privacy.secagg.site import SiteAttempt
from tests.support.secagg_harness import Federation, with_config


def assert_exact(federation, outcome, survivors):
    assert [federation.members.index(s) + 1 for s in outcome.survivors] == survivors
    assert outcome.total_D.tolist() == federation.expected_D(outcome.survivors).tolist()


def charges(federation):
    return [site.charges for site in federation.sites]


def test_thresholds_on_paper():
    limits = thresholds(5, 1, 4)
    assert (limits.shares, limits.quorum, limits.retry, limits.floor) == (4, 4, 3, 4)


def test_normal_round():
    federation = Federation(5)
    outcome = federation.run()
    assert_exact(federation, outcome, [1, 2, 3, 4, 5])
    assert charges(federation) == [1] * 5
    assert all(site.erased and site.aborted is None for site in federation.sites)
    assert all(set(site.slots) == {1, 2, 3, 4} for site in federation.sites)


def test_one_loss_before_step_1():
    federation = Federation(5)
    outcome = federation.run({3: 0})
    assert_exact(federation, outcome, [1, 2, 4, 5])
    assert charges(federation) == [1, 1, 0, 1, 1]
    assert len(outcome.terms) == 4, "no mask of the missing site has to be taken off"


def test_one_loss_between_1_and_2():
    federation = Federation(5)
    outcome = federation.run({3: 1}, silent=True)
    assert_exact(federation, outcome, [1, 2, 4, 5])
    assert len(outcome.terms) == 4 + 4, "m of the missing site is reconstructed"
    revealed = [m for m in federation.site(1).sent if isinstance(m, UnmaskShares)]
    assert [share.owner for share in revealed[0].mask_shares] == [3]
    assert [share.owner for share in revealed[0].self_shares] == [1, 2, 4, 5]


def test_one_loss_between_2_and_3():
    federation = Federation(5)
    outcome = federation.run({3: 2})
    assert_exact(federation, outcome, [1, 2, 3, 4, 5])


def test_one_loss_between_3_and_4():
    federation = Federation(5)
    outcome = federation.run({3: 3})
    assert_exact(federation, outcome, [1, 2, 3, 4, 5])


def test_withheld_step_3_leaves_everyone_charged_and_gives_no_free_retry():
    federation = Federation(5)
    federation.upload_all()
    assert charges(federation) == [1] * 5
    later = 1e12
    for site in federation.sites:
        site.feed(Tick(), later)
        assert site.aborted.reason is Reason.TIMEOUT
        assert isinstance(site.sent[-1], AbortSignature)
    # Charged before the first byte left, and never refunded.
    assert charges(federation) == [1] * 5


def test_u2_equivocation():
    federation = Federation(5)
    dealt = federation.deal_all()
    site = federation.site(1)
    site.feed(federation.delivery(dealt, 1))
    terms = site.terms
    site.feed(federation.delivery(dealt, 1, only=(1, 2, 3, 4)))
    assert site.aborted.reason is Reason.EQUIVOCATION
    assert site.terms == terms, "no second upload under another U2"
    assert site.charges == 1
    assert isinstance(site.sent[-1], AbortSignature)


def test_abort_then_retry_is_not_charged_again():
    first = Federation(5)
    dealt = first.upload_all()
    server_votes = []
    for site in first.sites[:3]:
        (vote,) = site.feed(AbortRequest(first.context.digest(), "stopped"))
        server_votes.append(vote)
    proof = RetryProof(
        first.context.digest(), tuple(RetryVote(v.sender, v.signature) for v in server_votes)
    )
    assert len(dealt) == 5
    second = Federation(5, attempt=2, serial=2)
    for old, new in zip(first.sites, second.sites, strict=True):
        permit = check_retry(old.config, old.slots, proof)
        with_config(new, last_accepted=(7, 1), last_sent=(7, 1))
        new.attempt = SiteAttempt(new.config, new.own, new.secrets, permit)
    outcome = second.run()
    assert_exact(second, outcome, [1, 2, 3, 4, 5])
    assert charges(first) == [1] * 5
    assert charges(second) == [0] * 5


def test_crash_after_the_charge():
    federation = Federation(5)
    dealt = federation.deal_all()
    for i, site in enumerate(federation.sites, start=1):
        if i == 2:
            site.crash_at = ("after", Step.MASKED_UPDATE)
        site.feed(federation.delivery(dealt, i))
    crashed = federation.site(2)
    assert crashed.upload is None
    assert crashed.charges == 1
    (upload,) = crashed.restart()
    assert crashed.charges == 1, "the charge was made with the slot; it is not made again"
    twin = Federation(5)
    twin.upload_all()
    assert upload.values_d.tolist() == twin.site(2).upload.values_d.tolist()


def test_two_losses_seen_before_step_2_abort_and_charge_nobody():
    federation = Federation(5)
    outcome = federation.run({2: 0, 3: 1})
    assert outcome.abort.reason is Reason.BELOW_THRESHOLD
    assert charges(federation) == [0] * 5
    assert outcome.total_D is None


def test_two_losses_after_step_2_abort_with_nothing_revealed():
    federation = Federation(5)
    outcome = federation.run({2: 1, 3: 2}, silent=True)
    assert outcome.abort is not None
    assert outcome.total_D is None
    for site in federation.sites:
        assert not [m for m in site.sent if isinstance(m, UnmaskShares)]


def test_frames_of_another_attempt_are_dropped():
    federation, other = Federation(5), Federation(5, attempt=2, serial=2)
    federation.deal_all()
    with pytest.raises(PeerError, match="wrong-context"):
        federation.site(1).attempt.handle(other.roster, 0.0)
    assert federation.site(1).aborted is None
