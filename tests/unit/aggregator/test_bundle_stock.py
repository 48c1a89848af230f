"""Bundles are checked when they come, used once, in order, and never for another instance."""

import dataclasses

import pytest

from aggregator.bundle_stock import BundleStock
from privacy.errors import PeerError, Reason
from privacy.secagg.keys import P256
from privacy.secagg.messages import SignedBundle
from privacy.secagg.statements import bundle_statement
from tests.support.secagg_harness import NOW_S, signed_bundle, signer


def key(name):
    return signer(P256.name, name)


def stock(target=4, *sites):
    made = BundleStock(P256, "c", target)
    for site in sites or ("a",):
        made.connect(key(site).fingerprint, signed_bundle(P256, site, 1).bundle.instance_id)
    return made


def add(made, site, *bundles, spki=None):
    me = key(site)
    made.add(me.fingerprint, spki or me.spki, bundles, NOW_S)


def refused(made, site, *bundles, spki=None):
    with pytest.raises(PeerError) as caught:
        add(made, site, *bundles, spki=spki)
    return caught.value.reason


def changed(site, serial, **changes):
    bundle = dataclasses.replace(signed_bundle(P256, site, serial).bundle, **changes)
    return SignedBundle(bundle, key(site).sign(bundle_statement(bundle)))


def test_taken_once_in_order():
    made = stock()
    add(made, "a", *(signed_bundle(P256, "a", serial) for serial in (1, 2, 3)))
    me = key("a").fingerprint
    taken = [made.take(me, NOW_S) for _ in range(4)]
    assert [signed and signed.bundle.serial for signed in taken] == [1, 2, 3, None]
    assert made.take(key("b").fingerprint, NOW_S) is None


def test_refill_is_asked_for_once_at_half():
    made = stock(4)
    me = key("a").fingerprint
    assert made.missing(me, NOW_S) == 4
    assert made.missing(me, NOW_S) == 0
    add(made, "a", *(signed_bundle(P256, "a", serial) for serial in range(1, 5)))
    assert made.missing(me, NOW_S) == 0
    made.take(me, NOW_S)
    assert made.missing(me, NOW_S) == 0
    made.take(me, NOW_S)
    assert (made.missing(me, NOW_S), made.missing(me, NOW_S)) == (2, 0)


def test_replayed_and_foreign_bundles_are_refused():
    made = stock(4, "a", "b")
    add(made, "a", signed_bundle(P256, "a", 2))
    assert refused(made, "a", signed_bundle(P256, "a", 2)) is Reason.REPLAY
    assert refused(made, "a", signed_bundle(P256, "a", 1)) is Reason.REPLAY
    made.take(key("a").fingerprint, NOW_S)
    assert refused(made, "a", signed_bundle(P256, "a", 2)) is Reason.REPLAY
    assert refused(made, "b", signed_bundle(P256, "a", 3)) is Reason.WRONG_CONTEXT
    assert refused(made, "a", changed("a", 3, consortium_id="X")) is Reason.WRONG_CONTEXT
    assert refused(made, "a", changed("a", 3, instance_id=b"x" * 16)) is Reason.WRONG_CONTEXT
    assert refused(made, "a", changed("a", 3, not_after_s=int(NOW_S) + 60)) is Reason.REPLAY
    assert refused(made, "c", signed_bundle(P256, "c", 1)) is Reason.WRONG_CONTEXT


def test_bad_signature_and_copied_keys_are_refused():
    made = stock(4, "a", "b")
    good = signed_bundle(P256, "a", 1)
    assert refused(made, "a", good, spki=key("b").spki) is Reason.BAD_SIGNATURE
    forged = SignedBundle(dataclasses.replace(good.bundle, serial=9), good.signature)
    assert refused(made, "a", forged) is Reason.BAD_SIGNATURE
    add(made, "a", good)
    # A site that puts another's key into its own bundle would stop that one's attempts.
    assert refused(made, "b", changed("b", 1, m_pk=good.bundle.m_pk)) is Reason.REPLAY
    assert refused(made, "b", changed("b", 1, m_pk=good.bundle.c_pk)) is Reason.REPLAY
    twice = changed("b", 1, m_pk=signed_bundle(P256, "b", 1).bundle.c_pk)
    assert refused(made, "b", twice) is Reason.REPLAY
    off_curve = changed("b", 1, m_pk=b"\x04" + bytes(63) + b"\x01")
    assert refused(made, "b", off_curve) is Reason.MALFORMED
    add(made, "b", signed_bundle(P256, "b", 1))


def test_no_more_than_there_is_room_for():
    made = stock(2)
    three = [signed_bundle(P256, "a", serial) for serial in (1, 2, 3)]
    assert refused(made, "a", *three) is Reason.TOO_LARGE
    assert made.count(key("a").fingerprint, NOW_S) == 2


def test_a_new_instance_voids_the_old_ones():
    made = stock()
    me = key("a").fingerprint
    add(made, "a", signed_bundle(P256, "a", 1))
    made.connect(me, signed_bundle(P256, "a", 1).bundle.instance_id)
    assert made.count(me, NOW_S) == 1
    made.connect(me, b"n" * 16)
    assert made.count(me, NOW_S) == 0
    add(made, "a", changed("a", 1, instance_id=b"n" * 16))


def test_what_expires_soon_is_not_handed_out():
    made = stock()
    add(made, "a", signed_bundle(P256, "a", 1))
    me = key("a").fingerprint
    assert made.take(me, signed_bundle(P256, "a", 1).bundle.not_after_s - 60) is None


def test_expired_bundles_are_no_stock_and_are_asked_for_anew():
    made = stock(2)
    me = key("a").fingerprint
    add(made, "a", *(signed_bundle(P256, "a", serial) for serial in (1, 2)))
    late_s = signed_bundle(P256, "a", 1).bundle.not_after_s - 500
    assert (made.missing(me, NOW_S), made.count(me, NOW_S)) == (0, 2)
    assert (made.count(me, late_s), made.missing(me, late_s)) == (0, 2)


def test_what_was_counted_can_be_taken_while_the_cohort_gathers():
    made = stock()
    me = key("a").fingerprint
    add(made, "a", signed_bundle(P256, "a", 1))
    counted_s = signed_bundle(P256, "a", 1).bundle.not_after_s - 601
    assert made.count(me, counted_s) == 1
    assert made.take(me, counted_s + 290) is not None
