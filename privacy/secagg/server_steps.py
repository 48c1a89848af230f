"""The arithmetic of the aggregator's steps: check what sites send, deliver, reconstruct.

No state and no order of steps here (``server.py``).
"""

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet

from privacy.errors import PeerError, Reason
from privacy.secagg import shamir, statements
from privacy.secagg.cohort import Cohort
from privacy.secagg.encoding import Label
from privacy.secagg.keys import Suite
from privacy.secagg.merkle import MerkleTree
from privacy.secagg.messages import (
    DealtShares,
    DeliveredShare,
    Fingerprint,
    MaskTerm,
    RevealedShare,
    UnmaskShares,
)
from privacy.secagg.site_steps import DealerError, pair_mask_key, self_mask_key

_HASH_BYTES = 32


def check_dealt(
    cohort: Cohort, suite: Suite, pinned: Mapping[Fingerprint, bytes], dealt: DealtShares
) -> MerkleTree:
    """Check what a site dealt as far as the aggregator can: shape and signature.

    Returns:
        The signed tree, which holds each recipient's path.

    Raises:
        PeerError: MALFORMED, a count or a size; BAD_SIGNATURE.
    """
    index = cohort.index_of(dealt.sender)
    commitments = dealt.commitments
    holders = cohort.graph.holders(index)
    counts = {len(dealt.ciphertexts), len(commitments.self_shares), len(commitments.mask_shares)}
    if counts != {len(holders)}:
        raise PeerError(Reason.MALFORMED, f"{cohort.name(index)} dealt not {len(holders)} shares")
    for recipient, ciphertext in zip(holders, dealt.ciphertexts, strict=True):
        if len(ciphertext) != (0 if recipient == index else suite.share_ciphertext_bytes):
            raise PeerError(Reason.MALFORMED, f"{cohort.name(index)}: a ciphertext is mis-sized")
    hashes_of_shares = (*commitments.self_shares, *commitments.mask_shares)
    if any(len(value) != _HASH_BYTES for value in (commitments.self_seed, *hashes_of_shares)):
        raise PeerError(Reason.MALFORMED, f"{cohort.name(index)}: a commitment is mis-sized")
    tree = statements.share_tree(holders, dealt.ciphertexts, commitments)
    statement = statements.share_statement(cohort.rh, tree.root, commitments.self_seed)
    suite.verify(pinned[dealt.sender], dealt.signature, statement)
    return tree


def deliver(
    cohort: Cohort,
    dealt: Mapping[int, DealtShares],
    trees: Mapping[int, MerkleTree],
    recipient: int,
) -> tuple[DeliveredShare, ...]:
    """Cut what every neighbour in U2 dealt down to one recipient.

    Args:
        cohort: The attempt's cohort.
        dealt: U2, by index, ascending.
        trees: From ``check_dealt``, by the same indices.
        recipient: Its index.
    """
    shares = []
    for index in cohort.graph.neighbours(recipient):
        one = dealt.get(index)
        if one is None:
            continue
        at = cohort.graph.rank(index, recipient)
        share = DeliveredShare(
            sender=one.sender,
            ciphertext=one.ciphertexts[at],
            self_seed=one.commitments.self_seed,
            self_share=one.commitments.self_shares[at],
            mask_share=one.commitments.mask_shares[at],
            path=trees[index].path(at),
            signature=one.signature,
        )
        shares.append(share)
    return tuple(shares)


def ring_shortage(
    cohort: Cohort, owners: Iterable[int], present: Collection[int], *, summed: bool
) -> str:
    """Say what a sparse graph lacks where these sites are all that is left; empty if nothing.

    Args:
        cohort: The attempt's cohort, its graph drawn.
        owners: Whose secrets must be found: each needs t holders present.
        present: The sites that are left.
        summed: They are U3, so the sites will check every window of the ring.
    """
    limits, graph = cohort.limits, cohort.graph
    covered = graph.least_covered(owners, present)
    if covered < limits.shares:
        return f"{covered} holders of one site's shares are left, t = {limits.shares} are needed"
    if summed and (fewest := graph.least_in_window(present)) < limits.window:
        places = limits.degree // 2
        return f"{fewest} of {places} neighbouring sites are left, {limits.window} are needed"
    return ""


def check_answer(
    cohort: Cohort,
    dealt: Mapping[int, DealtShares],
    survivors: AbstractSet[int],
    answer: UnmaskShares,
    seeds: int,
) -> None:
    """Check a holder's shares against the commitments of those who dealt them.

    Args:
        cohort: The attempt's cohort.
        dealt: U2, by index, ascending.
        survivors: U3.
        answer: From a member of U3.
        seeds: How many surplus seeds it must hold. Whether they are the right ones cannot be told:
            a wrong one is noise, which the site could have put into its update as well.

    Raises:
        PeerError: MALFORMED, not exactly the shares and seeds asked for; BAD_SHARE, one misses its
            commitment: the holder, not the dealer, is at fault, for it accepted that share.
    """
    holder = cohort.index_of(answer.sender)
    owners = [j for j in cohort.graph.holders(holder) if j in dealt]
    alive = tuple(j for j in owners if j in survivors)
    dropped = tuple(j for j in owners if j not in survivors)
    if (_owners(answer.self_shares), _owners(answer.mask_shares)) != (alive, dropped):
        raise PeerError(Reason.MALFORMED, f"{cohort.name(holder)} reveals other shares than asked")
    if len(answer.surplus_seeds) != seeds:
        raise PeerError(
            Reason.MALFORMED,
            f"{cohort.name(holder)} reveals {len(answer.surplus_seeds)} surplus seeds, not {seeds}",
        )
    for label, shares in (
        (Label.SELF_SHARE_COMMITMENT, answer.self_shares),
        (Label.MASK_SHARE_COMMITMENT, answer.mask_shares),
    ):
        for share in shares:
            commitments = dealt[share.owner].commitments
            committed = (
                commitments.self_shares
                if label is Label.SELF_SHARE_COMMITMENT
                else commitments.mask_shares
            )
            owner, value = share.owner, share.value
            expected = committed[cohort.graph.rank(owner, holder)]
            if statements.share_commitment(label, cohort.rh, owner, holder, value) != expected:
                raise PeerError(
                    Reason.BAD_SHARE,
                    f"{cohort.name(holder)} reveals a share of {cohort.name(owner)} "
                    "that misses its commitment",
                )


def unmask_terms(
    cohort: Cohort,
    suite: Suite,
    dealt: Mapping[int, DealtShares],
    survivors: AbstractSet[int],
    answers: Mapping[int, UnmaskShares],
) -> tuple[MaskTerm, ...]:
    """Reconstruct every secret and return the terms that take the masks off the sum of U3.

    Args:
        cohort: The attempt's cohort.
        suite: Its suite.
        dealt: U2, by index, ascending.
        survivors: U3.
        answers: Checked answers by holder's index, at least t among each owner's holders.

    Raises:
        DealerError: BAD_SHARE, shares that all match their commitments combine to another secret
            than committed (b), or to another key than in the bundle (m): the dealer is named.
    """
    terms: list[MaskTerm] = []
    revealed = _by_owner(answers)
    for j in dealt:
        shares = revealed.get(j, {})
        if j in survivors:
            self_seed = _combine(cohort, j, shares)
            commitment = statements.self_seed_commitment(cohort.rh, j, self_seed)
            if commitment != dealt[j].commitments.self_seed:
                raise _dealt_wrongly(cohort, j)
            terms.append(MaskTerm(self_mask_key(cohort, self_seed), -1))
        else:
            m_key = suite.private_key(_combine(cohort, j, shares), Label.MASK_SCALAR)
            if suite.public_key(m_key) != cohort.m_pk(j):
                raise _dealt_wrongly(cohort, j)
            # Survivor i added +PRG for i < j, else -PRG: the opposite takes it off.
            terms += [
                MaskTerm(pair_mask_key(suite, cohort, m_key, i), -1 if i < j else 1)
                for i in cohort.graph.neighbours(j)
                if i in survivors
            ]
    return tuple(terms)


def _combine(cohort: Cohort, owner: int, shares: Mapping[int, bytes]) -> bytes:
    try:
        return shamir.combine(shares, cohort.limits.shares)
    except PeerError as error:
        raise _dealt_wrongly(cohort, owner) from error


def _dealt_wrongly(cohort: Cohort, owner: int) -> DealerError:
    message = f"{cohort.name(owner)} dealt shares that do not make the secret it committed to"
    return DealerError(Reason.BAD_SHARE, message, cohort.members[owner - 1])


def _owners(shares: tuple[RevealedShare, ...]) -> tuple[int, ...]:
    return tuple(share.owner for share in shares)


def _by_owner(answers: Mapping[int, UnmaskShares]) -> dict[int, dict[int, bytes]]:
    """Sort revealed shares by owner, then holder: of each owner there is one kind only."""
    revealed: dict[int, dict[int, bytes]] = {}
    for holder, answer in answers.items():
        for share in (*answer.self_shares, *answer.mask_shares):
            revealed.setdefault(share.owner, {})[holder] = share.value
    return revealed
