"""Share transport: how what one site deals reaches one other member, and nobody else.

A ``ShareTransport`` makes the key c of a bundle, which is never secret-shared, and gives each site
a ``ShareBox`` for one attempt: it seals to a member's c and opens what a member sealed. All boxes
encrypt with AES-256-GCM under nonce and associated data that name the direction (``statements``).

Two kinds. By key agreement alone the pair's key is HKDF(ECDH(c_i, c_j), "share-key", rh), for both
directions, and sealing is a function of the seeds. The hybrid adds ML-KEM-768 (FIPS 203): the
dealer encapsulates to the recipient and sends the KEM's ciphertext along. Encapsulation draws
randomness of its own inside the library, so it is a command that the shell carries out
(``commands.Encapsulate``), and slot 1 keeps what was sealed with it. An adversary must break both
X25519 and ML-KEM-768 to read a share.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg.agreement import ECDH_P256, ECDH_X25519, AgreementKey, KeyAgreement
from privacy.secagg.encoding import Label
from privacy.secagg.kdf import check_seed, hkdf

_GCM_TAG_BYTES = 16
_KEM_PUBLIC_BYTES = 1184
_KEM_CIPHERTEXT_BYTES = 1088
_KEM_SEED_BYTES = 64


@dataclass(frozen=True)
class Encapsulation:
    """A secret drawn for the holder of one public key, and the ciphertext that tells it to them."""

    secret: bytes = field(repr=False)
    ciphertext: bytes


@dataclass(frozen=True)
class Direction:
    """What a sealed share is bound to beside its key: ``statements.share_nonce``, ``share_aad``."""

    nonce: bytes
    aad: bytes


class ShareBox(ABC):
    """One site's ends of its channels in one attempt; holds secrets, so it has no repr of them."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @abstractmethod
    def seal(
        self, peer: bytes, way: Direction, plaintext: bytes, drawn: Encapsulation | None
    ) -> bytes:
        """Encrypt to a member.

        Args:
            peer: Its c_pk.
            way: From this site to it.
            plaintext: What it is to read.
            drawn: For exactly this key; None where the transport draws nothing.

        Raises:
            PeerError: MALFORMED, the key is none.
            UsageError: A draw is missing, or one came that nobody asked for.
        """

    @abstractmethod
    def open(self, peer: bytes, way: Direction, ciphertext: bytes) -> bytes:
        """Decrypt what a member sealed to this site.

        Args:
            peer: Its c_pk.
            way: From it to this site.
            ciphertext: As received.

        Raises:
            PeerError: BAD_SHARE, it does not open; MALFORMED, the key is none.
        """


class ShareTransport(ABC):
    """One way of transport.

    Attributes:
        public_key_bytes: Length of c_pk.
        public_key_start: The bytes that each begins with.
        overhead: Bytes of a sealed share beyond its plaintext.
        draws: Whether sealing takes an ``Encapsulation`` that the shell draws.
    """

    public_key_bytes: int
    public_key_start: bytes
    overhead: int
    draws: bool

    @abstractmethod
    def public_key(self, seed: bytes) -> bytes:
        """Return c_pk of a 32-byte seed."""

    @abstractmethod
    def key_identities(self, public: bytes) -> tuple[bytes, ...]:
        """Return what no two keys of a cohort may share; see ``KeyAgreement.key_identity``.

        Raises:
            PeerError: MALFORMED, this is no key.
        """

    @abstractmethod
    def encapsulate(self, public: bytes) -> Encapsulation:
        """Draw a secret for the holder of c_pk: the shell's answer to ``Encapsulate``.

        Raises:
            PeerError: MALFORMED, this is no key.
            UsageError: This transport draws nothing.
        """

    @abstractmethod
    def box(self, seed: bytes, rh: bytes) -> ShareBox:
        """Give the site that holds the seed of c its ends for the attempt of one roster."""


class _AgreementTransport(ShareTransport):
    """By key agreement alone."""

    overhead = _GCM_TAG_BYTES
    draws = False

    def __init__(self, agreement: KeyAgreement) -> None:
        self._agreement = agreement
        self.public_key_bytes = agreement.public_key_bytes
        self.public_key_start = agreement.public_key_start

    def public_key(self, seed: bytes) -> bytes:
        private = self._agreement.private_key(seed, Label.TRANSPORT_SCALAR)
        return self._agreement.public_key(private)

    def key_identities(self, public: bytes) -> tuple[bytes, ...]:
        return (self._agreement.key_identity(public),)

    def encapsulate(self, public: bytes) -> Encapsulation:
        self.key_identities(public)
        raise UsageError("share transport by key agreement draws nothing")

    def box(self, seed: bytes, rh: bytes) -> ShareBox:
        private = self._agreement.private_key(seed, Label.TRANSPORT_SCALAR)
        return _AgreementBox(self._agreement, private, rh)


class _AgreementBox(ShareBox):
    def __init__(self, agreement: KeyAgreement, private: AgreementKey, rh: bytes) -> None:
        self._agreement = agreement
        self._private = private
        self._rh = rh
        self._ciphers: dict[bytes, AESGCM] = {}

    def seal(
        self, peer: bytes, way: Direction, plaintext: bytes, drawn: Encapsulation | None
    ) -> bytes:
        if drawn is not None:
            raise UsageError("share transport by key agreement takes no draw")
        return self._cipher(peer).encrypt(way.nonce, plaintext, way.aad)

    def open(self, peer: bytes, way: Direction, ciphertext: bytes) -> bytes:
        return _decrypt(self._cipher(peer), way, ciphertext)

    def _cipher(self, peer: bytes) -> AESGCM:
        """Give the pair's cipher: one agreement serves both directions."""
        cipher = self._ciphers.get(peer)
        if cipher is None:
            secret = self._agreement.agree(self._private, peer)
            cipher = self._ciphers[peer] = AESGCM(hkdf(secret, Label.SHARE_KEY, self._rh))
        return cipher


class _HybridTransport(ShareTransport):
    """Key agreement and ML-KEM-768 together: c_pk = agreement key || encapsulation key.

    The key of one direction is HKDF(agreed secret || KEM secret, "share-key", rh, KEM ciphertext,
    c_pk of the dealer, c_pk of the recipient): it holds while either of the two does, and binds
    everything that was sent for it.
    """

    overhead = _KEM_CIPHERTEXT_BYTES + _GCM_TAG_BYTES
    draws = True

    def __init__(self, agreement: KeyAgreement) -> None:
        self._agreement = agreement
        self.public_key_bytes = agreement.public_key_bytes + _KEM_PUBLIC_BYTES
        self.public_key_start = agreement.public_key_start

    def public_key(self, seed: bytes) -> bytes:
        private = self._agreement.private_key(seed, Label.TRANSPORT_SCALAR)
        return self._agreement.public_key(private) + _kem_key(seed).public_key().public_bytes_raw()

    def key_identities(self, public: bytes) -> tuple[bytes, ...]:
        agreed, kem = self._split(public)
        _kem_public(kem)
        return self._agreement.key_identity(agreed), kem

    def encapsulate(self, public: bytes) -> Encapsulation:
        secret, ciphertext = _kem_public(self._split(public)[1]).encapsulate()
        return Encapsulation(secret, ciphertext)

    def box(self, seed: bytes, rh: bytes) -> ShareBox:
        private = self._agreement.private_key(seed, Label.TRANSPORT_SCALAR)
        return _HybridBox(self._agreement, private, seed, rh)

    def _split(self, public: bytes) -> tuple[bytes, bytes]:
        if len(public) != self.public_key_bytes:
            message = f"a hybrid key has {len(public)} bytes, not {self.public_key_bytes}"
            raise PeerError(Reason.MALFORMED, message)
        size = self._agreement.public_key_bytes
        return public[:size], public[size:]


class _HybridBox(ShareBox):
    def __init__(
        self, agreement: KeyAgreement, private: AgreementKey, seed: bytes, rh: bytes
    ) -> None:
        self._agreement = agreement
        self._private = private
        self._kem = _kem_key(seed)
        self._public = agreement.public_key(private) + self._kem.public_key().public_bytes_raw()
        self._rh = rh
        self._agreed: dict[bytes, bytes] = {}

    def seal(
        self, peer: bytes, way: Direction, plaintext: bytes, drawn: Encapsulation | None
    ) -> bytes:
        if drawn is None:
            raise UsageError("hybrid share transport needs a draw for each recipient")
        cipher = self._cipher(peer, drawn, (self._public, peer))
        return drawn.ciphertext + cipher.encrypt(way.nonce, plaintext, way.aad)

    def open(self, peer: bytes, way: Direction, ciphertext: bytes) -> bytes:
        kem, sealed = ciphertext[:_KEM_CIPHERTEXT_BYTES], ciphertext[_KEM_CIPHERTEXT_BYTES:]
        try:
            # A wrong ciphertext of the right length gives another secret (implicit rejection).
            drawn = Encapsulation(self._kem.decapsulate(kem), kem)
        except ValueError as error:
            raise PeerError(Reason.BAD_SHARE, "a sealed share is cut short") from error
        return _decrypt(self._cipher(peer, drawn, (peer, self._public)), way, sealed)

    def _cipher(self, peer: bytes, drawn: Encapsulation, ends: tuple[bytes, bytes]) -> AESGCM:
        agreed = self._agreed.get(peer)
        if agreed is None:
            own = peer[: self._agreement.public_key_bytes]
            agreed = self._agreed[peer] = self._agreement.agree(self._private, own)
        info = (Label.SHARE_KEY, self._rh, drawn.ciphertext, *ends)
        return AESGCM(hkdf(agreed + drawn.secret, *info))


P256_TRANSPORT = _AgreementTransport(ECDH_P256)
X25519_TRANSPORT = _AgreementTransport(ECDH_X25519)
MLKEM768_X25519_TRANSPORT = _HybridTransport(ECDH_X25519)


def _decrypt(cipher: AESGCM, way: Direction, sealed: bytes) -> bytes:
    try:
        return cipher.decrypt(way.nonce, sealed, way.aad)
    except (InvalidTag, ValueError) as error:
        raise PeerError(Reason.BAD_SHARE, "a sealed share does not open") from error


def _kem_key(seed: bytes) -> MLKEM768PrivateKey:
    """Derive a decapsulation key: FIPS 203's seed (d, z) is HKDF(seed, "kem-c", 64)."""
    wide = hkdf(check_seed(seed), Label.TRANSPORT_KEM, length=_KEM_SEED_BYTES)
    return MLKEM768PrivateKey.from_seed_bytes(wide)


@lru_cache(maxsize=1024)
def _kem_public(raw: bytes) -> MLKEM768PublicKey:
    """Load an encapsulation key; the library makes FIPS 203's checks of length and modulus."""
    try:
        return MLKEM768PublicKey.from_public_bytes(raw)
    except ValueError as error:
        raise PeerError(Reason.MALFORMED, "an ML-KEM-768 encapsulation key is none") from error
