"""The primitives of SA-1 give the bytes of the kept vectors, and refuse the bad ones."""

import json
from pathlib import Path

import pytest

from privacy.errors import PeerError
from privacy.secagg import shamir, statements
from privacy.secagg.encoding import Label, dec, enc
from privacy.secagg.keys import P256, SUITES, BundleSecrets, hkdf, make_bundle
from privacy.secagg.merkle import root_of_path
from privacy.secagg.messages import ShareCommitments
from privacy.secagg.prg import keystream
from privacy.secagg.transport import Direction

VECTORS = json.loads((Path(__file__).parents[3] / "vectors" / "secagg.json").read_text())


def plain(parts):
    return tuple(bytes.fromhex(p["bytes"]) if isinstance(p, dict) else p for p in parts)


@pytest.mark.parametrize("vector", VECTORS["enc"]["good"], ids=lambda v: v["encoded"][:40])
def test_enc_gives_the_vector_and_decodes(vector):
    encoded = bytes.fromhex(vector["encoded"])
    assert enc(*plain(vector["parts"])) == encoded
    assert dec(encoded) == plain(vector["parts"])


@pytest.mark.parametrize("vector", VECTORS["enc"]["bad"], ids=lambda v: v["why"])
def test_dec_refuses(vector):
    with pytest.raises(PeerError):
        dec(bytes.fromhex(vector["encoded"]))


@pytest.mark.parametrize("vector", VECTORS["hkdf"], ids=lambda v: str(v["length"]))
def test_hkdf(vector):
    out = hkdf(bytes.fromhex(vector["secret"]), *plain(vector["info"]), length=vector["length"])
    assert out.hex() == vector["out"]


def test_hkdf_is_rfc_5869_case_3():
    # RFC 5869, A.3: SHA-256, no salt, no info.
    out = hkdf(b"\x0b" * 22, length=42)
    assert out.hex() == (
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
    )


@pytest.mark.parametrize("vector", VECTORS["prg"], ids=lambda v: str(v["bits"]))
def test_keystream(vector):
    words = keystream(bytes.fromhex(vector["key"]), len(vector["words"]), vector["bits"])
    assert words.tolist() == vector["words"]


@pytest.mark.parametrize("vector", VECTORS["shamir"]["good"], ids=lambda v: f"n{v['n']}")
def test_shamir(vector):
    higher = shamir.coefficients(
        bytes.fromhex(vector["seed"]),
        vector["t"] - 1,
        Label.SELF_SHARE_COMMITMENT,
        bytes.fromhex(vector["rh"]),
        vector["owner"],
    )
    shares = shamir.split(bytes.fromhex(vector["secret"]), higher, range(1, vector["n"] + 1))
    assert [share.hex() for share in shares] == vector["shares"]
    held = dict(enumerate(shares, start=1))
    last = dict(list(held.items())[-vector["t"] :])
    assert shamir.combine(last, vector["t"]).hex() == vector["secret"]


@pytest.mark.parametrize("vector", VECTORS["shamir"]["bad"], ids=lambda v: v["why"])
def test_shamir_refuses(vector):
    shares = {int(x): bytes.fromhex(share) for x, share in vector["shares"].items()}
    with pytest.raises(PeerError, match="bad-share"):
        shamir.combine(shares, 1)


@pytest.mark.parametrize(
    "vector", VECTORS["merkle"]["good"], ids=lambda v: str(len(v["recipients"]))
)
def test_share_tree(vector):
    recipients = vector["recipients"]
    texts, self_shares, mask_shares = (
        tuple(map(bytes.fromhex, vector[name]))
        for name in ("ciphertexts", "self_shares", "mask_shares")
    )
    commitments = ShareCommitments(bytes(32), self_shares, mask_shares)
    tree = statements.share_tree(recipients, texts, commitments)
    assert tree.root.hex() == vector["root"]
    for at, path in enumerate(vector["paths"]):
        assert [node.hex() for node in tree.path(at)] == path
        opened = root_of_path(tree.leaves[at], at, len(recipients), tree.path(at))
        assert opened.hex() == vector["root"]


@pytest.mark.parametrize("vector", VECTORS["keys"]["good"], ids=lambda v: v["seed"][:8])
def test_key_derivation(vector):
    secrets = BundleSecrets(bytes.fromhex(vector["seed"]))
    bundle = make_bundle(P256, secrets, bytes(32), "C", b"i", 1, 1)
    assert bundle.c_pk.hex() == vector["c_pk"]
    assert bundle.m_pk.hex() == vector["m_pk"]
    m_key = P256.private_key(secrets.mask_seed, Label.MASK_SCALAR)
    generator = bytes.fromhex(
        "046b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296"
        "4fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5"
    )
    assert P256.agree(m_key, generator).hex() == vector["m_agree_with_g"]


@pytest.mark.parametrize("vector", VECTORS["keys"]["bad"], ids=lambda v: v["why"])
def test_bad_points_are_refused(vector):
    point = bytes.fromhex(vector["point"])
    with pytest.raises(PeerError, match="malformed"):
        P256.key_identity(point)
    with pytest.raises(PeerError, match="malformed"):
        P256.agree(P256.private_key(bytes(32), Label.MASK_SCALAR), point)


@pytest.mark.parametrize("suite", SUITES.values(), ids=lambda suite: suite.name)
def test_each_suite_gives_the_keys_and_opens_what_was_sealed(suite):
    vector = VECTORS["suites"][suite.name]
    secrets = [BundleSecrets(bytes.fromhex(seed)) for seed in vector["seeds"]]
    bundles = [make_bundle(suite, secret, bytes(32), "C", b"i", 1, 1) for secret in secrets]
    assert [bundle.c_pk.hex() for bundle in bundles] == vector["c_pk"]
    assert [bundle.m_pk.hex() for bundle in bundles] == vector["m_pk"]
    m_key = suite.private_key(secrets[0].mask_seed, Label.MASK_SCALAR)
    assert suite.agree(m_key, bundles[1].m_pk).hex() == vector["m_agreed"]
    rh, nonce, aad, plain, sealed = (
        bytes.fromhex(vector[name]) for name in ("rh", "nonce", "aad", "plaintext", "sealed")
    )
    assert len(sealed) == suite.share_ciphertext_bytes
    box = suite.transport.box(secrets[1].transport_seed, rh)
    assert box.open(bundles[0].c_pk, Direction(nonce, aad), sealed) == plain
