"""Surplus seeds leave a site with slot 4 only, as many as the signed U3 can do without."""

from dataclasses import replace

import pytest

from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg.commands import Step
from privacy.secagg.messages import AbortRequest, RetryProof, RetryVote, UnmaskShares
from privacy.secagg.retry import check_retry
from privacy.secagg.site import SiteAttempt
from tests.support.secagg_harness import Federation, secrets_of, signed_sets, with_config

LEVELS = (5, 6)
ALL = (1, 2, 3, 4, 5, 6)


def federation():
    return Federation(6, min_survivors=4, surplus_levels=LEVELS)


def seeds_of(fed, index, count):
    return secrets_of(fed.site(index).name, 1, len(fed.surplus_levels)).surplus_seeds[:count]


@pytest.mark.parametrize("silent", [False, True], ids=["left", "stayed-in-U2"])
@pytest.mark.parametrize(("lost", "count"), [((), 2), ((3,), 1)])
def test_survivors_reveal_what_their_number_can_do_without(lost, count, silent):
    """|U3| counts, not |U1| nor |U2|: a silent site dealt its shares, and sent no update."""
    fed = federation()
    outcome = fed.run(dict.fromkeys(lost, 1), silent=silent)
    alive = [i for i in ALL if i not in lost]
    assert outcome.surplus_seeds == tuple(seeds_of(fed, i, count) for i in alive)
    assert (outcome.total_D == fed.expected_D(outcome.survivors)).all()


def test_below_the_first_level_nothing_is_revealed():
    fed = Federation(6, min_survivors=5, surplus_levels=(6,))
    outcome = fed.run({2: 1})
    assert len(outcome.survivors) == 5
    assert outcome.surplus_seeds == ()
    sent = [m for site in fed.sites for m in site.sent if isinstance(m, UnmaskShares)]
    assert sent
    assert all(message.surplus_seeds == () for message in sent)


def test_the_aggregator_waits_for_seeds_but_not_for_ever():
    """A survivor that does not answer step 4 leaves its noise in; the sum opens all the same."""
    fed = federation()
    outcome = fed.run({4: 3}, silent=True)
    assert len(outcome.survivors) == 6
    assert outcome.surplus_seeds == tuple(seeds_of(fed, i, 2) for i in ALL if i != 4)
    assert (outcome.total_D == fed.expected_D(outcome.survivors)).all()


def test_without_levels_the_first_t_answers_are_enough():
    fed = Federation(6, min_survivors=5)
    outcome = fed.run({6: 3}, silent=True)
    assert outcome.surplus_seeds == ()
    assert len(outcome.survivors) == 6


def test_no_seed_leaves_before_t_signatures_on_the_own_u3():
    fed = federation()
    votes = signed_sets(fed, dealt=ALL, survivors=ALL)
    site = fed.site(1)
    before = len(site.sent)
    site.feed(fed.quorum([votes[i] for i in (1, 2, 3, 4)]))  # T = 5
    assert site.aborted.reason is Reason.BELOW_THRESHOLD
    assert not any(isinstance(message, UnmaskShares) for message in site.sent[before:])
    # Nor for a quorum on another, larger or smaller set than the one that this site signed.
    other = federation()
    smaller = signed_sets(other, dealt=ALL, survivors=ALL[:5])
    site = fed.site(2)
    site.feed(fed.quorum([smaller[i] for i in range(1, 6)]))
    assert site.aborted is not None
    assert not any(isinstance(message, UnmaskShares) for message in site.sent)


@pytest.mark.parametrize("change", [lambda s: s[:1], lambda s: (*s, bytes(32)), lambda _: ()])
def test_a_site_that_reveals_another_number_of_seeds_is_caught(change):
    fed = federation()

    def tamper(index, message):
        if index == 2 and isinstance(message, UnmaskShares):
            return replace(message, surplus_seeds=change(message.surplus_seeds))
        return message

    outcome = fed.run(tamper=tamper)
    assert outcome.blamed == [(fed.members[1], Reason.MALFORMED)]
    assert outcome.surplus_seeds == tuple(seeds_of(fed, i, 2) for i in ALL if i != 2)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_slot_four_gives_the_same_seeds(when):
    smooth, fed = federation(), federation()
    quorums = []
    for each in (smooth, fed):
        votes = signed_sets(each, dealt=ALL, survivors=ALL)
        quorums.append(each.quorum([votes[i] for i in ALL]))
    expected = smooth.site(3).feed(quorums[0])
    site = fed.site(3)
    site.crash_at = (when, Step.UNMASK)
    assert site.feed(quorums[1]) == []
    resumed = site.restart()
    if when == "after":
        assert resumed == expected
    assert site.feed(quorums[1]) == expected
    assert expected[0].surplus_seeds == seeds_of(fed, 3, 2)


def test_seeds_are_gone_once_the_attempt_is_over():
    fed = federation()
    votes = signed_sets(fed, dealt=ALL, survivors=ALL)
    site = fed.site(1)
    site.feed(AbortRequest(fed.context.digest(), "stop"))
    assert site.erased
    with pytest.raises(PeerError, match="dead or over"):
        site.feed(fed.quorum([votes[i] for i in ALL]))
    site.aborted = None
    site.restart()
    assert not any(isinstance(message, UnmaskShares) for message in site.sent)


def test_an_update_drawn_for_other_levels_is_never_dealt_for():
    fed = federation()
    site = with_config(fed.site(1))
    for seeds in ((), (bytes(32),), (bytes(32),) * 3):
        attempt = SiteAttempt(site.config, site.own, replace(site.secrets, surplus_seeds=seeds))
        with pytest.raises(UsageError, match="surplus seed"):
            attempt.handle(fed.roster, 1_800_000_000.0)


def test_no_permit_frees_an_update_whose_slot_four_is_taken():
    """A votes cannot exist beside T on a U3 with this site; if they did, they are refused here."""
    fed = federation()
    votes = signed_sets(fed, dealt=ALL, survivors=ALL)
    site = fed.site(6)
    site.feed(fed.quorum([votes[i] for i in ALL]))
    assert Step.UNMASK in site.slots
    forged = [RetryVote(fed.members[i - 1], b"x" * 70) for i in (1, 2, 3, 4)]
    with pytest.raises(UsageError, match="slot 4"):
        check_retry(site.config, site.slots, RetryProof(fed.context.digest(), tuple(forged)))


def test_seeds_are_in_no_repr():
    fed = federation()
    outcome = fed.run()
    seed = outcome.surplus_seeds[0][0]
    answer = next(m for m in fed.site(1).sent if isinstance(m, UnmaskShares))
    assert seed in answer.surplus_seeds
    for shown in (repr(answer), repr(fed.site(1).secrets)):
        assert repr(seed)[2:-1] not in shown
        assert seed.hex() not in shown
