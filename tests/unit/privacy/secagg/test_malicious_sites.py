"""Malicious sites, through the wire messages: the culprit is named, the round goes on or aborts."""

from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from privacy.errors import Reason
from privacy.secagg import statements
from privacy.secagg.commands import AbortAttempt, Blame, GiveUp, Start
from privacy.secagg.encoding import Label
from privacy.secagg.keys import P256, hkdf
from privacy.secagg.messages import (
    AbortSignature,
    DealtShares,
    RevealedShare,
    SurvivorSignature,
    UnmaskShares,
)
from privacy.secagg.server import Phase
from privacy.secagg.shamir import PRIME
from tests.support.secagg_harness import NOW_S, Federation

CHEAT = 3


def run(change, kind, gone=None):
    """Run with site 3 changing its message of one kind."""
    federation = Federation(5)

    def tamper(index, message):
        if index == CHEAT and isinstance(message, kind):
            return change(federation, message)
        return message

    return federation, federation.run(gone, silent=True, tamper=tamper)


def resign(federation, dealt):
    """Sign what a cheating dealer made, with its own key: the signature is good."""
    site = federation.site(CHEAT)
    cohort = site.attempt.cohort
    tree = statements.share_tree(cohort.graph.holders(CHEAT), dealt.ciphertexts, dealt.commitments)
    statement = statements.share_statement(cohort.rh, tree.root, dealt.commitments.self_seed)
    return replace(dealt, signature=site.key.sign(statement))


def exact_without_cheat(federation, outcome):
    """The round went on without site 3, exactly."""
    assert [federation.members.index(s) + 1 for s in outcome.survivors] == [1, 2, 4, 5]
    assert outcome.total_D.tolist() == federation.expected_D(outcome.survivors).tolist()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda f, m: replace(m, signature=m.signature[:-1]), Reason.BAD_SIGNATURE),
        (lambda f, m: replace(m, signature=b""), Reason.BAD_SIGNATURE),
        (lambda f, m: replace(m, signature=bytes(100)), Reason.BAD_SIGNATURE),
        (lambda f, m: replace(m, ciphertexts=m.ciphertexts[:-1]), Reason.MALFORMED),
        (lambda f, m: replace(m, ciphertexts=(*m.ciphertexts, b"")), Reason.MALFORMED),
        (
            lambda f, m: replace(m, ciphertexts=(m.ciphertexts[0] + b"x", *m.ciphertexts[1:])),
            Reason.MALFORMED,
        ),
        (
            lambda f, m: replace(m, ciphertexts=(m.ciphertexts[0][:-1], *m.ciphertexts[1:])),
            Reason.MALFORMED,
        ),
        (
            lambda f, m: replace(m, commitments=replace(m.commitments, self_seed=b"short")),
            Reason.MALFORMED,
        ),
        (
            lambda f, m: replace(
                m, commitments=replace(m.commitments, mask_shares=m.commitments.mask_shares[1:])
            ),
            Reason.MALFORMED,
        ),
        (
            lambda f, m: replace(m, commitments=replace(m.commitments, self_seed=bytes(32))),
            Reason.BAD_SIGNATURE,
        ),
    ],
)
def test_bad_dealt_shares_name_the_dealer_and_the_round_goes_on(change, reason):
    federation, outcome = run(change, DealtShares)
    assert outcome.blamed == [(federation.members[CHEAT - 1], reason)]
    exact_without_cheat(federation, outcome)


def encrypt_again(federation, dealt, recipient, plaintext=None, aad=None):
    """Encrypt another pair of shares, or with another AAD, for one recipient; sign it well."""
    site = federation.site(CHEAT)
    rh = site.attempt.cohort.rh
    seed = site.secrets.bundle.transport_seed
    c_key = P256.private_key(seed, Label.TRANSPORT_SCALAR)
    peer = federation.bundles[recipient - 1].bundle.c_pk
    cipher = AESGCM(hkdf(P256.agree(c_key, peer), Label.SHARE_KEY, rh))
    nonce, good_aad = (
        statements.share_nonce(CHEAT, recipient),
        statements.share_aad(rh, CHEAT, recipient),
    )
    old = cipher.decrypt(nonce, dealt.ciphertexts[recipient - 1], good_aad)
    sealed = cipher.encrypt(nonce, plaintext or old, aad or good_aad)
    ciphertexts = list(dealt.ciphertexts)
    ciphertexts[recipient - 1] = sealed
    return resign(federation, replace(dealt, ciphertexts=tuple(ciphertexts)))


@pytest.mark.parametrize(
    "extra",
    [
        {"aad": b"another attempt"},
        {"aad": statements.share_aad(bytes(32), CHEAT, 1)},
        {"plaintext": bytes(66)},
        {"plaintext": PRIME.to_bytes(33, "big") * 2},
    ],
    ids=["wrong AAD", "AAD of another roster", "misses its commitment", "not below the prime"],
)
def test_a_bad_share_is_refused_by_its_recipient_who_accuses_the_dealer(extra):
    federation, outcome = run(lambda f, m: encrypt_again(f, m, 1, **extra), DealtShares)
    recipient = federation.site(1)
    assert recipient.aborted.reason is Reason.BAD_SHARE
    assert recipient.charges == 0
    assert recipient.upload is None
    assert outcome.accusations == [(recipient.me, federation.members[CHEAT - 1])]
    # The others go on: four survivors are enough.
    assert [federation.members.index(s) + 1 for s in outcome.survivors] == [2, 3, 4, 5]
    assert outcome.total_D.tolist() == federation.expected_D(outcome.survivors).tolist()


def deal_inconsistently(federation, dealt, kind):
    """Commit to, and deal, shares of one kind that lie on no polynomial of degree t - 1."""
    site = federation.site(CHEAT)
    rh = site.attempt.cohort.rh
    crypto = site.attempt._state.keys
    seeds = {
        Label.SELF_SHARE_COMMITMENT: site.secrets.self_mask_seed,
        Label.MASK_SHARE_COMMITMENT: site.secrets.bundle.mask_seed,
    }
    shares = {k: list(crypto._shares(value, k)) for k, value in seeds.items()}
    bent = int.from_bytes(shares[kind][0], "big") ^ 1
    shares[kind][0] = bent.to_bytes(33, "big")
    commitments = replace(
        dealt.commitments,
        **{
            name: tuple(
                statements.share_commitment(k, rh, CHEAT, holder, share)
                for holder, share in enumerate(shares[k], start=1)
            )
            for name, k in (
                ("self_shares", Label.SELF_SHARE_COMMITMENT),
                ("mask_shares", Label.MASK_SHARE_COMMITMENT),
            )
        },
    )
    plaintext = shares[Label.SELF_SHARE_COMMITMENT][0] + shares[Label.MASK_SHARE_COMMITMENT][0]
    dealt = replace(dealt, commitments=commitments)
    return encrypt_again(federation, dealt, 1, plaintext=plaintext)


@pytest.mark.parametrize(
    ("kind", "gone"),
    [(Label.SELF_SHARE_COMMITMENT, {5: 0}), (Label.MASK_SHARE_COMMITMENT, {CHEAT: 1})],
    ids=["b of a survivor", "m of a drop-out"],
)
def test_a_dealer_whose_shares_make_no_secret_is_named_and_nothing_comes_out(kind, gone):
    federation, outcome = run(lambda f, m: deal_inconsistently(f, m, kind), DealtShares, gone)
    assert outcome.server.phase is Phase.ABORTED
    assert outcome.abort.reason is Reason.BAD_SHARE
    assert outcome.abort.culprits == (federation.members[CHEAT - 1],)
    assert outcome.total_D is None
    assert outcome.terms == ()


def bend(shares, at=0):
    value = shares[at].value
    bent = RevealedShare(shares[at].owner, value[:-1] + bytes([value[-1] ^ 1]))
    return (*shares[:at], bent, *shares[at + 1 :])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda f, m: replace(m, self_shares=bend(m.self_shares)), Reason.BAD_SHARE),
        (lambda f, m: replace(m, mask_shares=bend(m.mask_shares)), Reason.BAD_SHARE),
        (lambda f, m: replace(m, mask_shares=()), Reason.MALFORMED),
        (lambda f, m: replace(m, self_shares=m.self_shares[::-1]), Reason.MALFORMED),
        (lambda f, m: replace(m, mask_shares=m.self_shares[:1]), Reason.MALFORMED),
        (
            lambda f, m: replace(m, self_shares=(*m.self_shares, *m.mask_shares)),
            Reason.MALFORMED,
        ),
    ],
)
def test_a_malicious_holder_is_named(change, reason):
    # n = 5 with t = 4: one drop-out whose m is wanted, and the cheat, leave too few answers.
    federation, outcome = run(change, UnmaskShares, {5: 1})
    assert outcome.blamed == [(federation.members[CHEAT - 1], reason)]
    assert outcome.abort.culprits == (federation.members[CHEAT - 1],)
    assert outcome.total_D is None


def test_a_malicious_holder_does_not_stop_a_round_with_answers_to_spare():
    federation, outcome = run(
        lambda f, m: replace(m, self_shares=bend(m.self_shares)), UnmaskShares
    )
    assert outcome.blamed == [(federation.members[CHEAT - 1], Reason.BAD_SHARE)]
    assert len(outcome.survivors) == 5
    assert outcome.total_D.tolist() == federation.expected_D(outcome.survivors).tolist()


def test_a_bad_vote_names_the_voter_and_the_round_goes_on():
    federation, outcome = run(
        lambda f, m: replace(m, signature=f.site(CHEAT).key.sign(statements.SIGNED_PREFIX)),
        SurvivorSignature,
    )
    assert outcome.blamed == [(federation.members[CHEAT - 1], Reason.BAD_SIGNATURE)]
    assert len(outcome.survivors) == 5
    assert outcome.total_D.tolist() == federation.expected_D(outcome.survivors).tolist()


def test_a_forged_abort_is_no_abort():
    federation = Federation(5)
    server = federation.new_server()
    server.handle(Start(), 0.0)
    forged = AbortSignature(federation.context.digest(), federation.members[0], b"no")
    commands = server.handle(forged, 0.0)
    assert [type(command) for command in commands] == [Blame]
    assert server.votes == ()


def test_a_wrong_vector_is_a_wrong_sum_and_nobody_sees_it():
    # Not covered by the protocol (garbage in): stated so that nobody relies on it.
    federation = Federation(5)

    def tamper(index, message):
        if index == CHEAT and hasattr(message, "values_d"):
            federation.site(CHEAT).upload = replace(
                message, values_d=(message.values_d + np.uint32(1)) & np.uint32(2**20 - 1)
            )
        return message

    outcome = federation.run(tamper=tamper)
    expected = (federation.expected_D(outcome.survivors) + 1) % 2**20
    assert outcome.total_D.tolist() == expected.tolist()


def test_bad_aborts_without_end_name_a_site_once_and_count_for_nothing():
    federation = Federation(5)
    server = federation.new_server()
    server.handle(Start(), NOW_S)
    bad = AbortSignature(server.cohort.ctx, federation.members[CHEAT - 1], b"s" * 70)
    for _ in range(3):
        (blame,) = server.handle(bad, NOW_S)
        assert (blame.site, blame.reason) == (bad.sender, Reason.BAD_SIGNATURE)
    abort, *_ = server.handle(GiveUp(Reason.TIMEOUT, "enough"), NOW_S)
    assert isinstance(abort, AbortAttempt)
    server.handle(bad, NOW_S)
    assert abort.culprits == (bad.sender,) == tuple(server._state.culprits)
    assert not server.votes
