"""Derive the encoding plan of each mode at a given noise multiplier, and what its sums cost.

Which multiplier that is, and whether the plan is good enough, is for `privacy.planning`. Only
public constants go in: a number that depended on a site's data would be a release.
"""

import math
from dataclasses import dataclass, replace

from privacy.accounting.calibration import NoisePlan
from privacy.accounting.events import DEFAULT_SAMPLER_TV, Event, GaussianRecordEvent, NoDpEvent
from privacy.accounting.sensitivity import (
    RANGE_DEVIATIONS,
    bit_width,
    choose_scale,
    conditional_rounding_sensitivity,
    required_variance,
    site_variance,
)
from privacy.compress import LinearMap, MapKind
from privacy.errors import UsageError
from privacy.local_noise import choose_local_noise
from privacy.low_rank import LowRank, find_matrices
from privacy.low_rank_map import LowRankMap, SharedMap
from privacy.noise import MAX_STD
from privacy.pipeline import EncodingPlan, Mode
from privacy.quantise import RecordRule, Rounding
from privacy.ring import MAX_BITS
from privacy.spec import TensorSpec, VectorSpec
from privacy.step_size import METRICS_SHARE, scale_for
from privacy.surplus import NoiseLevel, choose_levels
from privacy.terms import CohortRules, PrivacyTerms

_BOUNDED_ROOM = 2.0 ** (MAX_BITS - 2)
"""Grid steps that bounded sums may take: half of the ring's, the rest is the noise's."""

_EXACT = 2.0**53


def encoding_at(
    terms: PrivacyTerms, spec: VectorSpec, rules: CohortRules, map_seed: bytes, z: float
) -> EncodingPlan:
    """Derive the plan at a noise multiplier; z is 0 in mode ``none``.

    Raises:
        UsageError: No scale, noise or bit width fits; says which number to change.
        PeerError: The terms contradict each other.
    """
    if terms.mode is Mode.NONE:
        return _plain_encoding(terms, spec, rules, map_seed)
    if terms.mode is Mode.RECORD_LOCAL:
        return _local_encoding(terms, spec, rules, map_seed, z)
    return _shared_noise_encoding(terms, spec, rules, map_seed, z)


def event_at(
    terms: PrivacyTerms, spec: VectorSpec, rules: CohortRules, map_seed: bytes, z: float
) -> Event:
    """Give the event of one exchange at a noise multiplier, before its noise is rounded up.

    Raises:
        UsageError: A number is out of range.
    """
    if terms.mode is Mode.NONE:
        return NoDpEvent()
    if terms.mode is Mode.RECORD_LOCAL:
        d = spec.length + terms.metrics_length
        return GaussianRecordEvent(
            terms.sampling_rate, z, terms.local_steps, d, DEFAULT_SAMPLER_TV, terms.unit
        )
    grid = _grid(terms, spec, rules, map_seed)
    d = grid.linear_map.longest_output
    schedule = NoisePlan(
        terms.sampling_rate, 1, grid.sensitivity, d, rules.members, unit=terms.protected
    )
    return schedule.event(z)


def evaluation_spec(length: int) -> VectorSpec:
    """Describe the vector of an evaluation: its metric coordinates, and nothing else.

    Args:
        length: M of the evaluation.
    """
    return VectorSpec((TensorSpec("evaluation", (length,)),))


def evaluation_terms(terms: PrivacyTerms) -> PrivacyTerms:
    """Give the terms of a Flower app's evaluation: its metrics stand where the gradient stood."""
    norm = terms.metrics_norm or 1.0  # a layout of its own scales to any norm
    return replace(
        terms,
        clipping_norm=norm,
        metrics_norm=0.0,
        metrics_length=0,
        update_norm=norm,
        map_kind=MapKind.IDENTITY,
        keep=1.0,
        signal_range=1.0,
        rank=0,
        bits=0,
        decay=0.0,
        target=0.0,
    )


@dataclass(frozen=True)
class _Grid:
    """The integers of a noised sum: map, scale and sensitivity."""

    linear_map: SharedMap
    scale: float
    sensitivity: float


def _grid(terms: PrivacyTerms, spec: VectorSpec, rules: CohortRules, map_seed: bytes) -> _Grid:
    norm = math.hypot(terms.clipping_norm, terms.metrics_norm)
    linear_map = _shared_map(terms, spec, map_seed)
    d = linear_map.longest_output
    scale = _scale(terms, norm, d, rules)
    if terms.mode is Mode.SITE:
        return _Grid(linear_map, scale, conditional_rounding_sensitivity(norm, scale, d).D2)
    rule = RecordRule(
        linear_map=linear_map,
        metrics=terms.metrics_length,
        clip_gradient=terms.clipping_norm,
        clip_metrics=terms.metrics_norm,
        scale=scale,
        rounding=terms.rounding,
        n_max=terms.max_records,
        by_user=terms.unit == "user",
    )
    return _Grid(linear_map, scale, rule.sensitivity)


def _shared_noise_encoding(
    terms: PrivacyTerms, spec: VectorSpec, rules: CohortRules, map_seed: bytes, z: float
) -> EncodingPlan:
    """Derive a plan whose noise is shared by the cohort: record-distributed and site."""
    grid = _grid(terms, spec, rules, map_seed)
    share = math.ceil(
        site_variance(required_variance(z, grid.sensitivity), rules.min_survivors, rules.colluders)
    )
    if share > MAX_STD**2:
        raise UsageError(
            f"each site's noise would have a deviation of {math.sqrt(share):.4g} grid steps,"
            f" {MAX_STD} is the most: lower the noise multiplier (a larger epsilon), shorten the"
            " vector ([compression] keep), or raise the manifest's N_min"
        )
    levels: tuple[NoiseLevel, ...] = ()
    if terms.surplus_up_to:
        levels = _surplus_levels(share, rules, terms.surplus_up_to)
    by_site = terms.mode is Mode.SITE
    return EncodingPlan(
        mode=terms.mode,
        spec_digest=spec.digest,
        gradient_length=spec.length,
        metrics_length=terms.metrics_length,
        map_kind=terms.map_kind,
        map_seed=map_seed,
        kept=_kept(terms, spec),
        scale=grid.scale,
        bits=bit_width(float(share), rules.members, _signal_sd(terms, grid, share, rules)),
        clip_gradient=terms.clipping_norm,
        clip_metrics=terms.metrics_norm,
        rounding=Rounding.CONDITIONAL if by_site else terms.rounding,
        unit=terms.protected,
        max_rows=0 if by_site else terms.max_rows,
        n_max=0 if by_site else terms.max_records,
        sampling_rate=terms.sampling_rate,
        noise_multiplier=z,
        sensitivity=grid.sensitivity,
        noise_variance=share,
        local=None,
        noise_levels=levels,
        low_rank=low_rank_of(terms, spec),
        decay=terms.decay,
    )


def _surplus_levels(share: int, rules: CohortRules, most: int) -> tuple[NoiseLevel, ...]:
    levels = choose_levels(share, rules.min_survivors, rules.colluders, most)
    if not levels:
        raise UsageError(
            "[privacy] remove_surplus_noise = true has nothing to remove: [round] target_sites ="
            f" {most} must be above the manifest's N_min = {rules.min_survivors}, and a share's"
            f" variance, here {share}, above 1; leave the key out"
        )
    return levels


def _local_encoding(
    terms: PrivacyTerms, spec: VectorSpec, rules: CohortRules, map_seed: bytes, z: float
) -> EncodingPlan:
    """Derive a plan of mode record-local: noise in each local step, a plain ring around it."""
    noise = choose_local_noise(
        (terms.clipping_norm, terms.metrics_norm),
        spec.length + terms.metrics_length,
        z,
        terms.local_steps,
        terms.expected_batch_size,
    )
    if terms.max_records * (noise.sensitivity + 1) >= _EXACT:
        raise UsageError(
            f"[privacy] max_records = {terms.max_records} with a noise multiplier of {z:g} is more"
            " than exact sums carry: lower it to what a site can hold"
        )
    ranged = replace(
        terms,
        clipping_norm=terms.update_norm,
        metrics_norm=noise.metric_reach(z, terms.metrics_length),
    )
    return replace(
        _plain_encoding(replace(ranged, mode=Mode.NONE), spec, rules, map_seed),
        mode=Mode.RECORD_LOCAL,
        unit=terms.unit,
        max_rows=terms.max_rows,
        n_max=terms.max_records,
        sampling_rate=terms.sampling_rate,
        noise_multiplier=z,
        local=noise,
    )


def _plain_encoding(
    terms: PrivacyTerms, spec: VectorSpec, rules: CohortRules, map_seed: bytes
) -> EncodingPlan:
    """Fit a ring around a plain sum.

    By default the whole ring: the finest power-of-two grid on which the cohort's sum cannot wrap.
    Where the job asks for fewer bits, the ring is as wide as the sum is expected to be, rounding is
    random, and each version announces its step size; here is the first one, from public constants.
    """
    norm = math.hypot(terms.clipping_norm, terms.metrics_norm)
    if not (math.isfinite(norm) and norm > 0):
        raise UsageError(f"[privacy] clipping_norm is {terms.clipping_norm}, must be positive")
    clip_metrics = terms.metrics_norm
    if terms.bits:
        linear_map = _shared_map(terms, spec, map_seed)
        reach = terms.signal_range * terms.clipping_norm
        root = math.sqrt(linear_map.shortest_output)
        spread = math.sqrt(linear_map.shortest_block) / root  # of what lies in one block alone
        clip_metrics = METRICS_SHARE * reach * spread if terms.metrics_length else 0.0
        scale = scale_for(rules.members * math.hypot(reach, clip_metrics) / root, terms.bits)
    else:
        room = (2.0 ** (MAX_BITS - 1) - 1 - rules.members) / (rules.members * norm)
        scale = 2.0 ** math.floor(math.log2(room))
    return EncodingPlan(
        mode=terms.mode,
        spec_digest=spec.digest,
        gradient_length=spec.length,
        metrics_length=terms.metrics_length,
        map_kind=terms.map_kind,
        map_seed=map_seed,
        kept=_kept(terms, spec),
        scale=scale,
        bits=terms.bits or MAX_BITS,
        clip_gradient=terms.clipping_norm,
        clip_metrics=clip_metrics,
        rounding=Rounding.STOCHASTIC if terms.bits else Rounding.PLAIN,
        unit="none",
        max_rows=0,
        n_max=0,
        sampling_rate=1.0,
        noise_multiplier=0.0,
        sensitivity=0.0,
        noise_variance=0,
        local=None,
        low_rank=low_rank_of(terms, spec),
        decay=terms.decay,
    )


def low_rank_of(terms: PrivacyTerms, spec: VectorSpec) -> LowRank | None:
    """Lay out the low-rank part of a job's plan; None where its map is another.

    Raises:
        UsageError: The share of small coordinates is out of range.
    """
    if terms.map_kind is not MapKind.LOW_RANK:
        return None
    if not 0 < terms.keep <= 1:
        raise UsageError(f"[compression] keep is {terms.keep}, must lie in (0, 1]")
    matrices = find_matrices(spec) if terms.rank else ()
    small = spec.length - sum(matrix.size for matrix in matrices)
    kept = min(small, max(1, math.ceil(terms.keep * small)))
    return LowRank(max(1, terms.rank), matrices, kept)


def _shared_map(terms: PrivacyTerms, spec: VectorSpec, map_seed: bytes) -> SharedMap:
    """Make the map of a job's plan, of no version yet."""
    length = spec.length + terms.metrics_length
    layout = low_rank_of(terms, spec)
    if layout is not None:
        return LowRankMap(layout, length, terms.metrics_length, map_seed)
    tail = terms.metrics_length if terms.map_kind.selects else 0
    return LinearMap(terms.map_kind, length, tail, _kept(terms, spec), map_seed)


def _kept(terms: PrivacyTerms, spec: VectorSpec) -> int:
    """Give how many coordinates a random subset keeps; 0 where the map selects none."""
    if not terms.map_kind.selects:
        return 0
    if not 0 < terms.keep <= 1:
        raise UsageError(f"[compression] keep is {terms.keep}, must lie in (0, 1]")
    return max(1, round(terms.keep * spec.length))


def _scale(terms: PrivacyTerms, norm: float, d: int, rules: CohortRules) -> float:
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


def _signal_sd(terms: PrivacyTerms, grid: _Grid, share: int, rules: CohortRules) -> float:
    """Give the deviation of the summed signal's largest coordinate, grid units, from constants.

    Where the size is bounded it is met, by a count of all records for one. So what is given makes
    `RANGE_DEVIATIONS` of signal and noise together reach as far as the bound of all members and
    then as many deviations of the noise: (r + n)^2 = n^2 + r*(r + 2n).
    Without a rotation all of it may sit on one coordinate; a rotation spreads it over all. A metric
    may be all that counts: it is spread over its own block, beside a random subset over none.
    """
    if terms.site_range:
        reach = rules.members * terms.site_range * grid.scale / RANGE_DEVIATIONS
        return math.sqrt(reach * (reach + 2 * math.sqrt(rules.members * share)))
    units = rules.members if terms.mode is Mode.SITE else terms.expected_batch_size
    total = terms.signal_range * units * grid.scale
    whole = total * math.hypot(terms.clipping_norm, terms.metrics_norm)
    if not terms.map_kind.rotates:
        return whole / RANGE_DEVIATIONS
    block = 1 if terms.map_kind.selects else grid.linear_map.shortest_block
    metric = total * terms.metrics_norm / math.sqrt(block)
    return max(whole / math.sqrt(grid.linear_map.shortest_output), metric / RANGE_DEVIATIONS)
