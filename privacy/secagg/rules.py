"""The numbers that decide whether a cohort may go on, and who says so.

Thresholds follow from n and c alone (design SA-1, Values); everything else comes from the sealed
manifest or the site's own policy, never from the aggregator. Every refusal names its clause.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg import graph
from privacy.secagg.encoding import Label, hash_of
from privacy.secagg.keys import Suite
from privacy.secagg.messages import AttemptContext, CohortPlan, Fingerprint, SignedBundle

LEAST_HONEST = 2
"""A sum over fewer honest sites than this hides nobody; no policy may go below it."""

DEFAULT_MIN_HONEST = 3


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of one attempt.

    Attributes:
        n: Sites in the cohort U1.
        colluders: c, absolute, from the manifest.
        shares: t = floor(2n/3) + 1 shares reconstruct a secret.
        quorum: T = floor(2n/3) + 1 signatures make a survivor set binding.
        retry: A = n + c - T + 1 signatures allow an uncharged retry.
        floor: The fewest sites that U2 and U3 may have: max(t, T, N_min).
    """

    n: int
    colluders: int
    shares: int
    quorum: int
    retry: int
    floor: int


def thresholds(n: int, colluders: int, min_survivors: int) -> Thresholds:
    """Compute the thresholds and check that the cohort carries them.

    Raises:
        PeerError: POLICY, c or N_min make no sense, or 2t > n + c or |U1| >= 3c fails;
            BELOW_THRESHOLD, fewer sites than max(t, T, N_min).
    """
    graph.check_size(n)
    if colluders < 1 or min_survivors <= colluders:
        raise PeerError(Reason.POLICY, f"needs 1 <= c < N_min, not c={colluders}, {min_survivors}")
    share_threshold = 2 * n // 3 + 1
    quorum = 2 * n // 3 + 1
    if n < 3 * colluders:
        raise PeerError(Reason.POLICY, f"|U1| >= 3c fails: {n} sites, c={colluders}")
    if 2 * share_threshold <= n + colluders:
        raise PeerError(Reason.POLICY, f"2t > n + c fails: t={share_threshold}, n={n}")
    floor = max(share_threshold, quorum, min_survivors)
    if n < floor:
        raise PeerError(
            Reason.BELOW_THRESHOLD, f"|U1| = {n} is below max(t, T, N_min) = {floor}: cannot finish"
        )
    retry = n + colluders - quorum + 1
    return Thresholds(n, colluders, share_threshold, quorum, retry, floor)


@dataclass(frozen=True)
class CohortPolicy:
    """What the sealed manifest and the site's administrator ask of every cohort.

    Attributes:
        colluders: c of the manifest.
        min_survivors: N_min of the manifest.
        min_cohort: The site's own floor for U1, U2 and U3; None takes N_min.
        min_pinned_peers: Members of U1 other than this site that the site itself pinned.
        min_honest: N_min - c must reach it; 3 by default, never below 2.
        small_cohort_consent: The administrator accepts ``min_honest`` of 2.
        own_pins: What the site itself pinned; None takes every site of the manifest.
        previous_survivors: Set in mode ``none`` without ``allow_adjacent_cohorts``: a survivor set
            that differs from this one by one or two sites is refused.
    """

    colluders: int
    min_survivors: int
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
    """Seconds from the start of each step until it goes on with those who answered."""

    share_keys_s: float = 30.0
    masked_update_s: float = 300.0
    consistency_s: float = 30.0
    unmask_s: float = 30.0


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
    """

    suite: Suite
    context: AttemptContext
    bundles: tuple[SignedBundle, ...]
    plan: CohortPlan
    pinned: Mapping[Fingerprint, bytes]
    timeouts: StepTimeouts = StepTimeouts()
    surplus_levels: tuple[int, ...] = ()


def check_survivors(
    survivors: Collection[Fingerprint], limits: Thresholds, policy: CohortPolicy
) -> None:
    """Check a survivor set's size and its distance from the previous one (step 3).

    Raises:
        PeerError: BELOW_THRESHOLD, fewer than max(T, N_min); POLICY, fewer than the site's own
            min_cohort, or in mode ``none`` one or two sites away from the previous survivor set.
    """
    if len(survivors) < max(limits.quorum, policy.min_survivors):
        raise PeerError(Reason.BELOW_THRESHOLD, f"|U3| = {len(survivors)} is below max(T, N_min)")
    if len(survivors) < policy.own_floor:
        raise PeerError(Reason.POLICY, f"|U3| = {len(survivors)} is below this site's min_cohort")
    previous = policy.previous_survivors
    if previous is not None and 0 < len(previous.symmetric_difference(survivors)) <= 2:
        raise PeerError(
            Reason.POLICY,
            "the summed sites differ from the last sum's by one or two, whom mode none would"
            " lay bare; allow_adjacent_cohorts in policy.toml consents to that",
        )
