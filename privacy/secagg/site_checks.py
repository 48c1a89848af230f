"""What a site checks in steps 2 to 4 before it goes on, and how it names its inputs.

Step 0's checks are in ``cohort.admit``; those of dealt shares in ``site_steps``.
"""

from collections.abc import Collection

from privacy.errors import PeerError, Reason
from privacy.secagg import statements
from privacy.secagg.cohort import Cohort
from privacy.secagg.encoding import Label, hash_of
from privacy.secagg.messages import (
    Fingerprint,
    GraphReveals,
    Roster,
    ShareDelivery,
    SurvivorQuorum,
    SurvivorSet,
)
from privacy.secagg.rules import CohortPolicy, SiteConfig, check_survivors
from privacy.secagg.site_steps import index_delivery
from privacy.secagg.slots import SurvivorSlot


def roster_digest(roster: Roster) -> bytes:
    """Name the input of step 1: ctx, signed bodies and plan, not the malleable signatures."""
    rh = statements.roster_hash(roster.context.digest(), roster.bundles)
    return hash_of(Label.ROSTER_INPUT, rh, roster.plan.digest())


def draw_graph(cohort: Cohort, reveals: GraphReveals) -> bytes:
    """Return the graph's seed, every member's r checked against its bundle (step 1, sparse).

    Raises:
        PeerError: MALFORMED, not one r a member; EQUIVOCATION, one is not what was committed to.
    """
    if len(reveals.values) != cohort.n:
        raise PeerError(Reason.MALFORMED, f"{len(reveals.values)} values of r for {cohort.n} sites")
    for index, value in enumerate(reveals.values, start=1):
        cohort.check_reveal(index, value)
    return statements.graph_seed(cohort.rh, reveals.values)


def input_digest(
    cohort: Cohort,
    me: Fingerprint,
    event: GraphReveals | ShareDelivery | SurvivorSet | SurvivorQuorum,
    statement: bytes,
) -> bytes:
    """Name the input of a step after the roster by everything that its output depends on.

    Args:
        cohort: The admitted cohort.
        me: This site.
        event: The input.
        statement: For step 4 the u3 string of slot 3: any T signatures on it are the same input.

    Raises:
        PeerError: A delivery that does not belong to the cohort.
    """
    match event:
        case GraphReveals():
            return hash_of(Label.REVEALS_INPUT, *event.values)
        case ShareDelivery():
            return statements.delivery_digest(index_delivery(cohort, me, event).items())
        case SurvivorSet():
            return hash_of(Label.SURVIVOR_INPUT, len(event.dealt), *event.dealt, *event.survivors)
        case SurvivorQuorum():
            return hash_of(Label.SURVIVOR_INPUT, statement)


def check_dealt_size(cohort: Cohort, policy: CohortPolicy, dealt: int) -> None:
    """Check the size of U2_i: a round that cannot finish charges nobody.

    In the complete graph U2_i is U2 and must hold max(t, T, N_min, own min_cohort); in a sparse one
    it is this site's neighbourhood, which must hold t. All of U2 is checked in step 3.

    Raises:
        PeerError: BELOW_THRESHOLD.
    """
    least = cohort.limits.held_floor
    if not cohort.is_sparse:
        least = max(least, policy.own_floor)
    if dealt < least:
        raise PeerError(Reason.BELOW_THRESHOLD, f"|U2| = {dealt} is below {least}: not charged")


def check_survivor_set(
    cohort: Cohort, config: SiteConfig, held: tuple[int, ...], event: SurvivorSet
) -> None:
    """Check that U2 is U2_i around this site, that U3 is a subset of U2 that holds i, and sizes.

    Args:
        cohort: The admitted cohort.
        config: This site's.
        held: U2_i: whose shares came here, this site included, ascending.
        event: What the aggregator proposes.

    Raises:
        PeerError: EQUIVOCATION, another U2: this site would reveal a share of a member that it
            masked with, or not; MALFORMED; POLICY; BELOW_THRESHOLD, also where U3 leaves so few on
            a part of the ring that colluders could cut honest survivors off from the others.
    """
    dealt, survivors = event.dealt, event.survivors
    me, limits = cohort.index_of(config.me), cohort.limits
    _check_set(dealt, cohort.indices, "U2 is no sorted subset of U1")
    around = frozenset(cohort.graph.holders(me))
    if tuple(j for j in dealt if j in around) != held:
        raise PeerError(Reason.EQUIVOCATION, "U2 is not the set whose shares came here")
    _check_set(survivors, dealt, "U3 is no sorted subset of U2")
    if me not in survivors:
        raise PeerError(Reason.POLICY, "U3 leaves this site out, yet asks for its signature")
    check_survivors([cohort.members[j - 1] for j in survivors], limits, config.policy)
    if cohort.is_sparse and cohort.graph.least_in_window(survivors) < limits.window:
        raise PeerError(
            Reason.BELOW_THRESHOLD,
            f"U3 holds fewer than {limits.window} of {limits.degree // 2} neighbouring sites",
        )


def _check_set(indices: tuple[int, ...], within: Collection[int], message: str) -> None:
    known = frozenset(within)
    if indices != tuple(sorted(set(indices))) or not known.issuperset(indices):
        raise PeerError(Reason.MALFORMED, message)


def check_quorum(
    cohort: Cohort, config: SiteConfig, chosen: SurvivorSlot, quorum: SurvivorQuorum
) -> None:
    """Demand T signatures of distinct U3 members on the very string that this site signed (step 4).

    No more than T are verified: what else was sent is not looked at.

    Raises:
        PeerError: WRONG_CONTEXT, UNAUTHENTICATED, MALFORMED (no member of U3, or twice),
            BAD_SIGNATURE, BELOW_THRESHOLD.
    """
    statement = chosen.statement(cohort)
    signers: set[int] = set()
    for vote in quorum.signatures[: cohort.limits.quorum]:
        cohort.check_ctx(vote.ctx)
        index = cohort.index_of(vote.sender)
        if index not in chosen.survivors or index in signers:
            raise PeerError(Reason.MALFORMED, f"{cohort.name(index)} has no vote here, or two")
        if vote.sender != config.me or vote.signature != chosen.signature:
            config.suite.verify(config.pinned[vote.sender], vote.signature, statement)
        signers.add(index)
    if len(signers) < cohort.limits.quorum:
        raise PeerError(
            Reason.BELOW_THRESHOLD, f"{len(signers)} signatures, T = {cohort.limits.quorum}"
        )
