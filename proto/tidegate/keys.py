"""Make, name, use and keep key pairs: P-256 for TLS and the operator, sites' signing keys.

A key is named by the fingerprint of its SubjectPublicKeyInfo (DER). Here: making and loading,
the software signer and its check, and the files that hold private keys. Certificates are in
``tidegate.pki``.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg.signatures import SigningKey

_MAX_SIGNATURE_BYTES = 72
_ECDSA = ec.ECDSA(hashes.SHA256())
_RFC_6979 = ec.ECDSA(hashes.SHA256(), deterministic_signing=True)


@dataclass(frozen=True)
class EcdsaSigner:
    """Sign with a software key: ECDSA P-256 with SHA-256 and the deterministic nonces of RFC 6979.

    A deterministic nonce makes a step that is repeated after a crash give the same bytes again,
    which the one-slot rule of SA-1 relies on. An HSM key stands in by the same ``sign``.
    """

    key: ec.EllipticCurvePrivateKey = field(repr=False)

    def sign(self, message: bytes) -> bytes:
        """Sign a message that already starts with its domain label; DER, at most 72 bytes."""
        return self.key.sign(message, _RFC_6979)

    def spki(self) -> bytes:
        """Return the public half as SubjectPublicKeyInfo, DER."""
        return spki_der(self.key)


def make_key() -> ec.EllipticCurvePrivateKey:
    """Make a P-256 key from the operating system's randomness."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: SigningKey) -> bytes:
    """Return a private key as unencrypted PKCS #8 PEM, for ``write_private`` only."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Read a P-256 private key from PEM.

    Raises:
        UsageError: The bytes hold no unencrypted P-256 key.
    """
    return _only_p256(_load_private(pem))


def _load_private(pem: bytes) -> object:
    try:
        return serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise UsageError("the key file holds no unencrypted PEM private key; restore it") from None


def _only_p256(key: object) -> ec.EllipticCurvePrivateKey:
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
        raise UsageError("the key file holds a key that is not P-256; make a new one")
    return key


def load_signing_key(pem: bytes) -> SigningKey:
    """Read a site's signing key from PEM: P-256 or Ed25519, as the consortium's suite asks.

    Raises:
        UsageError: The bytes hold no such key.
    """
    key = _load_private(pem)
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key
    return _only_p256(key)


def public_spki(key: object) -> bytes:
    """Return a P-256 public key as SubjectPublicKeyInfo, DER (91 bytes).

    Raises:
        PeerError: It is another kind of key (MALFORMED).
    """
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
        raise PeerError(Reason.MALFORMED, "the public key is not P-256")
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def spki_der(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return the public half of a key as SubjectPublicKeyInfo, DER (91 bytes)."""
    return public_spki(key.public_key())


def load_spki(spki: bytes) -> ec.EllipticCurvePublicKey:
    """Read a P-256 public key from SubjectPublicKeyInfo in its one canonical encoding.

    Fingerprints are hashes over these bytes, so a second encoding of one key (a compressed point)
    would be a second identity: it is refused.

    Raises:
        PeerError: No P-256 key, not on the curve, or not the canonical encoding (MALFORMED).
    """
    try:
        key = serialization.load_der_public_key(spki)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise PeerError(Reason.MALFORMED, "the public key is no SubjectPublicKeyInfo") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or public_spki(key) != spki:
        raise PeerError(Reason.MALFORMED, "the public key is not in canonical DER")
    return key


def fingerprint(spki: bytes) -> bytes:
    """Return SHA-256 of a SubjectPublicKeyInfo: 32 bytes."""
    digest = hashes.Hash(hashes.SHA256())
    digest.update(spki)
    return digest.finalize()


def node_id(spki: bytes) -> int:
    """Return Flower's node id of a site: the first 63 bits of its signing key's fingerprint."""
    return int.from_bytes(fingerprint(spki)[:8], "big") >> 1


def verify(spki: bytes, signature: bytes, message: bytes) -> None:
    """Check a signature over a message.

    Raises:
        PeerError: The signature is not this key's over this message (BAD_SIGNATURE), or the key is
            no canonical P-256 key (MALFORMED).
    """
    key = load_spki(spki)
    if len(signature) > _MAX_SIGNATURE_BYTES:
        raise PeerError(Reason.BAD_SIGNATURE, "the signature is longer than 72 bytes")
    try:
        key.verify(signature, message, _ECDSA)
    except InvalidSignature:
        raise PeerError(Reason.BAD_SIGNATURE, "the signature does not verify") from None


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read, whole or not at all, and durably."""
    write_private_parts(path, (data,))


def write_private_parts(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write such a file from parts, one after the other.

    The temporary file is made 0600 from the start, so no moment exists in which others can read it;
    rename and directory fsync make it survive a crash as either the old or the new bytes.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    temporary.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    handle = os.open(temporary, flags, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_private(path: Path) -> bytes:
    """Read a file that must be private to its owner.

    The mode is taken from the open file, so it cannot be exchanged between check and reading.

    Raises:
        UsageError: It is missing, or group or others have any right to it.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & 0o077:
                raise UsageError(
                    f"{path} is open to others (mode {mode & 0o777:04o}): run `chmod 600 {path}`, "
                    "and replace the key if others use this machine"
                )
            return file.read()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
