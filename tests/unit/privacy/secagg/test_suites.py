"""The suites' parts, and the rules that only a suite with drawn secrets brings into an attempt."""

from dataclasses import replace

import pytest

from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg import commands as c
from privacy.secagg.cohort import check_distinct_keys
from privacy.secagg.encoding import Label
from privacy.secagg.keys import MLKEM768_X25519, P256, SUITES, X25519, suite_named
from privacy.secagg.messages import AbortRequest, AbortSignature, Roster, SignedBundle
from privacy.secagg.slots import SharesSlot, decode
from privacy.secagg.transport import Direction, Encapsulation
from tests.support import suites_naive as naive
from tests.support.secagg_harness import NOW_S, Federation, seed, signer

HYBRID = MLKEM768_X25519
RH = b"h" * 32
WAY = Direction(b"n" * 12, b"a")
EACH = pytest.mark.parametrize("suite", SUITES.values(), ids=lambda suite: suite.name)


def ends(suite, rh=RH):
    """Give both c_pk and both boxes of two sites."""
    seeds = seed("c", 1), seed("c", 2)
    transport = suite.transport
    return [transport.public_key(s) for s in seeds], [transport.box(s, rh) for s in seeds]


def sealed(suite, drawn=None):
    (_, theirs), (mine, other) = ends(suite)
    if suite.transport.draws and drawn is None:
        drawn = suite.transport.encapsulate(theirs)
    return mine.seal(theirs, WAY, b"share", drawn), other


@EACH
def test_a_share_opens_for_its_recipient_and_with_nothing_changed(suite):
    text, reader = sealed(suite)
    (dealer, own), _ = ends(suite)
    assert reader.open(dealer, WAY, text) == b"share"
    assert len(text) == len(b"share") + suite.transport.overhead
    for wrong in (
        (dealer, replace(WAY, nonce=b"m" * 12), text),
        (dealer, replace(WAY, aad=b"b"), text),
        (dealer, WAY, text[:-1]),
        (dealer, WAY, bytes([text[0] ^ 1]) + text[1:]),
        (dealer, WAY, text[:-1] + bytes([text[-1] ^ 1])),
        (dealer, WAY, b""),
        (own, WAY, text),
    ):
        with pytest.raises(PeerError):
            reader.open(*wrong)
    _, (_, elsewhere) = ends(suite, rh=b"g" * 32)
    with pytest.raises(PeerError, match="bad-share"):
        elsewhere.open(dealer, WAY, text)


def test_the_hybrid_key_binds_both_secrets_and_everything_that_was_sent():
    (dealer, theirs), (mine, reader) = ends(HYBRID)
    drawn = HYBRID.transport.encapsulate(theirs)
    text = mine.seal(theirs, WAY, b"share", drawn)
    # Another KEM secret under the same ciphertext, as one who broke only X25519 would have it.
    guessed = mine.seal(theirs, WAY, b"share", Encapsulation(bytes(32), drawn.ciphertext))
    assert guessed != text
    with pytest.raises(PeerError):
        reader.open(dealer, WAY, guessed)
    # Another agreement key beside the same KEM key, as one who broke only ML-KEM would have it.
    other = HYBRID.transport.public_key(seed("c", 3))
    with pytest.raises(PeerError):
        reader.open(other[:32] + dealer[32:], WAY, text)
    with pytest.raises(PeerError):
        reader.open(dealer[:32] + other[32:], WAY, text)


def test_the_library_and_the_naive_ml_kem_open_each_others():
    public = HYBRID.transport.public_key(seed("c", 2))
    drawn = HYBRID.transport.encapsulate(public)
    _, private = naive.kem_keys(naive.naive.hkdf(seed("c", 2), "kem-c", length=64))
    assert naive.decapsulate(private, drawn.ciphertext) == drawn.secret
    damaged = bytes([drawn.ciphertext[0] ^ 1]) + drawn.ciphertext[1:]
    assert naive.decapsulate(private, damaged) != drawn.secret


def test_draws_are_made_exactly_where_the_suite_makes_them():
    assert [suite.transport.draws for suite in SUITES.values()] == [False, False, True]
    (_, theirs), (mine, _) = ends(HYBRID)
    with pytest.raises(UsageError, match="needs a draw"):
        mine.seal(theirs, WAY, b"share", None)
    (_, theirs), (mine, _) = ends(X25519)
    with pytest.raises(UsageError, match="no draw"):
        mine.seal(theirs, WAY, b"share", Encapsulation(bytes(32), bytes(1088)))
    with pytest.raises(UsageError, match="draws nothing"):
        P256.transport.encapsulate(P256.transport.public_key(seed("c", 1)))


@pytest.mark.parametrize(
    "change",
    [
        lambda pk: pk[:-1],
        lambda pk: pk + b"\x00",
        lambda pk: pk[:32],
        lambda pk: b"\xff" * 32 + pk[32:],  # no canonical u
        lambda pk: pk[:32] + b"\xff" * 1184,  # coefficients not below q
    ],
)
def test_a_malformed_hybrid_key_is_refused(change):
    public = change(HYBRID.transport.public_key(seed("c", 1)))
    with pytest.raises(PeerError, match="malformed"):
        HYBRID.transport.key_identities(public)


def test_an_unknown_suite_is_named_with_those_that_there_are():
    with pytest.raises(UsageError, match="MLKEM768_X25519_ED25519_SHA256_AES256"):
        suite_named("ROT13")
    assert set(SUITES) == {suite_named(name).name for name in SUITES}


@pytest.mark.parametrize("part", [slice(0, 32), slice(32, None)])
def test_a_cohort_with_half_a_hybrid_key_twice_is_refused(part):
    bundles = list(Federation(4, suite=HYBRID).bundles)
    first, second = (signed.bundle for signed in bundles[:2])
    start, kem = second.c_pk[:32], second.c_pk[32:]
    copied = first.c_pk[part] + kem if part.start == 0 else start + first.c_pk[part]
    bundles[1] = SignedBundle(replace(second, c_pk=copied), b"")
    with pytest.raises(PeerError, match="repeats a key"):
        check_distinct_keys(HYBRID, bundles)


# --- an attempt ----------------------------------------------------------------------------------


def test_the_secrets_are_drawn_once_before_anything_is_signed_or_durable():
    fed = Federation(5, suite=HYBRID)
    machine = fed.site(2).attempt
    (ask,) = machine.handle(fed.roster, NOW_S)
    keys = [signed.bundle.c_pk for i, signed in enumerate(fed.bundles, 1) if i != 2]
    assert ask == c.Encapsulate(tuple(keys))
    assert machine.handle(fed.roster, NOW_S) == [], "the same roster again asks for nothing"
    drawn = tuple(map(HYBRID.transport.encapsulate, ask.public_keys))
    (sign,) = machine.handle(c.Encapsulated(drawn), NOW_S)
    assert sign.purpose is c.Purpose.SHARE
    with pytest.raises(UsageError, match="nobody asked for"):
        machine.handle(c.Encapsulated(drawn), NOW_S)


def test_other_suites_are_asked_for_no_draw():
    for suite in (P256, X25519):
        fed = Federation(4, suite=suite)
        (first,) = fed.site(1).attempt.handle(fed.roster, NOW_S)
        assert isinstance(first, c.Sign)


@pytest.mark.parametrize("count", [0, 3, 5])
def test_another_number_of_secrets_is_our_own_fault(count):
    fed = Federation(5, suite=HYBRID)
    machine = fed.site(1).attempt
    machine.handle(fed.roster, NOW_S)
    key = fed.bundles[1].bundle.c_pk
    drawn = tuple(HYBRID.transport.encapsulate(key) for _ in range(count))
    with pytest.raises(UsageError, match="were drawn"):
        machine.handle(c.Encapsulated(drawn), NOW_S)


def struck(site, event, crash):
    """Feed an event through a crash; give what leaves when it comes again."""
    site.crash_at = crash
    out = site.feed(event)
    if not site.crashed:
        return out
    assert out == []
    site.restart()
    return site.feed(event)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", list(c.Step))
def test_after_a_crash_the_same_ciphertexts_leave_though_they_were_drawn(step, when):
    """Before slot 1 nothing of what was drawn had left; from then on the slot has it."""
    fed, everyone = Federation(5, suite=HYBRID), (1, 2, 3, 4, 5)
    crashes = {at: (when, at) if at is step else None for at in c.Step}
    site = fed.site(1)
    (own,) = struck(site, fed.roster, crashes[c.Step.SHARE_KEYS])
    dealt = {1: own, **fed.deal_all((2, 3, 4, 5))}
    slot = decode(c.Step.SHARE_KEYS, site.slots[c.Step.SHARE_KEYS])
    assert isinstance(slot, SharesSlot)
    assert slot.ciphertexts == own.ciphertexts
    struck(site, fed.delivery(dealt, 1), crashes[c.Step.MASKED_UPDATE])
    for i in everyone[1:]:
        fed.site(i).feed(fed.delivery(dealt, i))
    chosen = fed.survivor_set(dealt, everyone)
    votes = [struck(site, chosen, crashes[c.Step.CONSISTENCY])[0]]
    votes += [fed.site(i).feed(chosen)[0] for i in everyone[1:]]
    (answer,) = struck(site, fed.quorum(votes), crashes[c.Step.UNMASK])
    assert len(answer.self_shares) == 5
    assert site.charges == 1
    site.restart()
    assert site.feed(fed.roster) == [own]


def test_no_drawn_secret_is_kept_in_a_slot():
    fed = Federation(4, suite=HYBRID)
    drawn = []
    machine = fed.site(1).attempt
    (ask,) = machine.handle(fed.roster, NOW_S)
    drawn = tuple(map(HYBRID.transport.encapsulate, ask.public_keys))
    (sign,) = machine.handle(c.Encapsulated(drawn), NOW_S)
    signature = fed.site(1).key.sign(sign.message)
    (commit,) = machine.handle(c.Signed(sign.purpose, signature), NOW_S)
    assert all(one.ciphertext in commit.slot for one in drawn)
    assert not any(one.secret in commit.slot for one in drawn)
    assert not any(one.secret.hex() in repr(one) for one in drawn)


def test_an_attempt_that_dies_while_secrets_are_drawn_reveals_nothing():
    fed = Federation(5, suite=HYBRID)
    site = fed.site(1)
    (ask,) = site.attempt.handle(fed.roster, NOW_S)
    todo = site.attempt.handle(AbortRequest(fed.context.digest(), "stop"), NOW_S)
    assert [type(command) for command in todo] == [c.Abort, c.Erase]
    drawn = tuple(map(HYBRID.transport.encapsulate, ask.public_keys))
    assert site.attempt.handle(c.Encapsulated(drawn), NOW_S) == []
    assert site.slots == {}


def test_another_roster_while_secrets_are_drawn_kills_the_attempt():
    fed, other = Federation(5, suite=HYBRID), Federation(5, suite=HYBRID, serial=2)
    site = fed.site(1)
    site.attempt.handle(fed.roster, NOW_S)
    different = Roster(fed.context, (fed.bundles[0], *other.bundles[1:]), fed.plan)
    out = site.feed(different)
    assert out == []
    assert site.aborted.reason is Reason.EQUIVOCATION
    assert site.erased


def test_a_key_of_low_order_kills_the_attempt_and_not_the_site():
    """It passes as canonical, and is found when it is used: the frame is not dropped silently."""
    fed = Federation(5, suite=HYBRID)
    bad = fed.bundles[4].bundle
    bad = replace(bad, c_pk=bytes(32) + bad.c_pk[32:])
    key = signer(HYBRID.name, fed.names[4])
    signed = SignedBundle(bad, key.sign(b"tidegate/sa/1 signature\x00" + bad.body()))
    site = fed.site(1)
    out = site.feed(Roster(fed.context, (*fed.bundles[:4], signed), fed.plan))
    assert site.aborted.reason is Reason.MALFORMED
    assert site.erased
    assert all(isinstance(message, AbortSignature) for message in out)


@EACH
def test_a_shared_key_of_masks_is_the_same_from_both_ends(suite):
    a, b = (suite.private_key(seed("m", k), Label.MASK_SCALAR) for k in (1, 2))
    assert suite.agree(a, suite.public_key(b)) == suite.agree(b, suite.public_key(a))
