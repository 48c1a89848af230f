"""Key agreement: key pairs from injected seeds, and the secret that two of them share."""

from abc import ABC, abstractmethod
from functools import lru_cache

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, x25519

from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg.encoding import Label
from privacy.secagg.kdf import check_seed, hkdf

AgreementKey = ec.EllipticCurvePrivateKey | x25519.X25519PrivateKey

_SCALAR_BYTES = 48
"""48 bytes reduced modulo a 256-bit order: the bias is below 2^-128."""

_P256 = ec.SECP256R1()
_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_P256_POINT_BYTES = 65
_X25519_PRIME = 2**255 - 19
_X25519_BYTES = 32
_X25519_TO_IDENTITY = x25519.X25519PrivateKey.from_private_bytes(bytes(31) + b"\x40")
"""The scalar 2^254, which clamping leaves as it is; no secret."""


class KeyAgreement(ABC):
    """One curve.

    Attributes:
        public_key_bytes: Length of a public key as it travels.
        public_key_start: The bytes that each begins with.
    """

    public_key_bytes: int
    public_key_start: bytes = b""

    @abstractmethod
    def private_key(self, seed: bytes, label: Label) -> AgreementKey:
        """Derive the private key of a seed under a label.

        Raises:
            UsageError: The seed has not 32 bytes.
        """

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
        Sybil that registers minus an honest site's key would share its pairwise masks. On X25519 it
        is the key times the cofactor: a point of low order added to a key changes no secret.

        Raises:
            PeerError: MALFORMED, wrong length or encoding, not on the curve, or of low order.
        """


class _EcdhP256(KeyAgreement):
    """ECDH on P-256: d = 1 + (HKDF(seed, label, 48) mod (order - 1)), uncompressed points."""

    public_key_bytes = _P256_POINT_BYTES
    public_key_start = b"\x04"

    def private_key(self, seed: bytes, label: Label) -> AgreementKey:
        wide = int.from_bytes(hkdf(check_seed(seed), label, length=_SCALAR_BYTES), "big")
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


class _X25519(KeyAgreement):
    """X25519 (RFC 7748), which clamps any 32 bytes, so that no reduction is needed."""

    public_key_bytes = _X25519_BYTES

    def private_key(self, seed: bytes, label: Label) -> AgreementKey:
        return x25519.X25519PrivateKey.from_private_bytes(hkdf(check_seed(seed), label))

    def public_key(self, private: AgreementKey) -> bytes:
        return private.public_key().public_bytes(
            serialization.Encoding.Raw, serialization.PublicFormat.Raw
        )

    def agree(self, private: AgreementKey, peer_public: bytes) -> bytes:
        if not isinstance(private, x25519.X25519PrivateKey):
            raise UsageError("key agreement on X25519 needs an X25519 private key")
        return _x25519_secret(private, peer_public)

    def key_identity(self, public: bytes) -> bytes:
        # Clamped scalars are multiples of 8, so u(Q) and the u of Q plus any point of low order, as
        # 1/u(Q), agree on one secret with everybody. u(2^254 Q) is the same for those, and only
        # for those: 2^251 is prime to the order of the curve's large subgroup and of its twist's.
        return _x25519_identity(public)


ECDH_P256 = _EcdhP256()
ECDH_X25519 = _X25519()


@lru_cache(maxsize=8192)
def _p256_point(public: bytes) -> ec.EllipticCurvePublicKey:
    if len(public) != _P256_POINT_BYTES or public[0] != 4:
        raise PeerError(Reason.MALFORMED, "a public key is no 65-byte uncompressed P-256 point")
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(_P256, public)
    except ValueError as error:
        raise PeerError(Reason.MALFORMED, "a public key is not on the curve P-256") from error


@lru_cache(maxsize=8192)
def _x25519_identity(public: bytes) -> bytes:
    return _x25519_secret(_X25519_TO_IDENTITY, public)


def _x25519_secret(private: x25519.X25519PrivateKey, public: bytes) -> bytes:
    # Bit 255 is ignored and u is reduced by RFC 7748: other encodings of one u are refused.
    if len(public) != _X25519_BYTES:
        raise PeerError(Reason.MALFORMED, f"an X25519 key has {len(public)} bytes, not 32")
    if int.from_bytes(public, "little") >= _X25519_PRIME:
        raise PeerError(Reason.MALFORMED, "an X25519 key is not canonical")
    try:
        return private.exchange(x25519.X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise PeerError(Reason.MALFORMED, "a public key has low order") from error
