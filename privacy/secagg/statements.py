"""The exact bytes that are signed, hashed, committed to or authenticated in SA-1.

Both machines and the retry rule take them from here, so that they cannot differ.
"""

import hashlib
from collections.abc import Iterable

from privacy.secagg.encoding import SIGNED_PREFIX, Label, enc, hash_of
from privacy.secagg.merkle import MerkleTree
from privacy.secagg.messages import Bundle, DeliveredShare, ShareCommitments, SignedBundle


def bundle_statement(bundle: Bundle) -> bytes:
    """Return what the owner of a bundle signs."""
    return SIGNED_PREFIX + bundle.body()


def share_statement(rh: bytes, root: bytes, self_seed_commitment: bytes) -> bytes:
    """Return what a dealer signs in step 1: ("share", rh, Merkle root, H("b", ...)).

    The root (``share_tree``) covers every ciphertext and every commitment to a share.
    """
    return SIGNED_PREFIX + enc(Label.SHARE_STATEMENT, rh, root, self_seed_commitment)


def survivor_statement(
    rh: bytes, mh: bytes, dealt: Iterable[int], survivors: Iterable[int]
) -> bytes:
    """Return what a site signs in step 3: ("u3", rh, mh, H(U2), H(U3)), sets by index."""
    return SIGNED_PREFIX + enc(
        Label.SURVIVOR_STATEMENT, rh, mh, index_set_hash(dealt), index_set_hash(survivors)
    )


def abort_statement(ctx: bytes, rh: bytes) -> bytes:
    """Return what a site signs to give an attempt up: ("abort", ctx, rh)."""
    return SIGNED_PREFIX + enc(Label.ABORT_STATEMENT, ctx, rh)


def roster_hash(ctx: bytes, bundles: Iterable[SignedBundle]) -> bytes:
    """Return ``rh``: over ctx and the signed bodies, never the malleable signatures: 32 bytes."""
    return hash_of(Label.ROSTER, ctx, *(signed.bundle.body() for signed in bundles))


def reveal_commitment(value: bytes) -> bytes:
    """Commit to the r of a bundle: 32 bytes."""
    return hash_of(Label.GRAPH_REVEAL_COMMITMENT, value)


def graph_seed(rh: bytes, reveals: Iterable[bytes]) -> bytes:
    """Return what the sparse graph is drawn from: H("graph", rh, every r by index): 32 bytes."""
    return hash_of(Label.GRAPH, rh, *reveals)


def index_set_hash(indices: Iterable[int]) -> bytes:
    """Hash a set of indices, whatever its order: 32 bytes."""
    return hash_of(Label.INDEX_SET, *sorted(indices))


def ciphertext_hash(ciphertext: bytes) -> bytes:
    """Hash one ciphertext: 32 bytes."""
    return hash_of(Label.CIPHERTEXT, ciphertext)


def share_leaf(recipient: int, ciphertext: bytes, self_share: bytes, mask_share: bytes) -> bytes:
    """Hash what one recipient is dealt: its index, ciphertext and both commitments: 32 bytes."""
    return hash_of(Label.SHARE_LEAF, recipient, ciphertext_hash(ciphertext), self_share, mask_share)


def share_tree(
    recipients: Iterable[int], ciphertexts: Iterable[bytes], commitments: ShareCommitments
) -> MerkleTree:
    """Return the tree over a dealer's leaves, one a recipient, the dealer itself included.

    Args:
        recipients: Indices, ascending; ciphertexts and commitments go by them.
        ciphertexts: The dealer's own is empty.
        commitments: Of the same length.
    """
    dealt = zip(
        recipients, ciphertexts, commitments.self_shares, commitments.mask_shares, strict=True
    )
    return MerkleTree(tuple(share_leaf(*one) for one in dealt))


def self_seed_commitment(rh: bytes, owner: int, self_seed: bytes) -> bytes:
    """Commit to the self-mask seed b: H("b", rh, i, b_i)."""
    return hash_of(Label.SELF_SEED_COMMITMENT, rh, owner, self_seed)


def share_commitment(label: Label, rh: bytes, owner: int, holder: int, share: bytes) -> bytes:
    """Commit to one share of one kind, for one holder: 32 bytes."""
    return hash_of(label, rh, owner, holder, share)


def share_aad(rh: bytes, dealer: int, recipient: int) -> bytes:
    """Return what a share's ciphertext is bound to: rh, dealer, recipient."""
    return enc(rh, dealer, recipient)


def share_nonce(dealer: int, recipient: int) -> bytes:
    """Return the GCM nonce: u32 dealer, u32 recipient, u32 0 (one key per pair and attempt)."""
    return dealer.to_bytes(4, "big") + recipient.to_bytes(4, "big") + bytes(4)


def delivery_digest(shares: Iterable[tuple[int, DeliveredShare]]) -> bytes:
    """Name the input of step 2, by dealer's index, leaving out malleable signatures."""
    digest = hashlib.sha256(enc(Label.DELIVERY_INPUT))
    for index, share in sorted(shares, key=lambda pair: pair[0]):
        digest.update(
            enc(
                index,
                share.ciphertext,
                share.self_seed,
                share.self_share,
                share.mask_share,
                len(share.path),
                *share.path,
            )
        )
    return digest.digest()


def transcript_hash(
    ctx: bytes, rh: bytes, mh: bytes, dealt: Iterable[int], survivors: Iterable[int]
) -> bytes:
    """Return what the aggregator publishes beside the sum: 32 bytes."""
    return hash_of(Label.TRANSCRIPT, ctx, rh, mh, index_set_hash(dealt), index_set_hash(survivors))
