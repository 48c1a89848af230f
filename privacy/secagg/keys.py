"""Suites: which algorithms a consortium's sites use, and what a one-time bundle derives from.

A suite is three parts: the keys of pairwise masks (``agreement``), the transport of shares
(``transport``) and the signatures of sites (``signatures``). Nothing outside asks which suite it
is: who needs a part uses it. Not here: who holds a seed and for how long (the site's store).
"""

from dataclasses import dataclass, field

from privacy.errors import UsageError
from privacy.secagg import shamir
from privacy.secagg.agreement import ECDH_P256, ECDH_X25519, AgreementKey, KeyAgreement
from privacy.secagg.encoding import Label
from privacy.secagg.kdf import SEED_BYTES, check_seed, hkdf
from privacy.secagg.messages import Bundle, Fingerprint
from privacy.secagg.signatures import (
    ECDSA_P256,
    ED25519,
    SignatureScheme,
    SigningKey,
    SoftwareSigner,
    fingerprint_of,
)
from privacy.secagg.statements import reveal_commitment
from privacy.secagg.transport import (
    MLKEM768_X25519_TRANSPORT,
    P256_TRANSPORT,
    X25519_TRANSPORT,
    ShareTransport,
)

__all__ = [
    "MLKEM768_X25519",
    "P256",
    "SEED_BYTES",
    "SUITES",
    "X25519",
    "AgreementKey",
    "BundleSecrets",
    "SigningKey",
    "SoftwareSigner",
    "Suite",
    "fingerprint_of",
    "hkdf",
    "make_bundle",
    "suite_named",
]


@dataclass(frozen=True)
class Suite:
    """The algorithms of one suite, named in the signed manifest, never by the aggregator.

    Attributes:
        name: As in the manifest.
        masks: Keys of pairwise masks, m.
        transport: Share transport, c.
        signatures: By the sites' pinned keys.
    """

    name: str
    masks: KeyAgreement
    transport: ShareTransport
    signatures: SignatureScheme

    def __repr__(self) -> str:
        return f"Suite({self.name})"

    @property
    def share_ciphertext_bytes(self) -> int:
        """Return the length of what a site deals to one other member: two shares, sealed."""
        return 2 * shamir.SHARE_BYTES + self.transport.overhead

    def key_identities(self, bundle: Bundle) -> tuple[bytes, ...]:
        """Return what no two keys of a cohort may share, of both keys of a bundle.

        Raises:
            PeerError: MALFORMED, one of them is no key of this suite.
        """
        transport = self.transport.key_identities(bundle.c_pk)
        return (*transport, self.masks.key_identity(bundle.m_pk))

    def private_key(self, seed: bytes, label: Label) -> AgreementKey:
        """Derive a private mask key; see ``KeyAgreement``."""
        return self.masks.private_key(seed, label)

    def public_key(self, private: AgreementKey) -> bytes:
        """Return a mask key's public half as it travels."""
        return self.masks.public_key(private)

    def agree(self, private: AgreementKey, peer_public: bytes) -> bytes:
        """Return the secret of two mask keys; see ``KeyAgreement``."""
        return self.masks.agree(private, peer_public)

    def key_identity(self, public: bytes) -> bytes:
        """Return a mask key's identity; see ``KeyAgreement``."""
        return self.masks.key_identity(public)

    def verify(self, spki: bytes, signature: bytes, message: bytes) -> None:
        """Check a signature by a pinned key; see ``SignatureScheme``."""
        self.signatures.verify(spki, signature, message)


P256 = Suite("P256_SHA256_AES256", ECDH_P256, P256_TRANSPORT, ECDSA_P256)
"""FIPS-approved parts only; the default."""

X25519 = Suite("X25519_ED25519_SHA256_AES256", ECDH_X25519, X25519_TRANSPORT, ED25519)

MLKEM768_X25519 = Suite(
    "MLKEM768_X25519_ED25519_SHA256_AES256", ECDH_X25519, MLKEM768_X25519_TRANSPORT, ED25519
)
"""Post-quantum share transport; masks and signatures are not (docs/threat-model.md)."""

SUITES: dict[str, Suite] = {suite.name: suite for suite in (P256, X25519, MLKEM768_X25519)}


def suite_named(name: str) -> Suite:
    """Return the suite that a manifest names.

    Raises:
        UsageError: No such suite in this version.
    """
    try:
        return SUITES[name]
    except KeyError:
        known = ", ".join(sorted(SUITES))
        raise UsageError(f"suite {name!r} is unknown; this version has {known}") from None


@dataclass(frozen=True)
class BundleSecrets:
    """What a one-time bundle derives from: one 32-byte seed, used for one attempt, then erased."""

    seed: bytes = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse a seed of the wrong length."""
        check_seed(self.seed)

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
        """The random r that the bundle commits to, revealed in step 0 of a sparse cohort."""
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
    m_key = suite.masks.private_key(secrets.mask_seed, Label.MASK_SCALAR)
    return Bundle(
        consortium_id=consortium_id,
        site=site,
        instance_id=instance_id,
        serial=serial,
        c_pk=suite.transport.public_key(secrets.transport_seed),
        m_pk=suite.masks.public_key(m_key),
        r_commitment=reveal_commitment(secrets.graph_reveal),
        not_after_s=not_after_s,
    )
