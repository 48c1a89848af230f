"""Encoding, keys, Shamir, thresholds and slots on their own."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg import shamir
from privacy.secagg.encoding import Label, dec, enc, hash_of
from privacy.secagg.keys import (
    P256,
    X25519,
    BundleSecrets,
    SoftwareSigner,
    fingerprint_of,
    suite_named,
)
from privacy.secagg.rules import thresholds
from privacy.secagg.statements import SIGNED_PREFIX, index_set_hash
from tests.support import secagg_naive as naive
from tests.support.secagg_harness import Federation, seed, signer


def test_labels_are_distinct():
    assert len({label.value for label in Label}) == len(Label.__members__)


def test_different_tuples_never_share_an_encoding():
    parts = [(), ("",), (b"",), (0,), ("a", "b"), ("ab",), (b"ab",), ("a", b"b"), (1, 1), (257,)]
    assert len({enc(*one) for one in parts}) == len(parts)
    assert len({hash_of(*one) for one in parts}) == len(parts)


_NEAR_THE_TABLES = st.integers(0, 2050) | st.integers(0, 2**64)
_PARTS = (
    _NEAR_THE_TABLES
    | st.sampled_from(Label)
    | st.text(max_size=5)
    | st.binary(max_size=40)
    | st.sampled_from([bytes(size) for size in (1023, 1024, 1025)])
)


@settings(max_examples=200, deadline=None)
@given(st.lists(_PARTS, max_size=6))
def test_what_is_looked_up_is_encoded_like_everything_else(parts):
    assert enc(*parts) == naive.encode(*parts)
    assert dec(enc(*parts)) == tuple(parts)


def test_a_negative_number_has_no_encoding():
    with pytest.raises(OverflowError):
        enc(-1)


def test_index_sets_hash_by_content_not_by_order():
    assert index_set_hash([1, 2, 12]) == index_set_hash([12, 1, 2])
    assert index_set_hash([1, 2, 12]) != index_set_hash([1, 21, 2])


def test_dec_refuses_what_is_not_minimal():
    with pytest.raises(PeerError):
        dec(enc(1) + b"i")


@pytest.mark.parametrize("suite", [P256, X25519], ids=lambda s: s.name)
def test_both_ends_agree_and_signatures_verify(suite):
    a, b = (suite.private_key(seed(name), Label.MASK_SCALAR) for name in "ab")
    assert suite.agree(a, suite.public_key(b)) == suite.agree(b, suite.public_key(a))
    assert len(suite.public_key(a)) == suite.masks.public_key_bytes
    other = suite.private_key(seed("a"), Label.TRANSPORT_SCALAR)
    assert suite.public_key(other) != suite.public_key(a), "one seed, two labels, two keys"
    key = signer(suite.name, "x")
    message = SIGNED_PREFIX + b"m"
    signature = key.sign(message)
    assert key.sign(message) == signature, "deterministic: RFC 6979, RFC 8032"
    suite.verify(key.spki, signature, message)
    for bad in (message + b"x", message[:-1]):
        with pytest.raises(PeerError, match="bad-signature"):
            suite.verify(key.spki, signature, bad)
    with pytest.raises(PeerError, match="bad-signature"):
        suite.verify(signer(suite.name, "y").spki, signature, message)
    assert fingerprint_of(key.spki) == key.fingerprint


@pytest.mark.parametrize(
    "public",
    [
        bytes(31),
        bytes(33),
        b"\xff" * 32,
        (2**255 - 19).to_bytes(32, "little"),
        (9 + 2**255).to_bytes(32, "little"),
    ],
)
def test_x25519_keys_have_one_encoding(public):
    with pytest.raises(PeerError, match="malformed"):
        X25519.key_identity(public)


def test_x25519_keys_of_low_order_are_refused():
    private = X25519.private_key(seed("a"), Label.MASK_SCALAR)
    low = 325606250916557431795983626356110631294008115727848805560023387167927233504
    for public in (bytes(32), (1).to_bytes(32, "little"), low.to_bytes(32, "little")):
        with pytest.raises(PeerError, match="low order"):
            X25519.agree(private, public)
        with pytest.raises(PeerError, match="low order"):
            X25519.key_identity(public)


def test_an_x25519_key_plus_a_point_of_low_order_is_the_same_key():
    # u(Q + (0, 0)) = 1/u(Q): other bytes, on curve and twist, and the same secret with everybody.
    prime = 2**255 - 19
    for u in range(2, 40):
        public = u.to_bytes(32, "little")
        twin = pow(u, -1, prime).to_bytes(32, "little")
        secrets = {
            X25519.agree(X25519.private_key(seed("x", u, k), Label.MASK_SCALAR), key)
            for k in range(2)
            for key in (public, twin)
        }
        assert len(secrets) == 2, "two private keys, one secret with each"
        assert X25519.key_identity(twin) == X25519.key_identity(public)
        other = (u + 40).to_bytes(32, "little")
        assert X25519.key_identity(other) != X25519.key_identity(public)


def test_suites_do_not_mix():
    p256, ed25519 = signer(P256.name, "x"), signer(X25519.name, "x")
    with pytest.raises(UsageError, match="not P-256"):
        P256.verify(ed25519.spki, b"", b"")
    with pytest.raises(UsageError, match="not Ed25519"):
        X25519.verify(p256.spki, b"", b"")
    with pytest.raises(UsageError, match="no SPKI"):
        P256.verify(b"junk", b"", b"")
    with pytest.raises(UsageError, match="unknown"):
        suite_named("NULL")
    assert suite_named("P256_SHA256_AES256") is P256
    x = X25519.private_key(seed("a"), Label.MASK_SCALAR)
    with pytest.raises(UsageError, match="P-256 private key"):
        P256.agree(x, b"")


def test_secrets_do_not_show():
    secrets = BundleSecrets(seed("a"))
    assert "seed" not in repr(secrets)
    assert repr(SoftwareSigner(signer(P256.name, "x")._key)).startswith("SoftwareSigner(")
    with pytest.raises(UsageError, match="31 bytes"):
        BundleSecrets(bytes(31))


def test_the_transport_key_is_not_derivable_from_what_is_shared():
    # m's seed is reconstructed by others after a drop-out; c's must not follow from it.
    secrets = BundleSecrets(seed("a"))
    assert len({secrets.mask_seed, secrets.transport_seed, secrets.graph_reveal}) == 3
    shared = BundleSecrets(secrets.mask_seed)
    assert secrets.transport_seed not in {
        shared.mask_seed,
        shared.transport_seed,
        shared.graph_reveal,
    }


def test_fewer_than_t_shares_fit_every_secret():
    # t - 1 shares and any secret lie on a polynomial: perfect hiding, shown by interpolation.
    higher = shamir.coefficients(seed("c"), 3, "x")
    shares = dict(enumerate(shamir.split(seed("s"), higher, range(1, 6)), start=1))
    three = {x: shares[x] for x in (1, 3, 5)}
    found = set()
    for fourth in range(50):
        found.add(shamir.combine({**three, 4: fourth.to_bytes(33, "big")}, 4))
    assert len(found) == 50


def test_shares_at_the_largest_ranks_are_those_of_the_plain_polynomial():
    higher, holders = shamir.coefficients(seed("c"), 133, "x"), (1, 2, 255, 256, 999, 1000)
    terms = (int.from_bytes(seed("s"), "big"), *higher)
    plain = [sum(a * x**k for k, a in enumerate(terms)) % shamir.PRIME for x in holders]
    with pytest.raises(UsageError):
        shamir.split(seed("s"), higher, holders)
    shares = shamir.split(seed("s"), higher, (*holders, *range(300, 430)))
    assert [int.from_bytes(share, "big") for share in shares[: len(holders)]] == plain


def test_any_t_of_n_shares_combine():
    from itertools import combinations

    higher = shamir.coefficients(seed("c"), 3, "x")
    shares = dict(enumerate(shamir.split(seed("s"), higher, range(1, 7)), start=1))
    for chosen in combinations(range(1, 7), 4):
        assert shamir.combine({x: shares[x] for x in chosen}, 4) == seed("s")
    with pytest.raises(PeerError, match="4 are needed"):
        shamir.combine({1: shares[1], 2: shares[2], 3: shares[3]}, 4)


def test_coefficients_depend_on_everything_they_are_bound_to():
    base = shamir.coefficients(seed("c"), 3, "b-share", b"rh", 1)
    for other in (("m-share", b"rh", 1), ("b-share", b"rx", 1), ("b-share", b"rh", 2)):
        assert shamir.coefficients(seed("c"), 3, *other) != base
    assert shamir.coefficients(seed("d"), 3, "b-share", b"rh", 1) != base
    many = shamir.coefficients(seed("c"), 400, "x")
    assert len(set(many)) == 400
    assert all(value < shamir.PRIME for value in many)
    assert shamir.coefficients(seed("c"), 0) == ()


@pytest.mark.parametrize(("secret", "t", "n"), [(bytes(31), 2, 3), (bytes(32), 4, 3)])
def test_split_refuses(secret, t, n):
    with pytest.raises(UsageError):
        shamir.split(secret, (1,) * (t - 1), range(1, n + 1))


@pytest.mark.parametrize(
    ("n", "colluders", "n_min", "expected"),
    [
        (3, 1, 3, (3, 3, 2, 3)),
        (4, 1, 3, (3, 3, 3, 3)),
        (5, 1, 4, (4, 4, 3, 4)),
        (6, 2, 5, (5, 5, 4, 5)),
        (10, 3, 8, (7, 7, 7, 8)),
        (100, 33, 70, (67, 67, 67, 70)),
        (200, 66, 134, (134, 134, 133, 134)),
    ],
)
def test_thresholds(n, colluders, n_min, expected):
    limits = thresholds(n, colluders, n_min)
    assert (limits.shares, limits.quorum, limits.retry, limits.floor) == expected
    assert 2 * limits.shares > n + colluders


@pytest.mark.parametrize(
    ("n", "colluders", "n_min", "reason"),
    [
        (2, 1, 2, Reason.POLICY),
        (5, 2, 4, Reason.POLICY),
        (5, 0, 4, Reason.POLICY),
        (5, 1, 1, Reason.POLICY),
        (5, 1, 6, Reason.BELOW_THRESHOLD),
    ],
)
def test_cohorts_that_thresholds_refuse(n, colluders, n_min, reason):
    with pytest.raises(PeerError) as caught:
        thresholds(n, colluders, n_min)
    assert caught.value.reason is reason


def test_every_frame_is_bound_to_every_name_of_the_context():
    from dataclasses import fields, replace

    context = Federation(5).context
    digests = {context.digest()}
    for field in fields(context):
        value = getattr(context, field.name)
        other = value + (b"x" if isinstance(value, bytes) else 1 if isinstance(value, int) else "x")
        digests.add(replace(context, **{field.name: other}).digest())
    assert len(digests) == len(fields(context)) + 1
