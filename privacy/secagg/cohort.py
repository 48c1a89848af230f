"""Step 0: a roster that has passed every check, and the checks.

``Cohort`` is what both machines work on from then on. A site gets one from ``admit`` only; the
aggregator, which cut the cohort itself, from ``Cohort.of``.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg import statements
from privacy.secagg.graph import STANDARD, Graph, GraphRule
from privacy.secagg.keys import Suite
from privacy.secagg.messages import (
    AttemptContext,
    CohortPlan,
    Fingerprint,
    Roster,
    SignedBundle,
)
from privacy.secagg.rules import MAX_ATTEMPTS, SiteConfig, Thresholds, thresholds


@dataclass(frozen=True)
class Cohort:
    """U1 with its hashes, thresholds and graph; indices run from 1."""

    roster: Roster
    ctx: bytes
    rh: bytes
    mh: bytes
    limits: Thresholds
    drawn: Graph | None

    @classmethod
    def of(cls, roster: Roster, rule: GraphRule = STANDARD) -> "Cohort":
        """Compute hashes and thresholds of a roster; a sparse graph waits for the reveals.

        Raises:
            PeerError: As ``rules.thresholds``.
        """
        ctx = roster.context.digest()
        n, plan = len(roster.bundles), roster.plan
        limits = thresholds(n, plan.colluders, plan.min_survivors, plan.dropout_percent, rule)
        rh = statements.roster_hash(ctx, roster.bundles)
        graph = None if rule.is_sparse(n) else Graph.complete(n)
        return cls(roster, ctx, rh, plan.digest(), limits, graph)

    @property
    def is_sparse(self) -> bool:
        """Whether the graph is drawn from reveals."""
        return self.limits.degree < self.n - 1

    @property
    def graph(self) -> Graph:
        """Who are neighbours; sparse cohorts have it once all r are revealed."""
        if self.drawn is None:
            raise UsageError("this cohort's graph is not drawn yet")
        return self.drawn

    def with_seed(self, seed: bytes) -> "Cohort":
        """Return the cohort with the sparse graph of a seed (``statements.graph_seed``)."""
        return replace(self, drawn=Graph.circulant(self.n, self.limits.degree, seed))

    def check_reveal(self, index: int, value: bytes) -> None:
        """Hold a member's r against its bundle.

        Raises:
            PeerError: EQUIVOCATION, its bundle commits to another one.
        """
        committed = self.roster.bundles[index - 1].bundle.r_commitment
        if statements.reveal_commitment(value) != committed:
            raise PeerError(
                Reason.EQUIVOCATION,
                f"the r of {self.name(index)} is not what its bundle commits to",
            )

    @property
    def n(self) -> int:
        """Number of sites in U1."""
        return self.limits.n

    @property
    def indices(self) -> range:
        """Every index: 1..n."""
        return range(1, self.n + 1)

    @cached_property
    def members(self) -> tuple[Fingerprint, ...]:
        """Fingerprints by rank: index i stands at i - 1."""
        return tuple(signed.bundle.site for signed in self.roster.bundles)

    @cached_property
    def _index(self) -> dict[Fingerprint, int]:
        return {site: rank for rank, site in enumerate(self.members, start=1)}

    def index_of(self, site: Fingerprint) -> int:
        """Return a member's index.

        Raises:
            PeerError: UNAUTHENTICATED, the site is no member of U1.
        """
        index = self._index.get(site)
        if index is None:
            raise PeerError(Reason.UNAUTHENTICATED, f"site {short(site)} is not in the cohort")
        return index

    def name(self, index: int) -> str:
        """Name a member for a message to people."""
        return f"site {short(self.members[index - 1])} (index {index})"

    def c_pk(self, index: int) -> bytes:
        """Return a member's share-transport key."""
        return self.roster.bundles[index - 1].bundle.c_pk

    def m_pk(self, index: int) -> bytes:
        """Return a member's mask key."""
        return self.roster.bundles[index - 1].bundle.m_pk

    def check_ctx(self, ctx: bytes) -> None:
        """Refuse a frame of any other attempt: WRONG_CONTEXT."""
        if ctx != self.ctx:
            raise PeerError(Reason.WRONG_CONTEXT, "the frame belongs to another attempt")


def short(site: Fingerprint) -> str:
    """Name a site by the first 16 hexadecimal digits of its fingerprint."""
    return site.hex()[:16]


def check_bundle(
    suite: Suite, spki: bytes, signed: SignedBundle, consortium_id: str, now_s: float
) -> None:
    """Check one bundle on its own: consortium, age, keys, the owner's signature.

    The aggregator calls it once, when a bundle enters the stock; every site for every other member.

    Raises:
        PeerError: WRONG_CONTEXT, another consortium; REPLAY, too old; MALFORMED, a key is off the
            curve; BAD_SIGNATURE.
    """
    bundle = signed.bundle
    if bundle.consortium_id != consortium_id:
        raise PeerError(Reason.WRONG_CONTEXT, f"bundle of {short(bundle.site)}: other consortium")
    if bundle.not_after_s < now_s:
        raise PeerError(Reason.REPLAY, f"bundle of {short(bundle.site)} is past its not_after")
    suite.key_identities(bundle)
    suite.verify(spki, signed.signature, statements.bundle_statement(bundle))


def check_distinct_keys(suite: Suite, bundles: Iterable[SignedBundle]) -> None:
    """Refuse a cohort in which two of all c_pk and m_pk stand for the same secrets.

    Raises:
        PeerError: POLICY, the same key twice; MALFORMED, a key is off the curve.
    """
    seen: set[bytes] = set()
    for signed in bundles:
        for identity in suite.key_identities(signed.bundle):
            if identity in seen:
                who = short(signed.bundle.site)
                raise PeerError(Reason.POLICY, f"bundle of {who} repeats a key of the cohort")
            seen.add(identity)


def admit(roster: Roster, config: SiteConfig, own: SignedBundle, now_s: float) -> Cohort:
    """Check a roster by every rule of step 1 before any key is used; signatures last.

    Raises:
        PeerError: The clause that fails, by its reason.
    """
    _check_context(roster.context, config)
    cohort = Cohort.of(roster, config.graph_rule)
    if cohort.is_sparse:
        _check_sparse(cohort, config)
    _check_members(cohort, config)
    _check_sizes(cohort, config)
    _check_plan(cohort, config)
    check_distinct_keys(config.suite, roster.bundles)
    for signed in roster.bundles:
        if signed.bundle.site == config.me:
            if signed.bundle != own.bundle:
                raise PeerError(Reason.EQUIVOCATION, "the roster changes this site's own bundle")
            continue
        spki = config.pinned[signed.bundle.site]
        check_bundle(config.suite, spki, signed, roster.context.consortium_id, now_s)
    return cohort


def _check_context(context: AttemptContext, config: SiteConfig) -> None:
    if context != config.context or context.suite != config.suite.name:
        raise PeerError(Reason.WRONG_CONTEXT, "the roster names another attempt, job or manifest")
    if (context.round, context.attempt) <= config.last_accepted:
        raise PeerError(Reason.REPLAY, f"attempt {context.attempt} was used up: it must increase")


def _check_sparse(cohort: Cohort, config: SiteConfig) -> None:
    """Refuse what the sparse graph cannot promise, and a draw of the graph too many."""
    if config.plan.shared_noise:
        raise PeerError(
            Reason.POLICY,
            f"a cohort of {cohort.n} sites needs the sparse graph, which is not for differential"
            " privacy whose noise is shared among sites: cut the cohort smaller",
        )
    if cohort.roster.context.attempt > MAX_ATTEMPTS:
        raise PeerError(
            Reason.POLICY, f"more than {MAX_ATTEMPTS} attempts of one round would draw graphs anew"
        )


def _check_members(cohort: Cohort, config: SiteConfig) -> None:
    members = cohort.members
    if any(a >= b for a, b in pairwise(members)):
        raise PeerError(Reason.MALFORMED, "the roster is not sorted by distinct fingerprints")
    cohort.index_of(config.me)
    for site in members:
        if site not in config.pinned:
            raise PeerError(
                Reason.UNAUTHENTICATED, f"site {short(site)} is not in the sealed manifest"
            )
    own_pins = config.policy.own_pins
    pinned = sum(site != config.me and (own_pins is None or site in own_pins) for site in members)
    if pinned < config.policy.min_pinned_peers:
        raise PeerError(
            Reason.POLICY, f"{pinned} members are pinned here, min_pinned_peers asks for more"
        )


def _check_sizes(cohort: Cohort, config: SiteConfig) -> None:
    policy, plan = config.policy, cohort.roster.plan
    if (plan.colluders, plan.min_survivors, plan.dropout_percent) != (
        policy.colluders,
        policy.min_survivors,
        policy.dropout_percent,
    ):
        raise PeerError(
            Reason.POLICY, "the plan's c, N_min or drop-out is not that of the manifest"
        )
    if policy.min_survivors - policy.colluders < policy.min_honest:
        raise PeerError(Reason.POLICY, f"N_min - c is below min_honest = {policy.min_honest}")
    if cohort.n < policy.own_floor:
        raise PeerError(Reason.POLICY, f"cohort of {cohort.n} is below this site's min_cohort")


def _check_plan(cohort: Cohort, config: SiteConfig) -> None:
    plan, expected = cohort.roster.plan, config.plan
    for name in ("encoding", "ring_bits", "length", "chain_head"):
        if getattr(plan, name) != getattr(expected, name):
            raise PeerError(Reason.POLICY, f"the plan's {name} is not what this site derived")
    if tuple(base.site for base in plan.bases) != cohort.members:
        raise PeerError(Reason.MALFORMED, "the plan's bases are not those of the cohort, in order")
    versions = [base.version for base in plan.bases]
    if versions[cohort.index_of(config.me) - 1] != expected.own_version:
        raise PeerError(Reason.POLICY, "the plan misstates the version this site trained from")
    oldest = expected.newest_version - expected.staleness_cap
    if min(versions) < oldest or max(versions) > expected.newest_version:
        raise PeerError(Reason.POLICY, "a base version is not on this site's chain, or too stale")
    smallest = min(versions.count(version) for version in set(versions))
    if len(set(versions)) > 1 and not expected.noised and smallest < config.policy.own_floor:
        raise PeerError(Reason.POLICY, "mixed bases need DP noise, or min_cohort sites per base")


def check_plan_for_cohort(plan: CohortPlan, members: tuple[Fingerprint, ...]) -> None:
    """Check what the aggregator itself must get right in a plan: one base for each member.

    Raises:
        PeerError: MALFORMED.
    """
    if tuple(base.site for base in plan.bases) != members or members != tuple(sorted(set(members))):
        raise PeerError(Reason.MALFORMED, "members and bases must be sorted and the same sites")
