"""The proof of the retry rule: protobuf <-> ``privacy.secagg.messages.RetryProof``.

Shapes and counts only: whether the signatures verify, and whether there are enough of them, is
judged by ``privacy.secagg.retry`` against the slots of the attempt that the proof is about.
"""

from collections.abc import Sequence

from privacy.errors import UsageError
from privacy.secagg.messages import RetryProof, RetryVote
from tidegate.convert import bounds
from tidegate.convert.bounds import Limits, malformed
from tidegate.v1 import secagg_pb2 as pb


def retry_proof_from_wire(message: pb.RetryProof, limits: Limits) -> RetryProof:
    """Take a proof: at most one signature a member, and one survivor set where any is on one."""
    aborts, votes = message.aborts, message.votes
    bounds.count(aborts, limits.max_sites, "retry_proof.aborts", least=0)
    bounds.count(votes, limits.max_sites, "retry_proof.votes", least=0)
    if not aborts and not votes:
        raise malformed("retry_proof", "must hold a signature")
    dealt = _indices(message.dealt, limits, "retry_proof.dealt", due=bool(votes))
    survivors = _indices(message.survivors, limits, "retry_proof.survivors", due=bool(votes))
    taken = (
        *(_vote(entry, (), (), "retry_proof.aborts") for entry in aborts),
        *(_vote(entry, dealt, survivors, "retry_proof.votes") for entry in votes),
    )
    if len({vote.signer for vote in taken}) != len(taken):
        raise malformed("retry_proof", "must not name a signer twice")
    return RetryProof(bounds.sha256(message.ctx, "retry_proof.ctx"), taken)


def retry_proof_to_wire(proof: RetryProof) -> pb.RetryProof:
    """Give a proof.

    Raises:
        UsageError: It holds votes on two survivor sets; the honest aggregator proposes one.
    """
    votes = [vote for vote in proof.votes if vote.survivors]
    sets = {(vote.dealt, vote.survivors) for vote in votes} or {((), ())}
    if len(sets) > 1:
        raise UsageError("a retry proof holds votes on one survivor set at most")
    ((dealt, survivors),) = sets
    return pb.RetryProof(
        ctx=proof.ctx,
        aborts=[_to_wire(vote) for vote in proof.votes if not vote.survivors],
        votes=[_to_wire(vote) for vote in votes],
        dealt=dealt,
        survivors=survivors,
    )


def _indices(items: Sequence[int], limits: Limits, name: str, *, due: bool) -> tuple[int, ...]:
    if due:
        return bounds.indices(items, limits.max_sites, name)
    bounds.count(items, 0, name, least=0)
    return ()


def _vote(
    entry: pb.RetryVote, dealt: tuple[int, ...], survivors: tuple[int, ...], name: str
) -> RetryVote:
    return RetryVote(
        bounds.sha256(entry.signer, f"{name}.signer"),
        bounds.signature(entry.signature, f"{name}.signature"),
        dealt,
        survivors,
    )


def _to_wire(vote: RetryVote) -> pb.RetryVote:
    return pb.RetryVote(signer=vote.signer, signature=vote.signature)
