"""The exact bytes that are signed, hashed, committed to or authenticated in SA-1.

Both machines and the retry rule take them from here, so that they cannot differ.
"""

import hashlib
from collections.abc import Iterable

from privacy.secagg.encoding import SIGNED_PREFIX, Label, enc, hash_of
from privacy.secagg.messages import Bundle, DeliveredShare, ShareCommitments, SignedBundle


def bundle_statement(bundle: Bundle) -> bytes:
    """Return what the owner of a bundle signs."""
    return SIGNED_PREFIX + bundle.body()


def share_statement(rh: bytes, ciphertexts_hash: bytes, commitments: ShareCommitments) -> bytes:
    """Return what a dealer signs in step 1: ("share", rh, H(ciphertexts), commitments)."""
    return SIGNED_PREFIX + enc(
        Label.SHARE_STATEMENT, rh, ciphertexts_hash, commitments_hash(commitments)
    )


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


def index_set_hash(indices: Iterable[int]) -> bytes:
    """Hash a set of indices, whatever its order: 32 bytes."""
    return hash_of(Label.INDEX_SET, *sorted(indices))


def ciphertext_hash(ciphertext: bytes) -> bytes:
    """Hash one ciphertext: 32 bytes."""
    return hash_of(Label.CIPHERTEXT, ciphertext)


def ciphertexts_hash(hashes: Iterable[bytes]) -> bytes:
    """Hash a dealer's ciphertexts through their hashes, so a recipient needs only its own."""
    return hash_of(Label.CIPHERTEXTS, *hashes)


def commitments_hash(commitments: ShareCommitments) -> bytes:
    """Hash all commitments of a dealer: 32 bytes."""
    return hash_of(
        Label.COMMITMENTS,
        commitments.self_seed,
        len(commitments.self_shares),
        *commitments.self_shares,
        len(commitments.mask_shares),
        *commitments.mask_shares,
    )


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
                ciphertexts_hash(share.ciphertext_hashes),
                commitments_hash(share.commitments),
            )
        )
    return digest.digest()


def transcript_hash(
    ctx: bytes, rh: bytes, mh: bytes, dealt: Iterable[int], survivors: Iterable[int]
) -> bytes:
    """Return what the aggregator publishes beside the sum: 32 bytes."""
    return hash_of(Label.TRANSCRIPT, ctx, rh, mh, index_set_hash(dealt), index_set_hash(survivors))
