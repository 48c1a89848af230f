"""What a site makes of each step's input: checked, it becomes a step that waits for its slot.

Which input may come when, and what becomes of a step that is done, is the business of ``site.py``.
"""

from collections.abc import Callable
from dataclasses import dataclass

from privacy.secagg import site_checks, slots, statements
from privacy.secagg.cohort import Cohort
from privacy.secagg.commands import Purpose, Step
from privacy.secagg.encoding import Label, hash_of
from privacy.secagg.messages import (
    GraphReveals,
    Roster,
    ShareDelivery,
    SurvivorQuorum,
    SurvivorSet,
)
from privacy.secagg.rules import SiteConfig
from privacy.secagg.site_state import SiteState
from privacy.secagg.site_steps import index_delivery

Input = Roster | GraphReveals | ShareDelivery | SurvivorSet | SurvivorQuorum

_STEP_OF: dict[type[Input], Step] = {
    GraphReveals: Step.SHARE_KEYS,
    ShareDelivery: Step.MASKED_UPDATE,
    SurvivorSet: Step.CONSISTENCY,
    SurvivorQuorum: Step.UNMASK,
}


@dataclass(frozen=True)
class Pending:
    """A step that is verified but not durable yet; ``finish`` turns the signature into its slot."""

    step: Step
    finish: Callable[[bytes], slots.Slot]
    digest: bytes = b""
    purpose: Purpose | None = None
    slot: slots.Slot | None = None


@dataclass(frozen=True)
class Dealing:
    """Step 1 before anything is sealed; ``slot`` takes the ciphertexts, then the signature."""

    digest: bytes
    slot: Callable[[tuple[bytes, ...], bytes], slots.Slot]


def step_of(state: SiteState, config: SiteConfig, event: Input) -> Step:
    """Return the slot that an input belongs in: any roster in that of the first one."""
    if not isinstance(event, Roster):
        return _STEP_OF[type(event)]
    first = min(state.inputs, default=None)
    if first is not None:
        return first
    sparse = config.graph_rule.is_sparse(len(event.bundles))
    return Step.REVEAL if sparse else Step.SHARE_KEYS


def is_due(state: SiteState, event: Input, step: Step) -> bool:
    """Say whether the step follows the last durable one."""
    if not state.slots:
        return isinstance(event, Roster)
    return step == max(state.slots) + 1


def digest_of(state: SiteState, config: SiteConfig, event: Input) -> bytes:
    """Name an input by everything that its output depends on.

    Raises:
        PeerError: A delivery that does not belong to the cohort.
    """
    if isinstance(event, Roster):
        return site_checks.roster_digest(event)
    cohort = state.joined
    statement = b""
    if isinstance(event, SurvivorQuorum):
        statement = state.chosen.statement(cohort)
    return site_checks.input_digest(cohort, config.me, event, statement)


def prepare(
    state: SiteState,
    config: SiteConfig,
    event: ShareDelivery | SurvivorSet | SurvivorQuorum,
    digest: bytes,
) -> tuple[Pending, bytes]:
    """Check the input of a step after the first; give it with the message to sign, if any.

    Raises:
        PeerError: A check fails; as ``DealerError`` where a dealer is at fault.
    """
    match event:
        case ShareDelivery():
            return _masked_update(state, config, event, digest), b""
        case SurvivorSet():
            return _consistency(state, config, event, digest)
        case SurvivorQuorum():
            site_checks.check_quorum(state.joined, config, state.chosen, event)
            return Pending(Step.UNMASK, lambda _: slots.UnmaskSlot(digest), digest), b""


def abort_of(cohort: Cohort, accused: bytes) -> tuple[Pending, bytes]:
    """Give the abort as a step of its own, and the message to sign."""
    pending = Pending(
        Step.CONSISTENCY,
        lambda signature: slots.AbortSlot(signature, accused),
        hash_of(Label.ABORT_STATEMENT, cohort.ctx, cohort.rh),
        Purpose.ABORT,
    )
    return pending, statements.abort_statement(cohort.ctx, cohort.rh)


def _masked_update(
    state: SiteState, config: SiteConfig, delivery: ShareDelivery, digest: bytes
) -> Pending:
    """Fix U2_i; everything that could stop the round is checked before the charge."""
    shares = index_delivery(state.joined, config.me, delivery)
    site_checks.check_dealt_size(state.joined, config.policy, len(shares) + 1)
    state.hold(state.keys.open_delivery(shares, config.pinned))
    received = tuple((j, share.ciphertext) for j, share in shares.items())
    slot = slots.MaskedSlot(digest, received)
    return Pending(Step.MASKED_UPDATE, lambda _: slot, digest)


def _consistency(
    state: SiteState, config: SiteConfig, event: SurvivorSet, digest: bytes
) -> tuple[Pending, bytes]:
    cohort = state.joined
    site_checks.check_survivor_set(cohort, config, state.held, event)

    def finish(signature: bytes) -> slots.SurvivorSlot:
        return slots.SurvivorSlot(digest, event.dealt, event.survivors, signature)

    message = finish(b"").statement(cohort)
    return Pending(Step.CONSISTENCY, finish, digest, Purpose.SURVIVORS), message
