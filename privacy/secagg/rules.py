"""The numbers that decide whether a cohort may go on, and who says so.

Thresholds follow from n and c alone (design SA-1, Values); everything else comes from the sealed
manifest or the site's own policy, never from the aggregator. Every refusal names its clause.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg.encoding import Label, hash_of
from privacy.secagg.graph import STANDARD, GraphRule, most_colluders
from privacy.secagg.keys import Suite
from privacy.secagg.messages import AttemptContext, CohortPlan, Fingerprint, SignedBundle

MAX_ATTEMPTS = 100
"""Sparse attempts of one round that a site takes part in: each draws one graph (``graph``)."""

LEAST_HONEST = 2
"""A sum over fewer honest sites than this hides nobody; no policy may go below it."""

DEFAULT_MIN_HONEST = 3

DEFAULT_DROPOUT_PERCENT = 20


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of one attempt.

    Attributes:
        n: Sites in the cohort U1.
        colluders: c, absolute, from the manifest.
        degree: k, the neighbours of each site; n - 1 in the complete graph.
        shares: t shares reconstruct a secret, of the k + 1 that the owner and its neighbours hold:
            floor(2n/3) + 1 in the complete graph.
        window: Least survivors among k/2 ring positions in a row, c_w + 1; 0 in the complete graph.
        quorum: T = floor(2n/3) + 1 signatures make a survivor set binding.
        retry: A = n + c - T + 1 signatures allow an uncharged retry.
        floor: The fewest sites that U2 and U3 may have: max(T, N_min), and t in the complete graph.
    """

    n: int
    colluders: int
    degree: int
    shares: int
    window: int
    quorum: int
    retry: int
    floor: int

    @property
    def held_floor(self) -> int:
        """The fewest sites of N(i) and i whose shares a site must hold: t, or the floor."""
        return self.floor if self.degree == self.n - 1 else self.shares


def thresholds(
    n: int,
    colluders: int,
    min_survivors: int,
    dropout_percent: int = DEFAULT_DROPOUT_PERCENT,
    rule: GraphRule = STANDARD,
) -> Thresholds:
    """Compute the thresholds of a cohort of n and check that it carries them.

    Args:
        n: |U1|.
        colluders: c of the manifest.
        min_survivors: N_min of the manifest.
        dropout_percent: Of the manifest; it matters to sparse cohorts only.
        rule: See ``GraphRule``.

    Raises:
        PeerError: POLICY, c or N_min make no sense, or |U1| >= 3c fails, or what the graph needs
            (``_complete``, ``_sparse``); BELOW_THRESHOLD, fewer sites than the floor.
    """
    if colluders < 1 or min_survivors <= colluders:
        raise PeerError(Reason.POLICY, f"needs 1 <= c < N_min, not c={colluders}, {min_survivors}")
    if n < 3 * colluders:
        raise PeerError(Reason.POLICY, f"|U1| >= 3c fails: {n} sites, c={colluders}")
    quorum = 2 * n // 3 + 1
    floor = max(quorum, min_survivors)
    if rule.is_sparse(n):
        degree, shares, window = _sparse(n, colluders, rule.neighbourhood(dropout_percent), rule)
    else:
        degree, shares, window = _complete(n, colluders)
        floor = max(floor, shares)
    if n < floor:
        raise PeerError(
            Reason.BELOW_THRESHOLD, f"|U1| = {n} is below max(t, T, N_min) = {floor}: cannot finish"
        )
    retry = n + colluders - quorum + 1
    return Thresholds(n, colluders, degree, shares, window, quorum, retry, floor)


def _complete(n: int, colluders: int) -> tuple[int, int, int]:
    shares = 2 * n // 3 + 1
    if 2 * shares <= n + colluders:
        raise PeerError(Reason.POLICY, f"2t > n + c fails: t={shares}, n={n}")
    return n - 1, shares, 0


def _sparse(
    n: int, c: int, neighbourhood: tuple[int, int], rule: GraphRule
) -> tuple[int, int, int]:
    """Return k, t and the window's floor; c must be small enough for this graph.

    t is the rule's, or k/2 + 2 + c_w where that is more: a site that was told another U2 than its
    neighbours signed then stays masked (docs/adr/0011, "t"). It must exceed the colluders among
    anybody's neighbours, the only holders who would give away a second secret. A window must be
    able to hold more survivors than colluders.
    """
    degree, shares = neighbourhood
    if n <= degree + 1:
        raise PeerError(
            Reason.POLICY, f"{n} sites with {degree} neighbours each are no sparse graph"
        )
    if 100 * c > rule.colluder_percent * n:
        raise PeerError(
            Reason.POLICY,
            f"the sparse graph needs c <= {rule.colluder_percent} % of the cohort: c={c}, n={n}",
        )
    window = most_colluders(n, c, degree // 2, n) + 1
    if window > degree // 2:
        raise PeerError(Reason.POLICY, f"c={c} may fill {degree // 2} ring positions in a row")
    shares = max(shares, degree // 2 + 1 + window)
    near = most_colluders(n - 1, c, degree, n)
    if near >= shares or 2 * shares <= degree + 1 + near:
        raise PeerError(
            Reason.POLICY, f"{near} colluders may be neighbours of one site: t={shares}"
        )
    return degree, shares, window


@dataclass(frozen=True)
class CohortPolicy:
    """What the sealed manifest and the site's administrator ask of every cohort.

    Attributes:
        colluders: c of the manifest.
        min_survivors: N_min of the manifest.
        dropout_percent: Of the manifest: the drop-outs to expect, for the sparse graph.
        min_cohort: The site's own floor for U1, U2 and U3; None takes N_min.
        min_pinned_peers: Members of U1 other than this site that the site itself pinned.
        min_honest: N_min - c must reach it; 3 by default, never below 2.
        small_cohort_consent: The administrator accepts ``min_honest`` of 2.
        own_pins: What the site itself pinned; None takes every site of the manifest.
        previous_survivors: Set in mode ``none`` without ``allow_adjacent_cohorts``: a survivor set
            that differs from this one by one or two sites, and c friends besides, is refused.
    """

    colluders: int
    min_survivors: int
    dropout_percent: int = DEFAULT_DROPOUT_PERCENT
    min_cohort: int | None = None
    min_pinned_peers: int = 0
    min_honest: int = DEFAULT_MIN_HONEST
    small_cohort_consent: bool = False
    own_pins: frozenset[Fingerprint] | None = None
    previous_survivors: frozenset[Fingerprint] | None = None

    def __post_init__(self) -> None:
        """Refuse a policy that protects nobody.

        Raises:
            UsageError: ``min_honest`` is below 2, or below 3 without consent.
        """
        if self.min_honest < LEAST_HONEST:
            raise UsageError(f"min_honest is {self.min_honest}; it is never below {LEAST_HONEST}")
        if self.min_honest < DEFAULT_MIN_HONEST and not self.small_cohort_consent:
            raise UsageError("min_honest of 2 needs small_cohort_consent = true in the policy")

    @property
    def own_floor(self) -> int:
        """The site's ``min_cohort``, N_min where it set none."""
        return self.min_survivors if self.min_cohort is None else self.min_cohort


@dataclass(frozen=True)
class ExpectedPlan:
    """What the site itself derived for this round; the roster's plan must say the same.

    Attributes:
        encoding: Canonical bytes of the site's own ``EncodingPlan``.
        ring_bits: B, 8..32.
        length: Integers in the vector, d > 0.
        chain_head: Head of the version chain up to the newest base, from received bytes.
        own_version: The version that this site trained from.
        newest_version: The newest version on the site's chain.
        staleness_cap: How many versions a base may lie behind the newest.
        noised: The update carries DP noise, so bases may be mixed.
        shared_noise: Each site adds only its part of the sum's noise. What such a sum is worth is
            counted in honest survivors, which the sparse graph cannot promise: refused there.
        encoding_core: Canonical bytes of the encoding with B left out: what a retry may not change.
        surplus_levels: Numbers of survivors, ascending, at each of which step 4 reveals one more
            surplus seed of this site; from the encoding, which the roster's must equal.
    """

    encoding: bytes
    ring_bits: int
    length: int
    chain_head: bytes
    own_version: int
    newest_version: int
    staleness_cap: int = 0
    noised: bool = True
    shared_noise: bool = True
    encoding_core: bytes = b""
    surplus_levels: tuple[int, ...] = ()


@dataclass(frozen=True)
class SiteConfig:
    """Everything public that a site brings to one attempt.

    Attributes:
        me: This site's fingerprint.
        suite: The manifest's suite.
        context: What the attempt must be called: consortium, manifest hash, job and epoch as the
            site knows them; round and attempt as announced.
        pinned: SPKI (DER) of every site's signing key, from the sealed manifest.
        policy: See ``CohortPolicy``.
        plan: See ``ExpectedPlan``.
        last_accepted: (round, attempt) of the last roster accepted for this job, durable; the new
            pair must be greater.
        last_sent: (round, attempt) of the last attempt in which this same update was charged or
            sent, durable; None if none. A retry permit must be for exactly that attempt.
        step_timeout_s: Seconds without progress after which the site gives up.
        graph_rule: See ``GraphRule``.
    """

    me: Fingerprint
    suite: Suite
    context: AttemptContext
    pinned: Mapping[Fingerprint, bytes]
    policy: CohortPolicy
    plan: ExpectedPlan
    last_accepted: tuple[int, int] = (-1, -1)
    last_sent: tuple[int, int] | None = None
    step_timeout_s: float = 600.0
    graph_rule: GraphRule = STANDARD

    def update_digest(self) -> bytes:
        """Name what a retry must keep: job, round, encoding but for B, model, own base: 32 bytes.

        Only attempt, roster, site list and B may differ (design, Retry rule).
        """
        context, plan = self.context, self.plan
        return hash_of(
            Label.RETRY,
            context.suite,
            context.consortium_id,
            context.manifest_hash,
            context.job_id,
            context.roster_epoch,
            context.round,
            plan.encoding_core,
            plan.length,
            plan.chain_head,
            plan.own_version,
            self.policy.colluders,
            self.policy.min_survivors,
        )


@dataclass(frozen=True)
class StepTimeouts:
    """Seconds from the start of each step until it goes on with those who answered.

    Step 0, the reveals of a sparse cohort, needs every member and ends the attempt without one.
    """

    share_keys_s: float = 30.0
    masked_update_s: float = 300.0
    consistency_s: float = 30.0
    unmask_s: float = 30.0
    reveal_s: float = 30.0


@dataclass(frozen=True)
class ServerConfig:
    """Everything that fixes one attempt at the aggregator.

    Attributes:
        suite: The manifest's suite.
        context: Names of the attempt; its number is durable before use.
        bundles: The cohort U1, each verified when it entered the stock (``cohort.check_bundle``),
            sorted by fingerprint.
        plan: The frozen plan; bases sorted by fingerprint, one for each bundle.
        pinned: SPKI (DER) of signing keys, by site.
        timeouts: See ``StepTimeouts``.
        surplus_levels: As the plan's encoding says; see ``ExpectedPlan``.
        graph_rule: See ``GraphRule``.
    """

    suite: Suite
    context: AttemptContext
    bundles: tuple[SignedBundle, ...]
    plan: CohortPlan
    pinned: Mapping[Fingerprint, bytes]
    timeouts: StepTimeouts = StepTimeouts()
    surplus_levels: tuple[int, ...] = ()
    graph_rule: GraphRule = STANDARD


def check_survivors(
    survivors: Collection[Fingerprint], limits: Thresholds, policy: CohortPolicy
) -> None:
    """Check a survivor set's size and its distance from the previous one (step 3).

    Raises:
        PeerError: BELOW_THRESHOLD, fewer than max(T, N_min); POLICY, fewer than the site's own
            min_cohort, or in mode ``none`` one to c + 2 sites away from the previous survivor set:
            the aggregator knows what its c friends put in, so their coming and going hides nobody.
    """
    if len(survivors) < max(limits.quorum, policy.min_survivors):
        raise PeerError(Reason.BELOW_THRESHOLD, f"|U3| = {len(survivors)} is below max(T, N_min)")
    if len(survivors) < policy.own_floor:
        raise PeerError(Reason.POLICY, f"|U3| = {len(survivors)} is below this site's min_cohort")
    previous = policy.previous_survivors
    if previous is None:
        return
    changed = len(previous.symmetric_difference(survivors))
    if 0 < changed <= policy.colluders + 2:
        raise PeerError(
            Reason.POLICY,
            f"the summed sites differ from the last sum's by {changed}, c = {policy.colluders} of"
            " whom may be the aggregator's friends: mode none would lay one or two bare;"
            " allow_adjacent_cohorts in policy.toml consents to that",
        )
