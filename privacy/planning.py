"""Derive every public number of a job's encoding, and check a plan that somebody else derived.

The aggregator derives the plan when a job is submitted; each site derives it again from the job
file and the sealed manifest and takes part only if both are the same (privacy.md, D-REC step 6).
Only public constants go in: a number that depended on a site's data would be a release.
"""

import math
from dataclasses import dataclass, replace

from privacy.accounting.accountant import Accountant
from privacy.accounting.calibration import NoisePlan, Target, calibrate_noise_multiplier
from privacy.accounting.events import Event, NoDpEvent, SkellamRecordEvent
from privacy.accounting.sensitivity import (
    RANGE_DEVIATIONS,
    bit_width,
    choose_scale,
    honest_sites,
    l1_sensitivity,
    required_variance,
    site_variance,
)
from privacy.compress import LinearMap, MapKind
from privacy.errors import PeerError, Reason, UsageError
from privacy.pipeline import EncodingPlan, Mode
from privacy.quantise import RecordRule, Rounding
from privacy.ring import MAX_BITS
from privacy.secagg.encoding import hash_of
from privacy.spec import VectorSpec

_BOUNDED_ROOM = 2.0 ** (MAX_BITS - 2)
"""Grid steps that bounded sums may take: half of the ring's, the rest is the noise's."""

_EPSILON_SLACK = 1e-6  # relative: two libms may differ in the last digits of a logarithm


@dataclass(frozen=True)
class PrivacyTerms:
    """What a job file says about privacy and encoding, in the units of the job file.

    Attributes:
        mode: Whose contribution the noise hides.
        rounds: How many sums the job opens.
        epsilon: Target for all rounds together; 0 in mode ``none``.
        delta_dp: Its delta; 0 in mode ``none``.
        sampling_rate: q; 1 in mode ``none``.
        clipping_norm: C_g (records), or C of the whole delta in mode ``none``.
        metrics_norm: C_m; 0 without metrics.
        metrics_length: M.
        expected_batch_size: Public expected number of records in a whole cohort's step; in mode
            ``none`` unused.
        max_records: Public bound on one site's records.
        rounding: ``record`` or ``sum``; ignored in mode ``none``.
        noise_multiplier: z, or ``None`` to calibrate it to epsilon.
        map_kind: The shared linear map.
        keep: Share of the (rotated) gradient's coordinates that a random subset keeps.
        signal_range: Largest expected coordinate of the sum, as a share of
            ``expected_batch_size * C``: fixes the bit width.
        site_range: For sums whose size is bounded, as counts are: the most that one coordinate of
            one site's sum can be. The ring then holds all members' sums and cannot wrap, and
            ``expected_batch_size`` and ``signal_range`` are unused; 0 for other work.
    """

    mode: Mode
    rounds: int
    epsilon: float
    delta_dp: float
    sampling_rate: float
    clipping_norm: float
    metrics_norm: float
    metrics_length: int
    expected_batch_size: float
    max_records: int
    rounding: Rounding
    noise_multiplier: float | None
    map_kind: MapKind
    keep: float
    signal_range: float
    site_range: float = 0.0


@dataclass(frozen=True)
class CohortRules:
    """What the sealed manifest says about cohorts: c, N_min and the number of members."""

    colluders: int
    min_survivors: int
    members: int

    @property
    def honest_sites(self) -> int:
        """Return m_h = N_min - c: sites whose noise is sure to be in any sum that is opened."""
        return honest_sites(self.min_survivors, self.colluders)


def derive_encoding(
    terms: PrivacyTerms, spec: VectorSpec, rules: CohortRules, map_seed: bytes
) -> EncodingPlan:
    """Derive a job's encoding plan; calibrates the noise where the job states none.

    Args:
        terms: The job's terms.
        spec: The model's vector.
        rules: The sealed manifest's.
        map_seed: 32 public bytes; each round's map seed derives from it and the base version.

    Raises:
        UsageError: No noise, scale or bit width fits; says which number to change.
        PeerError: The terms contradict each other.
    """
    if terms.mode is Mode.RECORD_DISTRIBUTED:
        return _record_encoding(terms, spec, rules, map_seed)
    if terms.mode is Mode.NONE:
        return _plain_encoding(terms, spec, rules, map_seed)
    raise UsageError(f"mode {terms.mode} cannot run yet: use record-distributed or none")


def check_encoding(
    plan: EncodingPlan, terms: PrivacyTerms, spec: VectorSpec, rules: CohortRules
) -> float:
    """Check a plan from the wire against the job and the manifest, number by number.

    A noise multiplier that the job does not state is taken from the plan; everything else is
    derived anew and must be the same; then epsilon of all rounds must not exceed the job's.

    Returns:
        Epsilon of the whole job at ``terms.delta_dp``; infinite in mode ``none``.

    Raises:
        PeerError: POLICY: a number differs from the derived one (named), or epsilon is above the
            job's.
    """
    stated = terms
    if terms.noise_multiplier is None:
        stated = replace(terms, noise_multiplier=plan.noise_multiplier)
    try:
        own = derive_encoding(stated, spec, rules, plan.map_seed)
    except UsageError as error:
        raise PeerError(Reason.POLICY, f"the plan cannot be derived here: {error}") from error
    for name in vars(own) if own.to_bytes() != plan.to_bytes() else ():
        if getattr(own, name) != getattr(plan, name, None):
            raise PeerError(
                Reason.POLICY,
                f"the plan says {name} = {getattr(plan, name)!r}, the job and the manifest give"
                f" {getattr(own, name)!r}",
            )
    epsilon = job_epsilon(plan, terms, rules)
    if terms.mode is not Mode.NONE and not epsilon <= terms.epsilon * (1 + _EPSILON_SLACK):
        raise PeerError(
            Reason.POLICY,
            f"{terms.rounds} rounds of this plan cost epsilon {epsilon:.4f},"
            f" the job states {terms.epsilon}",
        )
    return epsilon


def step_event(plan: EncodingPlan, rules: CohortRules, steps: int = 1) -> Event:
    """Give the ledger event of releasing one (or several) of this plan's sums.

    The variance counted is V_site * m_h, what the fewest honest survivors add, never that of all.
    """
    if plan.mode is Mode.NONE:
        return NoDpEvent(steps)
    return SkellamRecordEvent(
        q=plan.sampling_rate,
        V=float(plan.noise_variance) * rules.honest_sites,
        D1=l1_sensitivity(plan.sensitivity, plan.length),
        D2=plan.sensitivity,
        d=plan.length,
        n_sites=rules.members,
        steps=steps,
    )


def job_epsilon(plan: EncodingPlan, terms: PrivacyTerms, rules: CohortRules) -> float:
    """Give epsilon of all rounds at the job's delta, at the best order; infinite without DP."""
    if plan.mode is Mode.NONE:
        return math.inf
    accountant = Accountant()
    accountant.compose(step_event(plan, rules, terms.rounds))
    return accountant.get_epsilon(terms.delta_dp)


def encoding_for_version(plan: EncodingPlan, version: int) -> EncodingPlan:
    """Give the plan of the round that trains from a model version: only the map's seed differs."""
    if plan.map_kind is MapKind.IDENTITY:
        return plan
    return plan.with_map_seed(hash_of("map", plan.map_seed, version))


def _kept(terms: PrivacyTerms, spec: VectorSpec) -> int:
    """Give how many coordinates a random subset keeps; 0 where the map selects none."""
    if not terms.map_kind.selects:
        return 0
    if not 0 < terms.keep <= 1:
        raise UsageError(f"[compression] keep is {terms.keep}, must lie in (0, 1]")
    return max(1, round(terms.keep * spec.length))


def _record_encoding(
    terms: PrivacyTerms, spec: VectorSpec, rules: CohortRules, map_seed: bytes
) -> EncodingPlan:
    norm = math.hypot(terms.clipping_norm, terms.metrics_norm)
    kept = _kept(terms, spec)
    length = spec.length + terms.metrics_length
    tail = terms.metrics_length if terms.map_kind.selects else 0
    linear_map = LinearMap(terms.map_kind, length, tail, kept, map_seed)
    d = linear_map.output_length
    scale = _record_scale(terms, norm, d, rules)
    sensitivity = RecordRule(
        linear_map=linear_map,
        metrics=terms.metrics_length,
        clip_gradient=terms.clipping_norm,
        clip_metrics=terms.metrics_norm,
        scale=scale,
        rounding=terms.rounding,
        n_max=terms.max_records,
    ).sensitivity
    z = terms.noise_multiplier
    if z is None:
        schedule = NoisePlan(terms.sampling_rate, terms.rounds, sensitivity, d, rules.members)
        z = calibrate_noise_multiplier(Target(terms.epsilon, terms.delta_dp), schedule)
    share = math.ceil(
        site_variance(required_variance(z, sensitivity), rules.min_survivors, rules.colluders)
    )
    return EncodingPlan(
        mode=terms.mode,
        spec_digest=spec.digest,
        gradient_length=spec.length,
        metrics_length=terms.metrics_length,
        map_kind=terms.map_kind,
        map_seed=map_seed,
        kept=kept,
        scale=scale,
        bits=bit_width(float(share), rules.members, _signal_sd(terms, scale, d, rules)),
        clip_gradient=terms.clipping_norm,
        clip_metrics=terms.metrics_norm,
        rounding=terms.rounding,
        n_max=terms.max_records,
        sampling_rate=terms.sampling_rate,
        noise_multiplier=z,
        sensitivity=sensitivity,
        noise_variance=share,
    )


def _record_scale(terms: PrivacyTerms, norm: float, d: int, rules: CohortRules) -> float:
    """Choose s; where the sum's size is bounded, no finer than the ring has room for.

    Raises:
        UsageError: Not even whole units fit.
    """
    scale = choose_scale(norm, d)
    if not terms.site_range:
        return scale
    room = _BOUNDED_ROOM / (terms.site_range * rules.members)
    if room < 1:
        raise UsageError(
            f"[privacy] max_records: sums of up to {terms.site_range:g} at each of"
            f" {rules.members} sites are more than the {_BOUNDED_ROOM:g} that fit: lower it"
        )
    return min(scale, 2.0 ** math.floor(math.log2(room)))


def _signal_sd(terms: PrivacyTerms, scale: float, d: int, rules: CohortRules) -> float:
    """Give the deviation of the summed signal's largest coordinate, grid units, from constants.

    Where the size is bounded, so that `RANGE_DEVIATIONS` of it are the bound of all members.
    Without a rotation all of it may sit on one coordinate; a rotation spreads it over all, but for
    metrics beside a random subset, which no map touches.
    """
    if terms.site_range:
        return rules.members * terms.site_range * scale / RANGE_DEVIATIONS
    total = terms.signal_range * terms.expected_batch_size * scale
    whole = total * math.hypot(terms.clipping_norm, terms.metrics_norm)
    if not terms.map_kind.rotates:
        return whole / RANGE_DEVIATIONS
    unmapped = total * terms.metrics_norm if terms.map_kind.selects else 0.0
    return max(whole / math.sqrt(d), unmapped / RANGE_DEVIATIONS)


def _plain_encoding(
    terms: PrivacyTerms, spec: VectorSpec, rules: CohortRules, map_seed: bytes
) -> EncodingPlan:
    """Use the whole ring: the finest power-of-two grid on which the cohort's sum cannot wrap."""
    norm = math.hypot(terms.clipping_norm, terms.metrics_norm)
    if not (math.isfinite(norm) and norm > 0):
        raise UsageError(f"[privacy] clipping_norm is {terms.clipping_norm}, must be positive")
    if terms.metrics_length:
        raise UsageError("mode 'none' has no metrics yet: remove [[metrics]]")
    room = (2.0 ** (MAX_BITS - 1) - 1 - rules.members) / (rules.members * norm)
    return EncodingPlan(
        mode=terms.mode,
        spec_digest=spec.digest,
        gradient_length=spec.length,
        metrics_length=terms.metrics_length,
        map_kind=terms.map_kind,
        map_seed=map_seed,
        kept=_kept(terms, spec),
        scale=2.0 ** math.floor(math.log2(room)),
        bits=MAX_BITS,
        clip_gradient=terms.clipping_norm,
        clip_metrics=terms.metrics_norm,
        rounding=Rounding.PLAIN,
        n_max=0,
        sampling_rate=1.0,
        noise_multiplier=0.0,
        sensitivity=0.0,
        noise_variance=0,
    )
