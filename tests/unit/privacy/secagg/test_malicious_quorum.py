"""A malicious aggregator, through the wire messages: quorums, order, and what must not leave."""

from dataclasses import replace

import pytest

from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg import commands as c
from privacy.secagg import statements
from privacy.secagg.messages import (
    DealtShares,
    Published,
    SurvivorSignature,
    UnmaskShares,
)
from tests.support.secagg_harness import (
    NOW_S,
    Federation,
    refused,
    signed_sets,
    with_config,
)

ALL = (1, 2, 3, 4, 5)


def ready_for_3():
    federation = Federation(5)
    federation.upload_all()
    return federation


# --- step 4 ---------------------------------------------------------------------------------------


def test_a_quorum_on_different_survivor_sets_reveals_nothing():
    federation = ready_for_3()
    votes = {}
    for i in ALL:
        survivors = ALL if i in (1, 2, 3) else (1, 2, 4, 5)
        votes[i] = federation.site(i).feed(federation.survivor_set(ALL, survivors))[0]
    refused(federation.site(1), federation.quorum(votes.values()), Reason.BAD_SIGNATURE)


def test_plan_equivocation_ends_without_a_quorum_and_in_noise():
    # Both plans are what the sites themselves derived: two models, one roster.
    federation = Federation(5)
    other_plan = replace(federation.plan, chain_head=b"model B")
    dealt = {}
    for i in ALL:
        site = federation.site(i)
        roster = federation.roster
        if i > 3:
            with_config(site, plan=replace(site.config.plan, chain_head=b"model B"))
            roster = replace(roster, plan=other_plan)
        dealt[i] = site.feed(roster)[0]
    federation.upload_all(dealt)
    # rh is one, so shares open; but pairwise masks between the camps do not cancel.
    keys = [{term.key for term in federation.site(i).terms} for i in ALL]
    assert keys[0] & keys[1]
    assert not keys[0] & keys[4]
    votes = [federation.site(i).feed(federation.survivor_set(ALL, ALL))[0] for i in ALL]
    for i in ALL:
        refused(federation.site(i), federation.quorum(votes), Reason.BAD_SIGNATURE)


def test_a_vote_from_outside_u3_is_no_vote():
    # Site 5 is in U2 only: a colluder that was dropped must not make up the quorum.
    federation = Federation(5)
    votes = signed_sets(federation, survivors=(1, 2, 3, 4))
    site = federation.site(1)
    cohort = site.attempt.cohort
    statement = statements.survivor_statement(cohort.rh, cohort.mh, ALL, (1, 2, 3, 4))
    dropped = federation.site(5)
    extra = SurvivorSignature(cohort.ctx, dropped.me, dropped.key.sign(statement))
    quorum = federation.quorum([votes[1], votes[2], votes[3], extra])
    refused(site, quorum, Reason.MALFORMED, "no vote here")


@pytest.mark.parametrize("case", ["few", "twice", "outsider", "other attempt", "abort", "bundle"])
def test_a_bad_quorum_reveals_nothing(case):
    federation = Federation(5)
    votes = list(signed_sets(federation).values())
    site = federation.site(1)
    if case == "few":
        bad = votes[:3]
        reason = Reason.BELOW_THRESHOLD
    elif case == "twice":
        bad = [*votes[:3], votes[1]]
        reason = Reason.MALFORMED
    elif case == "outsider":
        bad = [*votes[:3], replace(votes[3], sender=bytes(32))]
        reason = Reason.UNAUTHENTICATED
    elif case == "other attempt":
        old = Federation(5, attempt=2, serial=2)
        replayed = replace(signed_sets(old)[4], ctx=federation.context.digest())
        bad = [*votes[:3], replayed]
        reason = Reason.BAD_SIGNATURE
    else:
        ctx, rh = federation.context.digest(), site.attempt.cohort.rh
        key = federation.site(4).key
        statement = (
            statements.abort_statement(ctx, rh)
            if case == "abort"
            else statements.bundle_statement(federation.bundles[3].bundle)
        )
        bad = [*votes[:3], replace(votes[3], signature=key.sign(statement))]
        reason = Reason.BAD_SIGNATURE
    refused(site, federation.quorum(bad), reason)


def test_a_signature_without_the_context_prefix_is_no_vote():
    federation = Federation(5)
    votes = list(signed_sets(federation).values())
    site = federation.site(1)
    cohort = site.attempt.cohort
    statement = statements.survivor_statement(cohort.rh, cohort.mh, ALL, ALL)
    bare = statement.removeprefix(statements.SIGNED_PREFIX)
    from privacy.secagg.signatures import _ECDSA_RFC6979

    forged = federation.site(4).key._key.sign(bare, _ECDSA_RFC6979)
    refused(
        site,
        federation.quorum([*votes[:3], replace(votes[3], signature=forged)]),
        Reason.BAD_SIGNATURE,
    )
    with pytest.raises(UsageError, match="SIGNED_PREFIX"):
        federation.site(4).key.sign(bare)


def test_both_shares_of_one_peer_are_never_revealed():
    federation = Federation(5)
    survivors = (1, 2, 3, 4)
    votes = signed_sets(federation, survivors=survivors)
    site = federation.site(1)
    quorum = federation.quorum(votes.values())
    (answer,) = site.feed(quorum)
    assert [s.owner for s in answer.self_shares] == [1, 2, 3, 4]
    assert [s.owner for s in answer.mask_shares] == [5]
    # Any other T signatures on the same string are the same input: the same bytes.
    (again,) = site.feed(federation.quorum(list(votes.values())[:4]))
    assert again == answer
    # Another U3 afterwards kills; the other share of 5 never leaves.
    refused(site, federation.survivor_set(ALL, ALL), Reason.EQUIVOCATION)
    answers = {m for m in site.sent if isinstance(m, UnmaskShares)}
    assert answers == {answer}


def test_steps_out_of_order_are_dropped_and_harm_nothing():
    federation = Federation(5)
    site = federation.site(1)
    ctx = federation.context.digest()
    for early in (
        federation.delivery({}, 1),
        federation.survivor_set(ALL, ALL),
        federation.quorum([]),
        Published(ctx, bytes(32)),
    ):
        with pytest.raises(PeerError, match="replay"):
            site.feed(early)
    federation.deal_all()
    with pytest.raises(PeerError, match="replay"):
        site.feed(federation.survivor_set(ALL, ALL))
    assert site.aborted is None


def test_a_published_transcript_of_another_set_is_noticed():
    federation = Federation(5)
    signed_sets(federation)
    site = federation.site(1)
    site.feed(Published(federation.context.digest(), bytes(32)))
    assert site.aborted.reason is Reason.EQUIVOCATION
    assert site.erased


def test_a_different_roster_for_the_same_attempt_kills():
    federation, other = Federation(5), Federation(5, serial=2)
    site = federation.site(1)
    (dealt,) = site.feed(federation.roster)
    assert site.feed(federation.roster) == [dealt], "the identical roster, the identical bytes"
    assert isinstance(dealt, DealtShares)
    roster = replace(other.roster, context=federation.context)
    refused(site, roster, Reason.EQUIVOCATION)


def test_malleated_bundle_signatures_are_the_same_roster():
    federation = Federation(5)
    site = federation.site(1)
    (dealt,) = site.feed(federation.roster)
    bundles = tuple(replace(signed, signature=b"other") for signed in federation.bundles)
    assert site.feed(replace(federation.roster, bundles=bundles)) == [dealt]


def test_the_shell_cannot_answer_what_was_not_asked():
    federation = Federation(5)
    attempt = federation.site(1).attempt
    with pytest.raises(UsageError, match="nobody asked"):
        attempt.handle(c.Signed(c.Purpose.SHARE, b""), NOW_S)
    with pytest.raises(UsageError, match="nobody asked"):
        attempt.handle(c.Committed(c.Step.SHARE_KEYS), NOW_S)


def test_nothing_leaves_before_its_slot_is_durable():
    federation = Federation(5)
    site = federation.site(1)
    (sign,) = site.attempt.handle(federation.roster, NOW_S)
    assert isinstance(sign, c.Sign)
    assert site.attempt.handle(federation.roster, NOW_S) == [], "in progress: nothing twice"
    signature = site.key.sign(sign.message)
    (commit,) = site.attempt.handle(c.Signed(sign.purpose, signature), NOW_S)
    assert isinstance(commit, c.Commit)
    assert not commit.charge
    (send,) = site.attempt.handle(c.Committed(c.Step.SHARE_KEYS), NOW_S)
    assert isinstance(send.message, DealtShares)


def test_no_slot_and_no_repr_shows_a_secret():
    federation = Federation(5)
    federation.run({2: 1}, silent=True)
    for site in federation.sites:
        secrets = site.secrets
        for secret in (
            secrets.bundle.seed,
            secrets.bundle.mask_seed,
            secrets.bundle.transport_seed,
            secrets.self_mask_seed,
            secrets.coefficient_seed,
        ):
            assert all(secret not in slot for slot in site.slots.values())
            assert secret.hex() not in repr(secrets)
            assert repr(secret) not in repr(secrets)
        assert all(repr(term.key) not in repr(term) for term in site.terms)
        assert all(repr(t.key) not in repr(c.MaskAndUpload(site.terms)) for t in site.terms)
