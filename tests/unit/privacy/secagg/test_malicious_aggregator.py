"""A malicious aggregator, through the wire messages: deliveries and survivor sets."""

from dataclasses import replace

import pytest

from privacy.errors import PeerError, Reason
from privacy.secagg import commands as c
from privacy.secagg.messages import (
    AbortRequest,
    AbortSignature,
    SurvivorSignature,
)
from tests.support.secagg_harness import (
    NOW_S,
    Federation,
    refused,
)

ALL = (1, 2, 3, 4, 5)


# --- step 2 ---------------------------------------------------------------------------------------


def test_a_replayed_bundle_cannot_play_a_site():
    # The aggregator holds site 5's bundle, not its signing key: step 1 must be signed.
    federation = Federation(5)
    dealt = federation.deal_all()
    forged = replace(dealt[5], signature=federation.bundles[4].signature)
    delivery = federation.delivery({**dealt, 5: forged}, 1)
    refused(federation.site(1), delivery, Reason.BAD_SIGNATURE)
    assert federation.site(1).sent[-1].accused == federation.members[4]


def test_a_step_1_signature_of_another_attempt_is_refused():
    federation, old = Federation(5), Federation(5, attempt=2)
    dealt, replayed = federation.deal_all(), old.deal_all()
    refused(
        federation.site(1),
        federation.delivery({**dealt, 5: replayed[5]}, 1),
        Reason.BAD_SIGNATURE,
    )


@pytest.mark.parametrize(
    "field", ["ciphertext", "self_seed", "self_share", "mask_share", "path", "signature"]
)
def test_a_delivery_with_one_bit_flipped_is_refused_uncharged(field):
    federation = Federation(5)
    dealt = federation.deal_all()
    delivery = federation.delivery(dealt, 1)
    share = delivery.shares[2]

    def flip(raw):
        return raw[:-1] + bytes([raw[-1] ^ 1])

    value = getattr(share, field)
    bent = (*value[:-1], flip(value[-1])) if field == "path" else flip(value)
    shares = (*delivery.shares[:2], replace(share, **{field: bent}), *delivery.shares[3:])
    federation.site(1).feed(replace(delivery, shares=shares))
    assert federation.site(1).aborted.reason is Reason.BAD_SIGNATURE
    assert federation.site(1).upload is None
    assert federation.site(1).charges == 0


@pytest.mark.parametrize("change", [lambda p: p[:-1], lambda p: (*p, p[0]), lambda p: ()])
def test_a_path_of_another_length_is_refused(change):
    federation = Federation(5)
    delivery = federation.delivery(federation.deal_all(), 1)
    share = delivery.shares[0]
    bent = replace(share, path=change(share.path))
    shares = replace(delivery, shares=(bent, *delivery.shares[1:]))
    refused(federation.site(1), shares, Reason.MALFORMED)


def test_what_was_dealt_to_another_recipient_is_refused():
    federation = Federation(5)
    dealt = federation.deal_all()
    mine, other = federation.delivery(dealt, 1), federation.delivery(dealt, 2)
    theirs = next(s for s in other.shares if s.sender == federation.members[4])
    shares = replace(mine, shares=(*mine.shares[:-1], theirs))
    refused(federation.site(1), shares, Reason.BAD_SIGNATURE)


def test_a_delivery_holding_a_dealer_twice_or_the_site_itself_is_refused():
    for extra in (1, 2):
        federation = Federation(5)
        dealt = federation.deal_all()
        delivery = federation.delivery(dealt, 1)
        own = federation.delivery(dealt, 2).shares[0]
        again = own if extra == 1 else delivery.shares[0]
        bent = replace(delivery, shares=(*delivery.shares, again))
        refused(federation.site(1), bent, Reason.MALFORMED)


def test_u2_below_the_thresholds_is_refused_before_charging():
    federation = Federation(5)
    dealt = federation.deal_all()
    delivery = federation.delivery(dealt, 1, only=(1, 2, 3))
    refused(federation.site(1), delivery, Reason.BELOW_THRESHOLD, "not charged")
    assert federation.site(1).charges == 0


def test_u2_below_min_cohort_is_refused_before_charging():
    federation = Federation(5, min_cohort=5)
    dealt = federation.deal_all()
    delivery = federation.delivery(dealt, 1, only=(1, 2, 3, 4))
    refused(federation.site(1), delivery, Reason.BELOW_THRESHOLD, "not charged")
    assert federation.site(1).charges == 0


def test_later_ciphertexts_are_not_taken_in():
    # U2_i is who was decrypted first; a fifth ciphertext afterwards kills, it does not extend.
    federation = Federation(5)
    dealt = federation.deal_all()
    site = federation.site(1)
    site.feed(federation.delivery(dealt, 1, only=(1, 2, 3, 4)))
    assert len(site.terms) == 4
    refused(site, federation.delivery(dealt, 1), Reason.EQUIVOCATION)


def test_asking_step_2_twice_never_gives_two_vectors():
    # Two U2 gave away a pairwise mask: y - y' = PRG(pair).
    federation = Federation(5)
    dealt = federation.deal_all()
    site = federation.site(1)
    site.feed(federation.delivery(dealt, 1))
    site.feed(federation.delivery(dealt, 1))
    uploads = [m for m in site.sent if hasattr(m, "values_d")]
    assert len(uploads) == 2
    assert uploads[0].values_d.tolist() == uploads[1].values_d.tolist()
    refused(site, federation.delivery(dealt, 1, only=(1, 3, 4, 5)), Reason.EQUIVOCATION)
    assert site.charges == 1


def test_the_charge_is_durable_before_the_first_byte_leaves():
    federation = Federation(5)
    dealt = federation.deal_all()
    site = federation.site(1)
    commands = site.attempt.handle(federation.delivery(dealt, 1), NOW_S)
    assert [type(command) for command in commands] == [c.Commit]
    assert commands[0].charge
    assert commands[0].step is c.Step.MASKED_UPDATE
    after = site.attempt.handle(c.Committed(c.Step.MASKED_UPDATE), NOW_S)
    assert [type(command) for command in after] == [c.MaskAndUpload]


def test_an_exhausted_budget_lets_nothing_leave():
    federation = Federation(5)
    dealt = federation.deal_all()
    site = federation.site(1)
    site.budget = 0
    site.feed(federation.delivery(dealt, 1))
    assert site.aborted.reason is Reason.BUDGET_EXHAUSTED
    assert site.upload is None
    assert isinstance(site.sent[-1], AbortSignature)


# --- step 3 ---------------------------------------------------------------------------------------


def ready_for_3(**kwargs):
    federation = Federation(5, **kwargs)
    federation.upload_all()
    return federation


@pytest.mark.parametrize(
    ("dealt", "survivors", "reason"),
    [
        ((1, 2, 3, 4), (1, 2, 3, 4), Reason.EQUIVOCATION),
        ((1, 2, 3, 4, 5, 6), ALL, Reason.MALFORMED),
        ((5, 4, 3, 2, 1), ALL, Reason.MALFORMED),
        (ALL, (1, 2, 3), Reason.BELOW_THRESHOLD),
        (ALL, (2, 3, 4, 5), Reason.POLICY),
        (ALL, (1, 2, 3, 4, 6), Reason.MALFORMED),
        (ALL, (1, 1, 2, 3, 4), Reason.MALFORMED),
        (ALL, (5, 4, 3, 2, 1), Reason.MALFORMED),
        (ALL, (0, 1, 2, 3, 4), Reason.MALFORMED),
    ],
)
def test_a_bad_survivor_set_is_never_signed(dealt, survivors, reason):
    federation = ready_for_3()
    refused(federation.site(1), federation.survivor_set(dealt, survivors), reason)


def test_u2_must_be_the_sites_own_u2_in_the_complete_graph_too():
    # Site 1 masked with 1-4; told that 5 was in U2 as well it would reveal a share of m_5, and 5's
    # pairwise masks with others would come off.
    federation = Federation(5)
    dealt = federation.deal_all()
    federation.site(1).feed(federation.delivery(dealt, 1, only=(1, 2, 3, 4)))
    refused(
        federation.site(1), federation.survivor_set(ALL, (1, 2, 3, 4)), Reason.EQUIVOCATION, "U2"
    )


def test_u3_below_min_cohort_is_never_signed():
    federation = ready_for_3(min_cohort=5)
    refused(
        federation.site(1), federation.survivor_set(ALL, (1, 2, 3, 4)), Reason.POLICY, "min_cohort"
    )


def test_no_site_signs_a_u3_below_n_min():
    federation = Federation(6, 1, 6)
    federation.upload_all()
    message = federation.survivor_set(range(1, 7), (1, 2, 3, 4, 5))
    refused(federation.site(1), message, Reason.BELOW_THRESHOLD, "N_min")


def test_two_survivor_sets_are_never_both_signed():
    # Signing two U3 gave the sum of 2 honest sites.
    federation = ready_for_3()
    site = federation.site(1)
    (first,) = site.feed(federation.survivor_set(ALL, ALL))
    assert isinstance(first, SurvivorSignature)
    (again,) = site.feed(federation.survivor_set(ALL, ALL))
    assert again == first
    refused(site, federation.survivor_set(ALL, (1, 2, 3, 4)), Reason.EQUIVOCATION)
    votes = [m for m in site.sent if isinstance(m, SurvivorSignature)]
    assert set(votes) == {first}
    assert not any(isinstance(m, AbortSignature) for m in site.sent), "slot 3 holds one of the two"


def test_no_survivor_set_is_signed_after_an_abort():
    federation = ready_for_3()
    site = federation.site(1)
    (signature,) = site.feed(AbortRequest(federation.context.digest(), "why not"))
    assert isinstance(signature, AbortSignature)
    with pytest.raises(PeerError, match="stopped"):
        site.feed(federation.survivor_set(ALL, ALL))
    assert site.feed(AbortRequest(federation.context.digest(), "again")) == [signature]


def test_an_abort_request_after_a_u3_gets_that_vote_and_no_abort():
    federation = ready_for_3()
    site = federation.site(1)
    (vote,) = site.feed(federation.survivor_set(ALL, ALL))
    assert site.feed(AbortRequest(federation.context.digest(), "too late")) == [vote]
    with pytest.raises(PeerError, match="stopped"):
        site.feed(federation.quorum([]))


def test_an_abort_while_the_u3_is_being_written_signs_nothing():
    federation = ready_for_3()
    site = federation.site(1)
    site.hold_commits = True
    assert site.feed(federation.survivor_set(ALL, ALL)) == []
    assert site.feed(AbortRequest(federation.context.digest(), "now")) == []
    assert site.aborted is not None
    assert site.feed(c.Committed(c.Step.CONSISTENCY)) == []
    # The slot became durable: after a restart it is still the vote, never an abort.
    site.hold_commits = False
    site.aborted = None
    assert isinstance(site.restart(secrets=site.secrets)[0], SurvivorSignature)


def test_adjacent_survivor_sets_are_refused_without_noise():
    members = Federation(6, 1, 5).members
    for previous, ok in ((members, False), (members[:5], True), (members[1:], False)):
        federation = Federation(6, 1, 5, previous_survivors=frozenset(previous))
        federation.upload_all()
        site = federation.site(1)
        message = federation.survivor_set(range(1, 7), (1, 2, 3, 4, 5))
        if ok:
            assert isinstance(site.feed(message)[0], SurvivorSignature)
        else:
            refused(site, message, Reason.POLICY, "lay one or two bare")


@pytest.mark.parametrize(("others", "ok"), [(1, False), (3, False), (4, False), (5, True)])
def test_friends_that_come_and_go_do_not_make_sums_differ_enough(others, ok):
    # c = 2. The last sum held two friends and one more that this one lacks: less what the friends
    # put in, which the aggregator knows, the sums differ by the update of that one.
    members = Federation(8, 2, 6).members
    elsewhere = [bytes([number]) * 32 for number in range(others)]
    previous = frozenset((*members[:6], *elsewhere))
    federation = Federation(8, 2, 6, previous_survivors=previous)
    federation.upload_all()
    site, message = federation.site(1), federation.survivor_set(range(1, 9), range(1, 7))
    if ok:
        assert isinstance(site.feed(message)[0], SurvivorSignature)
    else:
        refused(site, message, Reason.POLICY, "lay one or two bare")
