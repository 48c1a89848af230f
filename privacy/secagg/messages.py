"""What travels in one attempt of SA-1, as values: made valid or not at all.

Bytes from the wire become these in ``tidegate.convert`` and nowhere else; the state machines in
``site.py`` and ``server.py`` take and give them. Each ``body()`` is the injective encoding that is
signed or hashed (docs/protocol.md). Sites are named by their fingerprint, the SHA-256 of the SPKI
of their pinned signing key; an index is the 1-based rank of the fingerprint in the sorted roster.
"""

from dataclasses import dataclass, field
from functools import cached_property

from privacy.secagg.encoding import Label, enc, hash_of

Fingerprint = bytes
"""32 bytes: SHA-256 of the SPKI (DER) of a site's pinned signing key."""


@dataclass(frozen=True)
class AttemptContext:
    """The names that tie every frame of an attempt to it, and to nothing else."""

    suite: str
    consortium_id: str
    manifest_hash: bytes
    job_id: str
    roster_epoch: int
    round: int
    attempt: int

    def digest(self) -> bytes:
        """Return ``ctx``: 32 bytes, the hash over all names under the protocol's version label."""
        return hash_of(
            Label.CONTEXT,
            self.suite,
            self.consortium_id,
            self.manifest_hash,
            self.job_id,
            self.roster_epoch,
            self.round,
            self.attempt,
        )


@dataclass(frozen=True)
class Bundle:
    """One-time public keys of a site, put into stock at the aggregator before they are needed."""

    consortium_id: str
    site: Fingerprint
    instance_id: bytes
    serial: int
    c_pk: bytes
    m_pk: bytes
    r_commitment: bytes
    not_after_s: int

    def body(self) -> bytes:
        """Return the bytes that the site signs under the label ``bundle``."""
        return self._body

    @cached_property
    def _body(self) -> bytes:
        # Kept: a site needs it for the input's digest, for rh and for the owner's signature.
        return enc(
            Label.BUNDLE,
            self.consortium_id,
            self.site,
            self.instance_id,
            self.serial,
            self.c_pk,
            self.m_pk,
            self.r_commitment,
            self.not_after_s,
        )


@dataclass(frozen=True)
class SignedBundle:
    """A bundle and the signature of its owner's pinned key."""

    bundle: Bundle
    signature: bytes


@dataclass(frozen=True)
class BaseVersion:
    """The model version that one site of the cohort trained from, as the plan states it."""

    site: Fingerprint
    version: int


@dataclass(frozen=True)
class CohortPlan:
    """What ``mh`` binds into every mask key and signature: the encoding, the rules, the models.

    ``encoding`` is the canonical bytes of ``privacy.pipeline.EncodingPlan`` (vector spec, map and
    seed, scale, clipping norms, noise, sampling rate, bit width B). ``chain_head`` is the hash
    chain over the broadcast bytes of all model versions up to the newest base. The manifest's
    ``dropout_percent`` chooses the sparse graph's degree.
    """

    encoding: bytes
    ring_bits: int
    length: int
    colluders: int
    min_survivors: int
    dropout_percent: int
    chain_head: bytes
    bases: tuple[BaseVersion, ...]

    def digest(self) -> bytes:
        """Return ``mh``: 32 bytes."""
        flat: list[bytes | int] = []
        for base in self.bases:
            flat += [base.site, base.version]
        return hash_of(
            Label.PLAN,
            self.encoding,
            self.ring_bits,
            self.length,
            self.colluders,
            self.min_survivors,
            self.dropout_percent,
            self.chain_head,
            len(self.bases),
            *flat,
        )


@dataclass(frozen=True)
class Roster:
    """Step 0, aggregator to site: the cohort U1, sorted by fingerprint, and the frozen plan."""

    context: AttemptContext
    bundles: tuple[SignedBundle, ...]
    plan: CohortPlan


@dataclass(frozen=True)
class GraphReveal:
    """Step 0 of a sparse cohort, site to aggregator: the r that its bundle commits to."""

    ctx: bytes
    sender: Fingerprint
    value: bytes


@dataclass(frozen=True)
class GraphReveals:
    """Step 1 of a sparse cohort, aggregator to site: every member's r, by index."""

    ctx: bytes
    values: tuple[bytes, ...]


@dataclass(frozen=True)
class ShareCommitments:
    """What a site commits to in step 1: its self-mask seed, and each share by ``holders``."""

    self_seed: bytes
    self_shares: tuple[bytes, ...]
    mask_shares: tuple[bytes, ...]


@dataclass(frozen=True)
class DealtShares:
    """Step 1, site to aggregator: one ciphertext a holder (ascending, own left empty), signed."""

    ctx: bytes
    sender: Fingerprint
    ciphertexts: tuple[bytes, ...]
    commitments: ShareCommitments
    signature: bytes


@dataclass(frozen=True)
class DeliveredShare:
    """Step 2, aggregator to site: what one member of U2 dealt, cut down to this recipient.

    Attributes:
        sender: The dealer.
        ciphertext: Both shares for this recipient.
        self_seed: The dealer's commitment to its self-mask seed.
        self_share: Its commitment to this recipient's share of that seed.
        mask_share: Its commitment to this recipient's share of the mask seed.
        path: From this recipient's leaf to the root that the dealer signed (``merkle``).
        signature: The dealer's, on ("share", rh, root, commitment to b).
    """

    sender: Fingerprint
    ciphertext: bytes
    self_seed: bytes
    self_share: bytes
    mask_share: bytes
    path: tuple[bytes, ...]
    signature: bytes


@dataclass(frozen=True)
class ShareDelivery:
    """Step 2, aggregator to site: the shares dealt by every neighbour in U2."""

    ctx: bytes
    shares: tuple[DeliveredShare, ...]


@dataclass(frozen=True)
class SurvivorSet:
    """Step 3, aggregator to site: who dealt (U2) and whose update is whole (U3), by index."""

    ctx: bytes
    dealt: tuple[int, ...]
    survivors: tuple[int, ...]


@dataclass(frozen=True)
class SurvivorSignature:
    """Step 3, site to aggregator: the signature on ("u3", rh, mh, H(U2), H(U3))."""

    ctx: bytes
    sender: Fingerprint
    signature: bytes


@dataclass(frozen=True)
class SurvivorQuorum:
    """Step 4, aggregator to site: at least T signatures on one survivor set."""

    ctx: bytes
    signatures: tuple[SurvivorSignature, ...]


@dataclass(frozen=True)
class RevealedShare:
    """One share of one peer's secret, by the peer's index; never both secrets of one peer."""

    owner: int
    value: bytes = field(repr=False)


@dataclass(frozen=True)
class UnmaskShares:
    """Step 4, site to aggregator: self-mask shares of survivors, mask-key shares of drop-outs.

    ``surplus_seeds``: of the parts of this site's own noise that so many survivors do not need, by
    level (`privacy.surplus`); empty where all noise stays.
    """

    ctx: bytes
    sender: Fingerprint
    self_shares: tuple[RevealedShare, ...]
    mask_shares: tuple[RevealedShare, ...]
    surplus_seeds: tuple[bytes, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class AbortRequest:
    """Aggregator to site: give this attempt up, and sign that you did (the retry rule)."""

    ctx: bytes
    reason: str


@dataclass(frozen=True)
class AbortSignature:
    """Site to aggregator: the signature on ("abort", ctx, rh): this site will sign no U3 of it.

    ``accused`` is not signed and proves nothing: the member whose dealt share did not check here,
    so that the operator can look at both; empty otherwise.
    """

    ctx: bytes
    sender: Fingerprint
    signature: bytes
    accused: Fingerprint = b""


@dataclass(frozen=True)
class Published:
    """Aggregator to site: the sum is out. The site checks the transcript hash and forgets all keys.

    ``transcript_hash`` is ``statements.transcript_hash``: ctx, rh, mh, U2 and U3. The integer sum
    itself travels in the broadcast of the next model version.
    """

    ctx: bytes
    transcript_hash: bytes


@dataclass(frozen=True)
class RetryVote:
    """One signature that counts for the retry rule: on abort, or on a U3 without the asking site.

    ``dealt`` and ``survivors`` are the signed sets by index; both empty for a vote on abort.
    """

    signer: Fingerprint
    signature: bytes
    dealt: tuple[int, ...] = ()
    survivors: tuple[int, ...] = ()


@dataclass(frozen=True)
class RetryProof:
    """Aggregator to site: votes that attempt ``ctx`` can no longer end with this site's update."""

    ctx: bytes
    votes: tuple[RetryVote, ...]


@dataclass(frozen=True)
class MaskTerm:
    """One keystream to add to (sign +1) or subtract from (sign -1) a vector in Z_(2^B)."""

    key: bytes
    sign: int

    def __repr__(self) -> str:
        return f"MaskTerm(key=<secret>, sign={self.sign:+d})"
