"""Signatures by sites' pinned keys: the check that both machines make, and the software signer.

Signing itself is a command that the shell carries out, so that hardware keys fit;
``SoftwareSigner`` is what a shell uses where the key is a file.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg.encoding import SIGNED_PREFIX
from privacy.secagg.messages import Fingerprint

SigningKey = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey

_MAX_DER_BYTES = 80
_ECDSA = ec.ECDSA(hashes.SHA256())
_ECDSA_RFC6979 = ec.ECDSA(hashes.SHA256(), deterministic_signing=True)


def fingerprint_of(spki: bytes) -> Fingerprint:
    """Return the fingerprint of a pinned signing key: SHA-256 of its SPKI (DER), 32 bytes."""
    return hashlib.sha256(spki).digest()


class SignatureScheme(ABC):
    """One algorithm for all signatures of a consortium's sites.

    Attributes:
        key_kind: What its keys are called in messages to people.
    """

    key_kind: str

    @abstractmethod
    def make_key(self) -> SigningKey:
        """Make a private key from the operating system's randomness; for the shell."""

    @abstractmethod
    def is_canonical(self, spki: bytes) -> bool:
        """Say whether these bytes are a public key of this kind, in its one canonical DER.

        Fingerprints are hashes over these bytes, so a second encoding of one key would be a second
        identity.
        """

    @abstractmethod
    def verify(self, spki: bytes, signature: bytes, message: bytes) -> None:
        """Check a signature by the pinned key (SPKI, DER; loaded once) over the whole message.

        Raises:
            PeerError: BAD_SIGNATURE.
            UsageError: The key is of another kind: the pin or the manifest is wrong.
        """


class _EcdsaP256(SignatureScheme):
    """ECDSA on P-256 with SHA-256, DER."""

    key_kind = "P-256"

    def make_key(self) -> SigningKey:
        return ec.generate_private_key(ec.SECP256R1())

    def is_canonical(self, spki: bytes) -> bool:
        return _is_canonical(_load_p256_spki, spki)

    def verify(self, spki: bytes, signature: bytes, message: bytes) -> None:
        if len(signature) > _MAX_DER_BYTES:
            raise _bad_signature(spki)
        try:
            _load_p256_spki(spki).verify(signature, message, _ECDSA)
        except InvalidSignature as error:
            raise _bad_signature(spki) from error


class _Ed25519(SignatureScheme):
    """Ed25519 (RFC 8032)."""

    key_kind = "Ed25519"

    def make_key(self) -> SigningKey:
        return ed25519.Ed25519PrivateKey.generate()

    def is_canonical(self, spki: bytes) -> bool:
        return _is_canonical(_load_ed25519_spki, spki)

    def verify(self, spki: bytes, signature: bytes, message: bytes) -> None:
        try:
            _load_ed25519_spki(spki).verify(signature, message)
        except InvalidSignature as error:
            raise _bad_signature(spki) from error


ECDSA_P256 = _EcdsaP256()
ED25519 = _Ed25519()


def sign(key: SigningKey, message: bytes) -> bytes:
    """Sign a message that starts with its domain label.

    ECDSA nonces are those of RFC 6979, so a poor random source cannot leak the key, and a step that
    is repeated after a crash gives the same bytes. Ed25519 is deterministic anyway.
    """
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key.sign(message)
    return key.sign(message, _ECDSA_RFC6979)


def spki_of(key: SigningKey) -> bytes:
    """Return the public half of a signing key as SubjectPublicKeyInfo, DER."""
    return _spki(key.public_key())


class SoftwareSigner:
    """Sign with a key held in memory: the shell's answer to ``Sign`` where there is no HSM."""

    def __init__(self, private_key: SigningKey) -> None:
        """Take a P-256 or Ed25519 private key, already loaded."""
        self._key = private_key
        self.spki = spki_of(private_key)
        self.fingerprint = fingerprint_of(self.spki)

    def __repr__(self) -> str:
        return f"SoftwareSigner({self.fingerprint.hex()[:16]})"

    def sign(self, message: bytes) -> bytes:
        """Sign a message of SA-1.

        Raises:
            UsageError: The message does not start with the fixed context prefix, so that the
                pinned key cannot be made to sign anything else.
        """
        if not message.startswith(SIGNED_PREFIX):
            raise UsageError("the pinned key signs only messages that start with SIGNED_PREFIX")
        return sign(self._key, message)


_PublicKey = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey


@lru_cache(maxsize=4096)
def _load_p256_spki(spki: bytes) -> ec.EllipticCurvePublicKey:
    key = _load_spki(spki)
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise UsageError("a pinned signing key is not P-256, as the manifest's suite asks")
    return key


@lru_cache(maxsize=4096)
def _load_ed25519_spki(spki: bytes) -> ed25519.Ed25519PublicKey:
    key = _load_spki(spki)
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise UsageError("a pinned signing key is not Ed25519, as the manifest's suite asks")
    return key


def _load_spki(spki: bytes) -> object:
    try:
        return serialization.load_der_public_key(spki)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError("a pinned signing key is no SPKI in DER; check the manifest") from error


def _is_canonical(load: Callable[[bytes], _PublicKey], spki: bytes) -> bool:
    try:
        return _spki(load(spki)) == spki
    except UsageError:
        return False


def _spki(key: _PublicKey) -> bytes:
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _bad_signature(spki: bytes) -> PeerError:
    who = fingerprint_of(spki).hex()[:16]
    return PeerError(Reason.BAD_SIGNATURE, f"signature does not verify under the key of site {who}")
