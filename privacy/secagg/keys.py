"""Key pairs from injected seeds, key agreement, signatures: everything that differs by suite.

Here: both suites of the first version behind one ``Suite`` type, HKDF, fingerprints, and what a
one-time bundle derives from. Not here: who holds a seed and for how long (the site's store), and
the act of signing, which the shell carries out so that hardware keys fit; ``SoftwareSigner`` is
what a shell uses where the key is a file.
"""

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import lru_cache

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, x25519
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg.encoding import SIGNED_PREFIX, Label, enc, hash_of
from privacy.secagg.messages import Bundle, Fingerprint

SEED_BYTES = 32
_SCALAR_BYTES = 48
"""48 bytes reduced modulo a 256-bit order: the bias is below 2^-128."""

_P256 = ec.SECP256R1()
_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_P256_POINT_BYTES = 65
_ECDSA = ec.ECDSA(hashes.SHA256())
_ECDSA_RFC6979 = ec.ECDSA(hashes.SHA256(), deterministic_signing=True)
_X25519_PRIME = 2**255 - 19
_MAX_SIGNATURE_BYTES = 80

AgreementKey = ec.EllipticCurvePrivateKey | x25519.X25519PrivateKey
SigningKey = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def hkdf(secret: bytes, *info: str | bytes | int, length: int = 32) -> bytes:
    """Derive ``length`` bytes from a secret with HKDF-SHA-256 (RFC 5869), empty salt.

    Args:
        secret: Input key material.
        info: Encoded injectively; the first part is a ``Label``.
        length: At most 8160.
    """
    return HKDF(hashes.SHA256(), length, None, enc(*info)).derive(secret)


def fingerprint_of(spki: bytes) -> Fingerprint:
    """Return the fingerprint of a pinned signing key: SHA-256 of its SPKI (DER), 32 bytes."""
    return hashlib.sha256(spki).digest()


class Suite(ABC):
    """The algorithms of one suite, named in the signed manifest, never by the aggregator."""

    name: str
    public_key_bytes: int

    @abstractmethod
    def private_key(self, seed: bytes, label: Label) -> AgreementKey:
        """Derive the private key of a seed: d = 1 + (HKDF(seed, label, 48) mod (order - 1))."""

    @abstractmethod
    def public_key(self, private: AgreementKey) -> bytes:
        """Return the public key as it travels: ``public_key_bytes`` bytes."""

    @abstractmethod
    def agree(self, private: AgreementKey, peer_public: bytes) -> bytes:
        """Return the shared secret, 32 bytes.

        Raises:
            PeerError: MALFORMED, the peer's key is no canonical point of the curve.
        """

    @abstractmethod
    def key_identity(self, public: bytes) -> bytes:
        """Return what two public keys share exactly when key agreement cannot tell them apart.

        On P-256 that is the x-coordinate: a point and its negative agree on the same secret, so a
        Sybil that registers minus an honest site's key would share its pairwise masks.

        Raises:
            PeerError: MALFORMED, wrong length or encoding, or not on the curve.
        """

    @abstractmethod
    def verify(self, spki: bytes, signature: bytes, message: bytes) -> None:
        """Check a signature by the pinned key (SPKI, DER; loaded once) over the whole message.

        Raises:
            PeerError: BAD_SIGNATURE.
            UsageError: The key is none of this suite: the pin or the manifest is wrong.
        """


class _P256Suite(Suite):
    """``P256_SHA256_AES256``: FIPS-approved parts only; the default."""

    name = "P256_SHA256_AES256"
    public_key_bytes = _P256_POINT_BYTES

    def private_key(self, seed: bytes, label: Label) -> AgreementKey:
        wide = int.from_bytes(hkdf(_seed(seed), label, length=_SCALAR_BYTES), "big")
        return ec.derive_private_key(1 + wide % (_P256_ORDER - 1), _P256)

    def public_key(self, private: AgreementKey) -> bytes:
        return private.public_key().public_bytes(
            serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
        )

    def agree(self, private: AgreementKey, peer_public: bytes) -> bytes:
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise UsageError("key agreement on P-256 needs a P-256 private key")
        return private.exchange(ec.ECDH(), _p256_point(peer_public))

    def key_identity(self, public: bytes) -> bytes:
        _p256_point(public)
        return public[1:33]

    def verify(self, spki: bytes, signature: bytes, message: bytes) -> None:
        if len(signature) > _MAX_SIGNATURE_BYTES:
            raise _bad_signature(spki)
        try:
            _load_p256_spki(spki).verify(signature, message, _ECDSA)
        except InvalidSignature as error:
            raise _bad_signature(spki) from error


class _X25519Suite(Suite):
    """``X25519_ED25519_SHA256_AES256``."""

    name = "X25519_ED25519_SHA256_AES256"
    public_key_bytes = 32

    def private_key(self, seed: bytes, label: Label) -> AgreementKey:
        # X25519 clamps any 32 bytes (RFC 7748), so no reduction is needed here.
        return x25519.X25519PrivateKey.from_private_bytes(hkdf(_seed(seed), label))

    def public_key(self, private: AgreementKey) -> bytes:
        return private.public_key().public_bytes(
            serialization.Encoding.Raw, serialization.PublicFormat.Raw
        )

    def agree(self, private: AgreementKey, peer_public: bytes) -> bytes:
        if not isinstance(private, x25519.X25519PrivateKey):
            raise UsageError("key agreement on X25519 needs an X25519 private key")
        self.key_identity(peer_public)
        try:
            return private.exchange(x25519.X25519PublicKey.from_public_bytes(peer_public))
        except ValueError as error:
            raise PeerError(Reason.MALFORMED, "a public key has low order") from error

    def key_identity(self, public: bytes) -> bytes:
        # Bit 255 is ignored and u is reduced by RFC 7748: other encodings of one u are refused.
        if len(public) != self.public_key_bytes:
            raise PeerError(Reason.MALFORMED, f"an X25519 key has {len(public)} bytes, not 32")
        if int.from_bytes(public, "little") >= _X25519_PRIME:
            raise PeerError(Reason.MALFORMED, "an X25519 key is not canonical")
        return public

    def verify(self, spki: bytes, signature: bytes, message: bytes) -> None:
        try:
            _load_ed25519_spki(spki).verify(signature, message)
        except InvalidSignature as error:
            raise _bad_signature(spki) from error


P256 = _P256Suite()
X25519 = _X25519Suite()
_SUITES: dict[str, Suite] = {suite.name: suite for suite in (P256, X25519)}


def suite_named(name: str) -> Suite:
    """Return the suite that a manifest names.

    Raises:
        UsageError: No such suite in this version.
    """
    try:
        return _SUITES[name]
    except KeyError:
        known = ", ".join(sorted(_SUITES))
        raise UsageError(f"suite {name!r} is unknown; this version has {known}") from None


def _seed(seed: bytes) -> bytes:
    if len(seed) != SEED_BYTES:
        raise UsageError(f"a seed has {len(seed)} bytes, it must have {SEED_BYTES}")
    return seed


@lru_cache(maxsize=8192)
def _p256_point(public: bytes) -> ec.EllipticCurvePublicKey:
    if len(public) != _P256_POINT_BYTES or public[0] != 4:
        raise PeerError(Reason.MALFORMED, "a public key is no 65-byte uncompressed P-256 point")
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(_P256, public)
    except ValueError as error:
        raise PeerError(Reason.MALFORMED, "a public key is not on the curve P-256") from error


@lru_cache(maxsize=4096)
def _load_p256_spki(spki: bytes) -> ec.EllipticCurvePublicKey:
    key = _load_spki(spki)
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise UsageError("a pinned signing key is not P-256, as suite P256_SHA256_AES256 asks")
    return key


@lru_cache(maxsize=4096)
def _load_ed25519_spki(spki: bytes) -> ed25519.Ed25519PublicKey:
    key = _load_spki(spki)
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise UsageError("a pinned signing key is not Ed25519, as suite X25519_ED25519 asks")
    return key


def _load_spki(spki: bytes) -> object:
    try:
        return serialization.load_der_public_key(spki)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError("a pinned signing key is no SPKI in DER; check the manifest") from error


def _bad_signature(spki: bytes) -> PeerError:
    who = fingerprint_of(spki).hex()[:16]
    return PeerError(Reason.BAD_SIGNATURE, f"signature does not verify under the key of site {who}")


@dataclass(frozen=True)
class BundleSecrets:
    """What a one-time bundle derives from: one 32-byte seed, used for one attempt, then erased."""

    seed: bytes = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse a seed of the wrong length."""
        _seed(self.seed)

    @property
    def transport_seed(self) -> bytes:
        """Seed of the key pair c, which is never secret-shared."""
        return hkdf(self.seed, Label.TRANSPORT_SEED)

    @property
    def mask_seed(self) -> bytes:
        """Seed of the key pair m: 32 bytes, secret-shared in step 1."""
        return hkdf(self.seed, Label.MASK_SEED)

    @property
    def graph_reveal(self) -> bytes:
        """The random r that the bundle commits to (for the sparse graph)."""
        return hkdf(self.seed, Label.GRAPH_SEED)


def make_bundle(
    suite: Suite,
    secrets: BundleSecrets,
    site: Fingerprint,
    consortium_id: str,
    instance_id: bytes,
    serial: int,
    not_after_s: int,
) -> Bundle:
    """Make the public bundle of a seed; sign ``statements.bundle_statement`` of it.

    Args:
        suite: The manifest's suite.
        secrets: The bundle's own seed, never used before.
        site: Fingerprint of the site's pinned signing key.
        consortium_id: The consortium that it is for.
        instance_id: Names the boot key under which the stock is wrapped.
        serial: Unique for this site's identity.
        not_after_s: Unix time after which no site accepts it.
    """
    c_key = suite.private_key(secrets.transport_seed, Label.TRANSPORT_SCALAR)
    m_key = suite.private_key(secrets.mask_seed, Label.MASK_SCALAR)
    return Bundle(
        consortium_id=consortium_id,
        site=site,
        instance_id=instance_id,
        serial=serial,
        c_pk=suite.public_key(c_key),
        m_pk=suite.public_key(m_key),
        r_commitment=hash_of(Label.GRAPH_REVEAL_COMMITMENT, secrets.graph_reveal),
        not_after_s=not_after_s,
    )


class SoftwareSigner:
    """Sign with a key held in memory: the shell's answer to ``Sign`` where there is no HSM.

    ECDSA nonces are those of RFC 6979, so a poor random source cannot leak the key.
    """

    def __init__(self, private_key: SigningKey) -> None:
        """Take a P-256 or Ed25519 private key, already loaded."""
        self._key = private_key
        self.spki = private_key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
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
        if isinstance(self._key, ed25519.Ed25519PrivateKey):
            return self._key.sign(message)
        return self._key.sign(message, _ECDSA_RFC6979)
