"""The arithmetic of a site's steps: deal, open, mask, unmask. No state and no order of steps here.

Whether a step may be done at all, and only once, is the business of ``site.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg import shamir, statements
from privacy.secagg.cohort import Cohort
from privacy.secagg.encoding import Label
from privacy.secagg.kdf import hkdf
from privacy.secagg.keys import AgreementKey, BundleSecrets, Suite
from privacy.secagg.merkle import root_of_path
from privacy.secagg.messages import (
    DeliveredShare,
    Fingerprint,
    MaskTerm,
    RevealedShare,
    ShareCommitments,
    ShareDelivery,
    UnmaskShares,
)
from privacy.secagg.transport import Direction, Encapsulation, ShareBox


class DealerError(PeerError):
    """A member of the cohort dealt something that does not check; ``dealer`` is its fingerprint."""

    def __init__(self, reason: Reason, message: str, dealer: Fingerprint) -> None:
        super().__init__(reason, message)
        self.dealer = dealer


@dataclass(frozen=True)
class SiteSecrets:
    """The secrets of one attempt, each 32 bytes from a CSPRNG, never used for another.

    Attributes:
        bundle: What the one-time bundle was made from.
        self_mask_seed: b.
        coefficient_seed: Shamir's coefficients derive from it.
        surplus_seeds: Of the update to be sent, one a level of the plan (`privacy.surplus`).
    """

    bundle: BundleSecrets = field(repr=False)
    self_mask_seed: bytes = field(repr=False)
    coefficient_seed: bytes = field(repr=False)
    surplus_seeds: tuple[bytes, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class SharePair:
    """Both shares that one holder got from one owner."""

    self_share: bytes = field(repr=False)
    mask_share: bytes = field(repr=False)


@dataclass(frozen=True)
class Dealing:
    """What a site deals in step 1, the root it signs, and the pair of shares it keeps."""

    ciphertexts: tuple[bytes, ...]
    commitments: ShareCommitments
    root: bytes
    kept: SharePair


class SiteCrypto:
    """The keys of one site in one attempt; every step is a function of them and of its input."""

    def __init__(self, suite: Suite, cohort: Cohort, me: Fingerprint, secrets: SiteSecrets) -> None:
        self._suite = suite
        self._cohort = cohort
        self._me = cohort.index_of(me)
        self._secrets = secrets
        self._dealing: Dealing | None = None

    def __repr__(self) -> str:
        return f"SiteCrypto(index={self._me})"

    @property
    def dealing(self) -> Dealing:
        """What was dealt in step 1."""
        if self._dealing is None:
            raise UsageError("nothing was dealt in this attempt yet")
        return self._dealing

    @property
    def keys_to_draw_for(self) -> tuple[bytes, ...]:
        """c_pk of each recipient, ascending, where the suite draws a secret for each; or none."""
        if not self._suite.transport.draws:
            return ()
        return tuple(map(self._cohort.c_pk, self._cohort.graph.neighbours(self._me)))

    def deal(self, drawn: tuple[Encapsulation, ...] = ()) -> Dealing:
        """Share b and the seed of m among neighbours, sealed and committed to (step 1).

        Args:
            drawn: For ``keys_to_draw_for``, in its order.

        Raises:
            UsageError: Another number was drawn.
        """
        cohort, i, keys = self._cohort, self._me, self.keys_to_draw_for
        if len(drawn) != len(keys):
            raise UsageError(f"{len(drawn)} secrets were drawn, {len(keys)} were asked for")
        fresh = dict(zip(cohort.graph.neighbours(i), drawn, strict=True)) if drawn else {}
        dealt = zip(cohort.graph.holders(i), *self._both_shares, strict=True)
        ciphertexts = tuple(
            b"" if j == i else self._seal(j, self_share + mask_share, fresh.get(j))
            for j, self_share, mask_share in dealt
        )
        return self.deal_again(ciphertexts)

    def deal_again(self, ciphertexts: tuple[bytes, ...]) -> Dealing:
        """Give what was dealt, its sealed shares being known: after a crash, from slot 1."""
        cohort, rh, i = self._cohort, self._cohort.rh, self._me
        holders, own = cohort.graph.holders(i), cohort.graph.rank(i, i)
        self_shares, mask_shares = self._both_shares
        commitments = ShareCommitments(
            statements.self_seed_commitment(rh, i, self._secrets.self_mask_seed),
            self._commitments(Label.SELF_SHARE_COMMITMENT, self_shares),
            self._commitments(Label.MASK_SHARE_COMMITMENT, mask_shares),
        )
        root = statements.share_tree(holders, ciphertexts, commitments).root
        kept = SharePair(self_shares[own], mask_shares[own])
        self._dealing = Dealing(ciphertexts, commitments, root, kept)
        return self._dealing

    def open_delivery(
        self, shares: Mapping[int, DeliveredShare], pinned: Mapping[Fingerprint, bytes]
    ) -> dict[int, SharePair]:
        """Verify, decrypt and check every dealt share against its commitment (step 2).

        Raises:
            DealerError: BAD_SIGNATURE or BAD_SHARE or MALFORMED, with the dealer.
        """
        return {j: self._open_one(j, share, pinned) for j, share in shares.items()}

    def reopen(self, ciphertexts: Mapping[int, bytes]) -> dict[int, SharePair]:
        """Decrypt again what was verified before a crash (slot 2)."""
        return {j: self._decrypt(j, ciphertext) for j, ciphertext in ciphertexts.items()}

    def mask_terms(self, dealt: tuple[int, ...]) -> tuple[MaskTerm, ...]:
        """Return the self mask and one pairwise mask for each other member of U2_i."""
        cohort, i = self._cohort, self._me
        terms = [MaskTerm(self_mask_key(cohort, self._secrets.self_mask_seed), 1)]
        m_key = self._suite.private_key(self._secrets.bundle.mask_seed, Label.MASK_SCALAR)
        terms += [
            MaskTerm(pair_mask_key(self._suite, cohort, m_key, j), 1 if i < j else -1)
            for j in dealt
            if j != i
        ]
        return tuple(terms)

    @cached_property
    def _both_shares(self) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        return (
            self._shares(self._secrets.self_mask_seed, Label.SELF_SHARE_COMMITMENT),
            self._shares(self._secrets.bundle.mask_seed, Label.MASK_SHARE_COMMITMENT),
        )

    def _shares(self, secret: bytes, kind: Label) -> tuple[bytes, ...]:
        cohort = self._cohort
        higher = shamir.coefficients(
            self._secrets.coefficient_seed, cohort.limits.shares - 1, kind, cohort.rh, self._me
        )
        return shamir.split(secret, higher, cohort.graph.holders(self._me))

    def _commitments(self, label: Label, shares: tuple[bytes, ...]) -> tuple[bytes, ...]:
        holders = self._cohort.graph.holders(self._me)
        return tuple(
            statements.share_commitment(label, self._cohort.rh, self._me, holder, share)
            for holder, share in zip(holders, shares, strict=True)
        )

    def _seal(self, j: int, plaintext: bytes, drawn: Encapsulation | None) -> bytes:
        return self._box.seal(self._cohort.c_pk(j), self._way(self._me, j), plaintext, drawn)

    @cached_property
    def _box(self) -> ShareBox:
        return self._suite.transport.box(self._secrets.bundle.transport_seed, self._cohort.rh)

    def _way(self, dealer: int, recipient: int) -> Direction:
        aad = statements.share_aad(self._cohort.rh, dealer, recipient)
        return Direction(statements.share_nonce(dealer, recipient), aad)

    def _open_one(
        self, j: int, share: DeliveredShare, pinned: Mapping[Fingerprint, bytes]
    ) -> SharePair:
        cohort, i, dealer = self._cohort, self._me, self._cohort.members[j - 1]
        leaf = statements.share_leaf(i, share.ciphertext, share.self_share, share.mask_share)
        try:
            position, size = cohort.graph.rank(j, i), len(cohort.graph.holders(j))
            root = root_of_path(leaf, position, size, share.path)
            statement = statements.share_statement(cohort.rh, root, share.self_seed)
            self._suite.verify(pinned[dealer], share.signature, statement)
        except PeerError as error:
            message = f"what {cohort.name(j)} dealt is not what it signed: {error.args[0]}"
            raise DealerError(error.reason, message, dealer) from error
        pair = self._decrypt(j, share.ciphertext)
        for label, value, committed in (
            (Label.SELF_SHARE_COMMITMENT, pair.self_share, share.self_share),
            (Label.MASK_SHARE_COMMITMENT, pair.mask_share, share.mask_share),
        ):
            if statements.share_commitment(label, cohort.rh, j, i, value) != committed:
                raise DealerError(
                    Reason.BAD_SHARE, f"share of {cohort.name(j)} misses its commitment", dealer
                )
        return pair

    def _decrypt(self, j: int, ciphertext: bytes) -> SharePair:
        cohort, i = self._cohort, self._me
        try:
            both = self._box.open(cohort.c_pk(j), self._way(j, i), ciphertext)
            pair = SharePair(both[: shamir.SHARE_BYTES], both[shamir.SHARE_BYTES :])
            shamir.check_share(pair.self_share)
            shamir.check_share(pair.mask_share)
        except PeerError as error:
            message = f"ciphertext of {cohort.name(j)} does not open to two shares"
            raise DealerError(Reason.BAD_SHARE, message, cohort.members[j - 1]) from error
        return pair


def unmask_shares(
    cohort: Cohort,
    me: Fingerprint,
    held: Mapping[int, SharePair],
    survivors: tuple[int, ...],
    surplus_seeds: tuple[bytes, ...],
) -> UnmaskShares:
    """Choose for each member of U2_i the one share that is revealed (step 4).

    One branch: b where the member survived, else m. There is no path to both.

    Args:
        cohort: The attempt's cohort.
        me: The revealing site.
        held: By owner's index, ascending, for every member of U2_i, this site included.
        survivors: U3, ascending.
        surplus_seeds: Those of this site that U3 is large enough to do without.
    """
    alive = frozenset(survivors)
    self_shares: list[RevealedShare] = []
    mask_shares: list[RevealedShare] = []
    for j, pair in held.items():
        if j in alive:
            self_shares.append(RevealedShare(j, pair.self_share))
        else:
            mask_shares.append(RevealedShare(j, pair.mask_share))
    return UnmaskShares(cohort.ctx, me, tuple(self_shares), tuple(mask_shares), surplus_seeds)


def index_delivery(
    cohort: Cohort, me: Fingerprint, delivery: ShareDelivery
) -> dict[int, DeliveredShare]:
    """Sort a delivery by dealer's index.

    Raises:
        PeerError: UNAUTHENTICATED, a dealer that is no member; MALFORMED, this site, no neighbour
            of it, or one twice.
    """
    shares: dict[int, DeliveredShare] = {}
    own = cohort.index_of(me)
    for share in delivery.shares:
        index = cohort.index_of(share.sender)
        if index in shares or index == own or not cohort.graph.are_neighbours(index, own):
            raise PeerError(Reason.MALFORMED, f"the delivery holds {cohort.name(index)} wrongly")
        shares[index] = share
    return dict(sorted(shares.items()))


def self_mask_key(cohort: Cohort, self_mask_seed: bytes) -> bytes:
    """Derive the key of a self mask: HKDF(b, "self", rh, mh)."""
    return hkdf(self_mask_seed, Label.SELF_MASK_KEY, cohort.rh, cohort.mh)


def pair_mask_key(suite: Suite, cohort: Cohort, m_key: AgreementKey, j: int) -> bytes:
    """Derive the key of a pairwise mask: HKDF(ECDH(m_i, m_j), "pair", rh, mh)."""
    secret = suite.agree(m_key, cohort.m_pk(j))
    return hkdf(secret, Label.PAIR_MASK_KEY, cohort.rh, cohort.mh)
