"""The retry rule: when the same update may be sent again without a new charge (SA-1, Drop-outs).

Only with A = n + c - T + 1 signatures of distinct U1 members of the old attempt, each on abort or
on a U3 string that excludes this site: then at most n - (A - c) < T members can sign a U3 that
includes it, so the old attempt can never release this update. Otherwise: fresh noise and a new
charge.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg import slots, statements
from privacy.secagg.cohort import Cohort
from privacy.secagg.commands import Step
from privacy.secagg.messages import Fingerprint, RetryProof, RetryVote
from privacy.secagg.rules import SiteConfig


@dataclass(frozen=True)
class RetryPermit:
    """A checked proof that an old attempt cannot release this update; made by ``check_retry``.

    Attributes:
        round: Round of the old attempt.
        attempt: Its number; the permit serves the next sending of the update only.
        update_digest: What the retry may not change (``SiteConfig.update_digest``).
    """

    round: int
    attempt: int
    update_digest: bytes


def check_retry(old: SiteConfig, stored: Mapping[Step, bytes], proof: RetryProof) -> RetryPermit:
    """Check the votes against the old attempt's own slots.

    Args:
        old: The configuration of the old attempt.
        stored: Its durable slots; slot 1 gives ctx and rh, slot 2 shows that it was charged.
        proof: As received.

    Raises:
        PeerError: WRONG_CONTEXT, another attempt; MALFORMED, a vote twice, or on a set that holds
            this site; BAD_SIGNATURE; BELOW_THRESHOLD, fewer than A votes.
        UsageError: The old attempt was never charged, so there is nothing to retry for free; or its
            slot 4 is taken: its sum may be open, and surplus seeds of this update may be known.
    """
    if Step.SHARE_KEYS not in stored or Step.MASKED_UPDATE not in stored:
        raise UsageError("the old attempt has no slot 2: it charged nothing, so charge now")
    if Step.UNMASK in stored:
        raise UsageError("the old attempt's slot 4 let its shares and seeds out: charge now")
    first = slots.first_of({step: slots.decode(step, stored[step]) for step in stored})
    if first.roster.context != old.context:
        raise UsageError("the slots given belong to another attempt")
    cohort = Cohort.of(first.roster, old.graph_rule)
    cohort.check_ctx(proof.ctx)
    me = cohort.index_of(old.me)
    signers = set()
    for vote in proof.votes:
        index = cohort.index_of(vote.signer)
        if index in signers:
            raise PeerError(Reason.MALFORMED, f"{cohort.name(index)} votes twice")
        spki = old.pinned[vote.signer]
        old.suite.verify(spki, vote.signature, _statement(cohort, vote, me))
        signers.add(index)
    if len(signers) < cohort.limits.retry:
        raise PeerError(
            Reason.BELOW_THRESHOLD,
            f"{len(signers)} votes; a retry without a charge needs A = {cohort.limits.retry}",
        )
    return RetryPermit(old.context.round, old.context.attempt, old.update_digest())


def prove(cohort: Cohort, votes: tuple[RetryVote, ...], site: Fingerprint) -> RetryProof | None:
    """Choose the votes that free a site's update; None while there are fewer than A.

    Raises:
        PeerError: UNAUTHENTICATED, the site is no member.
    """
    index = cohort.index_of(site)
    least = cohort.limits.retry
    chosen = tuple(vote for vote in votes if index not in vote.survivors)
    # No more than A: the site verifies each of them.
    return RetryProof(cohort.ctx, chosen[:least]) if len(chosen) >= least else None


def check_permit(permit: RetryPermit, config: SiteConfig) -> None:
    """Check that a permit is for the last sending of this very update.

    Raises:
        UsageError: It is for an older one (the update went out again since), or the plan differs in
            more than attempt, roster, site list and B.
    """
    if config.last_sent != (permit.round, permit.attempt):
        raise UsageError("the permit is not for the last attempt that sent this update: charge")
    if config.update_digest() != permit.update_digest:
        raise UsageError("a retry may differ only in attempt, roster, site list and B: charge")


def _statement(cohort: Cohort, vote: RetryVote, me: int) -> bytes:
    if not vote.survivors:
        return statements.abort_statement(cohort.ctx, cohort.rh)
    if me in vote.survivors:
        raise PeerError(Reason.MALFORMED, "a vote for a retry is on a U3 that holds this site")
    return statements.survivor_statement(cohort.rh, cohort.mh, vote.dealt, vote.survivors)
