"""The retry rule at a site: a charged update whose attempt died is held until a proof frees it.

SA-1, "Retry rule" (docs/adr/0017). One held update a job. It is freed by A signatures that its last
attempt can release it no more, enters one new attempt with that attempt's slot 2, and is bound to
that one from then on. Whatever else happens to it, it is forgotten, and the next update is charged.
Pure, like the exchange that it is a part of.
"""

from edge_node.attempt_terms import AttemptTerms, charged_ahead
from edge_node.commands import DropUpdate, Note, ParticipantCommand, RecallUpdate
from edge_node.job_state import AttemptFacts, HeldUpdate, JobState, LiveAttempt
from privacy.errors import PeerError, Reason
from privacy.secagg.commands import Step
from privacy.secagg.messages import AttemptContext, RetryProof
from privacy.secagg.retry import RetryPermit, check_retry
from privacy.secagg.rules import SiteConfig


def hold(state: JobState, live: LiveAttempt, now_s: float) -> bool:
    """Hold the update of an attempt that died, if it was charged and nothing of it was released.

    Not where something newer is wanted or made already, nor in record-local, whose updates are
    private by themselves and lie ready all the time.

    Returns:
        Whether it is held.
    """
    slots = live.machine.durable
    sent = Step.MASKED_UPDATE in slots and Step.UNMASK not in slots and not live.releasing
    superseded = (
        state.training is not None
        or state.update is not None
        or state.wanted_key not in (None, live.facts.key)
    )
    another = state.ctx != live.ctx
    if not live.dead or not sent or superseded or another or charged_ahead(state):
        return False
    expires_s = now_s + state.job.step_timeout_s
    state.held = HeldUpdate(live.context, live.facts, slots, expires_s)
    return True


def hold_again(
    state: JobState,
    context: AttemptContext,
    facts: AttemptFacts,
    slots: dict[Step, bytes],
    now_s: float,
) -> None:
    """Take up what was held before a restart; a proof must free it anew."""
    expires_s = now_s + state.job.step_timeout_s
    state.held = HeldUpdate(context, facts, slots, expires_s)


def take_proof(
    jobs: dict[str, JobState], terms: AttemptTerms | None, proof: RetryProof
) -> list[ParticipantCommand]:
    """Free the held update that a proof is about; its next attempt is not charged."""
    found = ((i, s, s.held) for i, s in jobs.items() if s.held and s.held.ctx == proof.ctx)
    job_id, state, held = next(found, ("", None, None))
    if terms is None or state is None or held is None or held.permit is not None:
        return [Note("retry proof of no use here", {"ctx": proof.ctx})]
    config = terms.config(state, held.context, held.facts)
    try:
        held.permit = check_retry(config, held.slots, proof)
    except PeerError as error:
        facts: dict[str, object] = {"ctx": proof.ctx, "why": str(error)}
        return [Note("retry proof refused", facts, warning=True)]
    state.update, state.announced = held.facts.key, False
    facts = {"ctx": proof.ctx, "votes": len(proof.votes)}
    return [RecallUpdate(job_id, held.facts.key), Note("charged update freed by a proof", facts)]


def permit_of(held: HeldUpdate | None, config: SiteConfig) -> RetryPermit | None:
    """Give the permit under which an attempt with this configuration is not charged.

    Args:
        held: The job's held update: the one that lies ready, where there is one.
        config: Of the new attempt.

    Raises:
        PeerError: EQUIVOCATION: more than attempt, roster, site list and B would differ.
    """
    if held is None or held.permit is None:
        return None
    if config.update_digest() != held.permit.update_digest:
        raise PeerError(Reason.EQUIVOCATION, "the update was charged and made for another plan")
    return held.permit


def expire(state: JobState, now_s: float) -> list[ParticipantCommand]:
    """Forget a held update that no proof has freed in time."""
    held = state.held
    if held is None or held.permit is not None or now_s < held.expires_s:
        return []
    state.held = None
    facts: dict[str, object] = {"ctx": held.ctx}
    return [DropUpdate(state.job.job_id), Note("held update forgotten, no proof came", facts)]


def deadline_of(state: JobState) -> float | None:
    """Return when a held update is to be forgotten; None if there is none, or it is freed."""
    held = state.held
    return None if held is None or held.permit is not None else held.expires_s
