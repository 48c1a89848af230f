import os
import stat

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from privacy.errors import PeerError, Reason, UsageError
from tidegate import keys

KEY = keys.make_key()
SPKI = keys.spki_der(KEY)


def refused(reason, call, *args):
    with pytest.raises(PeerError) as caught:
        call(*args)
    assert caught.value.reason is reason


def test_signatures_are_deterministic_and_verify():
    signer = keys.EcdsaSigner(KEY)
    first, second = signer.sign(b"message"), signer.sign(b"message")
    assert first == second
    assert len(first) <= 72
    keys.verify(SPKI, first, b"message")
    keys.verify(signer.spki(), first, b"message")


def test_rfc_6979_vector():
    # RFC 6979, A.2.5: P-256 with SHA-256, message "sample".
    scalar = 0xC9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721
    signature = keys.EcdsaSigner(ec.derive_private_key(scalar, ec.SECP256R1())).sign(b"sample")
    assert (
        signature.hex()
        == "3046022100efd48b2aacb6a8fd1140dd9cd45e81d69d2c877b56aaf991c34d0ea84eaf3716"
        "022100f7cb1c942d657c41d436c7a1b6e29f65f3e900dbb9aff4064dc4ab2f843acda8"
    )


@pytest.mark.parametrize("signature", [b"", b"\x30\x00", b"\x00" * 72, b"\x00" * 73])
def test_bad_signatures_are_refused(signature):
    refused(Reason.BAD_SIGNATURE, keys.verify, SPKI, signature, b"message")


def test_a_signature_holds_for_its_key_and_message_only():
    signature = keys.EcdsaSigner(KEY).sign(b"message")
    refused(Reason.BAD_SIGNATURE, keys.verify, SPKI, signature, b"other")
    other = keys.spki_der(keys.make_key())
    refused(Reason.BAD_SIGNATURE, keys.verify, other, signature, b"message")


def compressed(key):
    # The same key in SPKI with a compressed point: a second encoding, hence a second fingerprint.
    point = key.public_key().public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.CompressedPoint
    )
    head = bytes.fromhex("3039301306072a8648ce3d020106082a8648ce3d030107032200")
    return head + point


@pytest.mark.parametrize(
    "spki",
    [
        b"",
        b"\x30",
        SPKI[:-1],
        SPKI + b"\x00",
        SPKI[:-1] + bytes([SPKI[-1] ^ 1]),
        compressed(KEY),
        ed25519.Ed25519PrivateKey.generate()
        .public_key()
        .public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo),
        ec.generate_private_key(ec.SECP384R1())
        .public_key()
        .public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo),
    ],
    ids=["empty", "cut", "short", "long", "off-curve", "compressed", "ed25519", "p384"],
)
def test_only_the_canonical_encoding_of_a_p256_key_is_taken(spki):
    refused(Reason.MALFORMED, keys.load_spki, spki)


def test_node_id_is_63_bits_of_the_fingerprint():
    assert keys.node_id(SPKI) == int.from_bytes(keys.fingerprint(SPKI), "big") >> (256 - 63)


def test_keys_survive_their_file(tmp_path):
    path = tmp_path / "site.key"
    keys.write_private(path, keys.key_pem(KEY))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert keys.spki_der(keys.load_key(keys.read_private(path))) == SPKI
    assert [entry.name for entry in tmp_path.iterdir()] == ["site.key"]


def test_write_private_replaces_a_file_open_to_others(tmp_path):
    path = tmp_path / "site.key"
    path.write_bytes(b"old")
    path.chmod(0o644)
    keys.write_private(path, b"new")
    assert keys.read_private(path) == b"new"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644, 0o700 | 0o010])
def test_a_key_open_to_others_is_refused_with_the_mend(tmp_path, mode):
    path = tmp_path / "site.key"
    path.write_bytes(b"secret")
    path.chmod(mode)
    with pytest.raises(UsageError, match=f"chmod 600 {path}"):
        keys.read_private(path)


def test_a_missing_key_file_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"no\.key"):
        keys.read_private(tmp_path / "no.key")


def test_write_private_leaves_the_old_file_when_writing_fails(tmp_path, monkeypatch):
    path = tmp_path / "site.key"
    keys.write_private(path, b"old")

    def full(_handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        keys.write_private(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["site.key"]


@pytest.mark.parametrize(
    "pem",
    [
        b"",
        b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        KEY.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        ),
        ec.generate_private_key(ec.SECP384R1()).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    ],
)
def test_other_key_files_are_refused(pem):
    with pytest.raises(UsageError):
        keys.load_key(pem)


def test_no_secret_in_repr():
    assert repr(keys.EcdsaSigner(KEY)) == "EcdsaSigner()"
