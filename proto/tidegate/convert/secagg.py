"""Frames of the secure exchange: protobuf <-> ``privacy.secagg.messages``.

Shapes, lengths and order only: whether a signature verifies, a point lies on its curve or a set is
the right one is the state machines' judgement, as they must name who is to blame. Senders come from
the authenticated session, never from the frame alone.
"""

from collections.abc import Sequence
from itertools import pairwise

from privacy.errors import PeerError, Reason
from privacy.secagg.agreement import KeyAgreement
from privacy.secagg.keys import SEED_BYTES, Suite
from privacy.secagg.messages import (
    AbortRequest,
    AbortSignature,
    AttemptContext,
    BaseVersion,
    Bundle,
    CohortPlan,
    DealtShares,
    DeliveredShare,
    Fingerprint,
    GraphReveal,
    GraphReveals,
    RevealedShare,
    Roster,
    ShareCommitments,
    ShareDelivery,
    SignedBundle,
    SurvivorQuorum,
    SurvivorSet,
    SurvivorSignature,
    UnmaskShares,
)
from privacy.secagg.shamir import SHARE_BYTES
from privacy.secagg.transport import ShareTransport
from privacy.surplus import MAX_LEVELS
from tidegate.convert import bounds
from tidegate.convert.bounds import Limits, malformed
from tidegate.manifest import MAX_DROPOUT_PERCENT
from tidegate.v1 import secagg_pb2 as pb

MAX_PLAN_BYTES = 1 << 20
_MAX_ATTEMPT = 100_000


# --- from the wire -------------------------------------------------------------------------------


def bundle_from_wire(message: pb.Bundle, name: str, suite: Suite) -> SignedBundle:
    """Take one signed one-time bundle with keys of a suite."""
    bundle = Bundle(
        consortium_id=bounds.slug(message.consortium_id, f"{name}.consortium_id"),
        site=bounds.sha256(message.site, f"{name}.site"),
        instance_id=bounds.fixed(
            message.instance_id, bounds.INSTANCE_ID_BYTES, f"{name}.instance_id"
        ),
        serial=bounds.whole(message.serial, 0, (1 << 63) - 1, f"{name}.serial"),
        c_pk=_public_key(message.c_pk, suite.transport, f"{name}.c_pk"),
        m_pk=_public_key(message.m_pk, suite.masks, f"{name}.m_pk"),
        r_commitment=bounds.sha256(message.r_commitment, f"{name}.r_commitment"),
        not_after_s=bounds.whole(message.not_after_s, 0, bounds.MAX_TIME_S, f"{name}.not_after_s"),
    )
    return SignedBundle(bundle, bounds.signature(message.signature, f"{name}.signature"))


def roster_from_wire(message: pb.Roster, limits: Limits) -> Roster:
    """Take a roster: bundles ascending by site, and the plan with a base version for each."""
    bounds.count(message.bundles, limits.max_sites, "roster.bundles")
    bundles = tuple(
        bundle_from_wire(entry, "roster.bundles", limits.suite) for entry in message.bundles
    )
    sites = [signed.bundle.site for signed in bundles]
    _ascending(sites, "roster.bundles")
    plan = _plan_from_wire(message.plan, limits)
    if [base.site for base in plan.bases] != sites:
        raise malformed("roster.plan.bases", "must name the sites of the roster, in its order")
    return Roster(_context_from_wire(message.context), bundles, plan)


def graph_reveal_from_wire(message: pb.GraphReveal, sender: Fingerprint) -> GraphReveal:
    """Take a site's r; the machine holds it against the site's bundle."""
    ctx = bounds.sha256(message.ctx, "graph_reveal.ctx")
    return GraphReveal(ctx, sender, bounds.sha256(message.value, "graph_reveal.value"))


def graph_reveals_from_wire(message: pb.GraphReveals, limits: Limits) -> GraphReveals:
    """Take every member's r."""
    size = bounds.count(message.values, limits.max_sites, "graph_reveals.values", least=2)
    ctx = bounds.sha256(message.ctx, "graph_reveals.ctx")
    return GraphReveals(ctx, _hashes(message.values, size, "graph_reveals.values"))


def dealt_shares_from_wire(
    message: pb.DealtShares, sender: Fingerprint, limits: Limits
) -> DealtShares:
    """Take what a site dealt: a ciphertext a holder, exactly one of them (its own) empty."""
    size = bounds.count(message.ciphertexts, limits.max_sites, "dealt_shares.ciphertexts", least=2)
    sealed = limits.suite.share_ciphertext_bytes
    ciphertexts = tuple(message.ciphertexts)
    if sum(len(text) == 0 for text in ciphertexts) != 1 or any(
        len(text) not in {0, sealed} for text in ciphertexts
    ):
        rule = f"must have {sealed} bytes each, but for one empty"
        raise malformed("dealt_shares.ciphertexts", rule)
    return DealtShares(
        ctx=bounds.sha256(message.ctx, "dealt_shares.ctx"),
        sender=sender,
        ciphertexts=ciphertexts,
        commitments=_commitments(message.commitments, size, "dealt_shares.commitments"),
        signature=bounds.signature(message.signature, "dealt_shares.signature"),
    )


def share_delivery_from_wire(message: pb.ShareDelivery, limits: Limits) -> ShareDelivery:
    """Take the shares dealt by the other members: one entry a dealer."""
    bounds.count(message.shares, limits.max_sites, "share_delivery.shares")
    longest = (limits.max_sites - 1).bit_length()
    shares = tuple(_delivered_from_wire(entry, longest, limits.suite) for entry in message.shares)
    if len({share.sender for share in shares}) != len(shares):
        raise malformed("share_delivery.shares.sender", "must not name a site twice")
    return ShareDelivery(bounds.sha256(message.ctx, "share_delivery.ctx"), shares)


def survivor_set_from_wire(message: pb.SurvivorSet, limits: Limits) -> SurvivorSet:
    """Take U2 and U3 as indices."""
    return SurvivorSet(
        ctx=bounds.sha256(message.ctx, "survivor_set.ctx"),
        dealt=bounds.indices(message.dealt, limits.max_sites, "survivor_set.dealt"),
        survivors=bounds.indices(message.survivors, limits.max_sites, "survivor_set.survivors"),
    )


def survivor_signature_from_wire(
    message: pb.SurvivorSignature, sender: Fingerprint
) -> SurvivorSignature:
    """Take a site's signature on the survivor set, from that site itself."""
    _same_sender(message.sender, sender, "survivor_signature.sender")
    return _survivor_signature(message, "survivor_signature")


def survivor_quorum_from_wire(message: pb.SurvivorQuorum, limits: Limits) -> SurvivorQuorum:
    """Take the signatures of a quorum, one a signer."""
    name = "survivor_quorum.signatures"
    bounds.count(message.signatures, limits.max_sites, name)
    signatures = tuple(_survivor_signature(entry, name) for entry in message.signatures)
    ctx = bounds.sha256(message.ctx, "survivor_quorum.ctx")
    if any(entry.ctx != ctx for entry in signatures):
        raise PeerError(Reason.WRONG_CONTEXT, f"{name}.ctx: must be that of the quorum")
    if len({entry.sender for entry in signatures}) != len(signatures):
        raise malformed(f"{name}.sender", "must not name a site twice")
    return SurvivorQuorum(ctx, signatures)


def unmask_shares_from_wire(
    message: pb.UnmaskShares, sender: Fingerprint, limits: Limits
) -> UnmaskShares:
    """Take revealed shares: one secret a peer at most, never both of one (SA-1, step 4)."""
    self_shares = _revealed(message.self_shares, limits, "unmask_shares.self_shares")
    mask_shares = _revealed(message.mask_shares, limits, "unmask_shares.mask_shares")
    if {share.owner for share in self_shares} & {share.owner for share in mask_shares}:
        raise malformed("unmask_shares", "must not hold both secrets of one site")
    ctx = bounds.sha256(message.ctx, "unmask_shares.ctx")
    name = "unmask_shares.surplus_seeds"
    bounds.count(message.surplus_seeds, MAX_LEVELS, name, least=0)
    seeds = tuple(bounds.fixed(seed, SEED_BYTES, name) for seed in message.surplus_seeds)
    return UnmaskShares(ctx, sender, self_shares, mask_shares, seeds)


def abort_request_from_wire(message: pb.AbortRequest) -> AbortRequest:
    """Take the aggregator's request to give an attempt up; its reason is text for people."""
    ctx = bounds.sha256(message.ctx, "abort_request.ctx")
    return AbortRequest(ctx, bounds.text(message.reason, "abort_request.reason"))


def abort_signature_from_wire(message: pb.AbortSignature, sender: Fingerprint) -> AbortSignature:
    """Take a site's signature on having given an attempt up, from that site itself."""
    _same_sender(message.sender, sender, "abort_signature.sender")
    return AbortSignature(
        ctx=bounds.sha256(message.ctx, "abort_signature.ctx"),
        sender=sender,
        signature=bounds.signature(message.signature, "abort_signature.signature"),
        accused=_accused(message.accused, "abort_signature.accused"),
    )


def _context_from_wire(message: pb.AttemptContext) -> AttemptContext:
    return AttemptContext(
        suite=bounds.text(message.suite, "roster.context.suite", 64),
        consortium_id=bounds.slug(message.consortium_id, "roster.context.consortium_id"),
        manifest_hash=bounds.sha256(message.manifest_hash, "roster.context.manifest_hash"),
        job_id=bounds.slug(message.job_id, "roster.context.job_id"),
        roster_epoch=message.roster_epoch,
        round=bounds.whole(message.round, 0, bounds.MAX_ROUND, "roster.context.round"),
        attempt=bounds.whole(message.attempt, 1, _MAX_ATTEMPT, "roster.context.attempt"),
    )


def _plan_from_wire(message: pb.CohortPlan, limits: Limits) -> CohortPlan:
    bounds.count(message.bases, limits.max_sites, "roster.plan.bases")
    colluders = bounds.whole(message.colluders, 1, limits.max_sites, "roster.plan.colluders")
    return CohortPlan(
        encoding=bounds.blob(message.encoding, MAX_PLAN_BYTES, "roster.plan.encoding"),
        ring_bits=bounds.whole(message.ring_bits, 8, 32, "roster.plan.ring_bits"),
        length=bounds.whole(message.length, 1, limits.max_vector_length, "roster.plan.length"),
        colluders=colluders,
        min_survivors=bounds.whole(
            message.min_survivors, colluders + 1, limits.max_sites, "roster.plan.min_survivors"
        ),
        dropout_percent=bounds.whole(
            message.dropout_percent, 1, MAX_DROPOUT_PERCENT, "roster.plan.dropout_percent"
        ),
        chain_head=bounds.sha256(message.chain_head, "roster.plan.chain_head"),
        bases=tuple(
            BaseVersion(
                bounds.sha256(base.site, "roster.plan.bases.site"),
                bounds.whole(base.version, 0, bounds.MAX_ROUND, "roster.plan.bases.version"),
            )
            for base in message.bases
        ),
    )


def _delivered_from_wire(message: pb.DeliveredShare, longest: int, suite: Suite) -> DeliveredShare:
    name = "share_delivery.shares"
    steps = bounds.count(message.path, longest, f"{name}.path")
    return DeliveredShare(
        sender=bounds.sha256(message.sender, f"{name}.sender"),
        ciphertext=bounds.fixed(
            message.ciphertext, suite.share_ciphertext_bytes, f"{name}.ciphertext"
        ),
        self_seed=bounds.sha256(message.self_seed, f"{name}.self_seed"),
        self_share=bounds.sha256(message.self_share, f"{name}.self_share"),
        mask_share=bounds.sha256(message.mask_share, f"{name}.mask_share"),
        path=_hashes(message.path, steps, f"{name}.path"),
        signature=bounds.signature(message.signature, f"{name}.signature"),
    )


def _commitments(message: pb.ShareCommitments, size: int, name: str) -> ShareCommitments:
    return ShareCommitments(
        self_seed=bounds.sha256(message.self_seed, f"{name}.self_seed"),
        self_shares=_hashes(message.self_shares, size, f"{name}.self_shares"),
        mask_shares=_hashes(message.mask_shares, size, f"{name}.mask_shares"),
    )


def _survivor_signature(message: pb.SurvivorSignature, name: str) -> SurvivorSignature:
    return SurvivorSignature(
        ctx=bounds.sha256(message.ctx, f"{name}.ctx"),
        sender=bounds.sha256(message.sender, f"{name}.sender"),
        signature=bounds.signature(message.signature, f"{name}.signature"),
    )


def _revealed(
    entries: Sequence[pb.RevealedShare], limits: Limits, name: str
) -> tuple[RevealedShare, ...]:
    if not entries:
        return ()
    bounds.indices([entry.owner for entry in entries], limits.max_sites, f"{name}.owner")
    return tuple(
        RevealedShare(entry.owner, bounds.fixed(entry.value, SHARE_BYTES, f"{name}.value"))
        for entry in entries
    )


def _hashes(values: Sequence[bytes], size: int, name: str) -> tuple[bytes, ...]:
    hashes = tuple(values)
    if len(hashes) != size or any(len(value) != bounds.HASH_BYTES for value in hashes):
        raise malformed(name, f"must hold {size} hashes of {bounds.HASH_BYTES} bytes")
    return hashes


def _public_key(value: bytes, kind: KeyAgreement | ShareTransport, name: str) -> bytes:
    """Take a public key by its form; the state machines check that it is one of its kind."""
    if len(value) != kind.public_key_bytes or not value.startswith(kind.public_key_start):
        start = f" that start with {kind.public_key_start.hex()}" if kind.public_key_start else ""
        raise malformed(name, f"must have {kind.public_key_bytes} bytes{start}")
    return value


def _accused(value: bytes, name: str) -> bytes:
    """Take the fingerprint of an accused member, or nothing; the aggregator knows the members."""
    return bounds.sha256(value, name) if value else b""


def _ascending(sites: Sequence[bytes], name: str) -> None:
    if any(left >= right for left, right in pairwise(sites)):
        raise malformed(name, "must be sorted by site, each once")


def _same_sender(claimed: bytes, authenticated: Fingerprint, name: str) -> None:
    if claimed != authenticated:
        raise PeerError(Reason.UNAUTHENTICATED, f"{name}: is not the site of this session")


# --- to the wire ---------------------------------------------------------------------------------


def bundle_to_wire(signed: SignedBundle) -> pb.Bundle:
    """Give a signed bundle."""
    bundle = signed.bundle
    return pb.Bundle(
        consortium_id=bundle.consortium_id,
        site=bundle.site,
        instance_id=bundle.instance_id,
        serial=bundle.serial,
        c_pk=bundle.c_pk,
        m_pk=bundle.m_pk,
        r_commitment=bundle.r_commitment,
        not_after_s=bundle.not_after_s,
        signature=signed.signature,
    )


def roster_to_wire(roster: Roster) -> pb.Roster:
    """Give a roster. Every member gets the same one: convert it once."""
    context, plan = roster.context, roster.plan
    return pb.Roster(
        context=pb.AttemptContext(
            suite=context.suite,
            consortium_id=context.consortium_id,
            manifest_hash=context.manifest_hash,
            job_id=context.job_id,
            roster_epoch=context.roster_epoch,
            round=context.round,
            attempt=context.attempt,
        ),
        bundles=[bundle_to_wire(signed) for signed in roster.bundles],
        plan=pb.CohortPlan(
            encoding=plan.encoding,
            ring_bits=plan.ring_bits,
            length=plan.length,
            colluders=plan.colluders,
            min_survivors=plan.min_survivors,
            dropout_percent=plan.dropout_percent,
            chain_head=plan.chain_head,
            bases=[pb.BaseVersion(site=base.site, version=base.version) for base in plan.bases],
        ),
    )


def graph_reveal_to_wire(reveal: GraphReveal) -> pb.GraphReveal:
    """Give a site's r; the session names the sender."""
    return pb.GraphReveal(ctx=reveal.ctx, value=reveal.value)


def graph_reveals_to_wire(reveals: GraphReveals) -> pb.GraphReveals:
    """Give every member's r."""
    return pb.GraphReveals(ctx=reveals.ctx, values=reveals.values)


def dealt_shares_to_wire(dealt: DealtShares) -> pb.DealtShares:
    """Give what a site deals; the session names the sender."""
    return pb.DealtShares(
        ctx=dealt.ctx,
        ciphertexts=dealt.ciphertexts,
        commitments=_commitments_to_wire(dealt.commitments),
        signature=dealt.signature,
    )


def share_delivery_to_wire(delivery: ShareDelivery) -> pb.ShareDelivery:
    """Give the shares of the other members."""
    shares = [
        pb.DeliveredShare(
            sender=share.sender,
            ciphertext=share.ciphertext,
            self_seed=share.self_seed,
            self_share=share.self_share,
            mask_share=share.mask_share,
            path=share.path,
            signature=share.signature,
        )
        for share in delivery.shares
    ]
    return pb.ShareDelivery(ctx=delivery.ctx, shares=shares)


def survivor_set_to_wire(survivors: SurvivorSet) -> pb.SurvivorSet:
    """Give U2 and U3."""
    return pb.SurvivorSet(ctx=survivors.ctx, dealt=survivors.dealt, survivors=survivors.survivors)


def survivor_signature_to_wire(signed: SurvivorSignature) -> pb.SurvivorSignature:
    """Give a signature on the survivor set."""
    return pb.SurvivorSignature(ctx=signed.ctx, sender=signed.sender, signature=signed.signature)


def survivor_quorum_to_wire(quorum: SurvivorQuorum) -> pb.SurvivorQuorum:
    """Give the signatures of a quorum."""
    signatures = [survivor_signature_to_wire(entry) for entry in quorum.signatures]
    return pb.SurvivorQuorum(ctx=quorum.ctx, signatures=signatures)


def unmask_shares_to_wire(shares: UnmaskShares) -> pb.UnmaskShares:
    """Give revealed shares; the session names the sender."""
    return pb.UnmaskShares(
        ctx=shares.ctx,
        self_shares=_revealed_to_wire(shares.self_shares),
        mask_shares=_revealed_to_wire(shares.mask_shares),
        surplus_seeds=shares.surplus_seeds,
    )


def abort_request_to_wire(request: AbortRequest) -> pb.AbortRequest:
    """Give a request to abort."""
    return pb.AbortRequest(ctx=request.ctx, reason=bounds.printable(request.reason))


def abort_signature_to_wire(signed: AbortSignature) -> pb.AbortSignature:
    """Give a signature on an abort."""
    return pb.AbortSignature(
        ctx=signed.ctx, sender=signed.sender, signature=signed.signature, accused=signed.accused
    )


def _commitments_to_wire(commitments: ShareCommitments) -> pb.ShareCommitments:
    return pb.ShareCommitments(
        self_seed=commitments.self_seed,
        self_shares=commitments.self_shares,
        mask_shares=commitments.mask_shares,
    )


def _revealed_to_wire(shares: Sequence[RevealedShare]) -> list[pb.RevealedShare]:
    return [pb.RevealedShare(owner=share.owner, value=share.value) for share in shares]
