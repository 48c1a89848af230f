"""Build valid encoding plans for tests, with only what a test cares about spelled out."""

import math

from privacy.accounting.sensitivity import conditional_rounding_sensitivity
from privacy.basis import first_basis
from privacy.compress import LinearMap, MapKind
from privacy.local_noise import choose_local_noise
from privacy.low_rank import LowRank, Matrix
from privacy.low_rank_map import LowRankMap
from privacy.pipeline import EncodingPlan, Mode, RecordAccumulator
from privacy.quantise import RecordRule, Rounding

SEED = bytes(range(32))
DIGEST = b"d" * 32


def make_low_rank_map(gradient, metrics, parity=0, rank=2, small_kept=2):
    """Take the front of a vector as a matrix, the rest as small coordinates."""
    side = max(1, math.isqrt(gradient // 2))
    matrices = (Matrix(0, side, side, 0),)
    small = min(gradient - side * side, small_kept)
    bare = LowRank(rank, matrices, small)
    basis = first_basis(bare, parity, SEED)
    layout = LowRank(rank, matrices, small, parity, basis.digest)
    return LowRankMap(layout, gradient + metrics, metrics, SEED, basis)


def make_rule(
    *,
    gradient=37,
    metrics=3,
    kind=MapKind.IDENTITY,
    kept=0,
    scale=256.0,
    rounding=Rounding.RECORD,
    clips=(0.5, 0.25),
    n_max=1000,
    by_user=False,
):
    if kind is MapKind.LOW_RANK:
        linear_map = make_low_rank_map(gradient, metrics)
    else:
        linear_map = LinearMap(kind, gradient + metrics, metrics if kind.selects else 0, kept, SEED)
    return RecordRule(
        linear_map, metrics, clips[0], clips[1] if metrics else 0.0, scale, rounding, n_max, by_user
    )


def make_plan(
    mode=Mode.RECORD_DISTRIBUTED,
    *,
    bits=24,
    z=1.0,
    honest=3,
    max_rows=0,
    steps=3,
    noise_levels=(),
    decay=0.0,
    **rule_options,
):
    if mode is not Mode.RECORD_DISTRIBUTED:
        rule_options.setdefault(
            "rounding", Rounding.CONDITIONAL if mode is Mode.SITE else Rounding.PLAIN
        )
    rule = make_rule(**rule_options, by_user=max_rows > 0)
    sensitivity = {
        Mode.RECORD_DISTRIBUTED: lambda: rule.sensitivity,
        Mode.SITE: lambda: (
            conditional_rounding_sensitivity(
                rule.clip, rule.scale, rule.linear_map.longest_output
            ).D2
        ),
        Mode.RECORD_LOCAL: lambda: 0.0,
        Mode.NONE: lambda: 0.0,
    }[mode]()
    local = None
    if mode is Mode.RECORD_LOCAL:
        length = rule.linear_map.length
        local = choose_local_noise((rule.clip_gradient, rule.clip_metrics), length, z, steps, 8.0)
    unit = "user" if max_rows else "record"
    low_rank = isinstance(rule.linear_map, LowRankMap)
    return EncodingPlan(
        mode=mode,
        spec_digest=DIGEST,
        gradient_length=rule.linear_map.length - rule.metrics,
        metrics_length=rule.metrics,
        map_kind=MapKind.LOW_RANK if low_rank else rule.linear_map.kind,
        map_seed=SEED,
        kept=0 if low_rank else rule.linear_map.kept,
        scale=rule.scale,
        bits=bits,
        clip_gradient=rule.clip_gradient,
        clip_metrics=rule.clip_metrics,
        rounding=rule.rounding,
        unit=unit if mode.by_record else mode.value,
        max_rows=max_rows,
        n_max=rule.n_max if mode.by_record else 0,
        sampling_rate=0.01 if mode.by_record else 1.0,
        noise_multiplier=0.0 if mode is Mode.NONE else z,
        sensitivity=sensitivity,
        noise_variance=math.ceil((z * sensitivity) ** 2 / honest),
        local=local,
        noise_levels=noise_levels,
        low_rank=rule.linear_map.layout if low_rank else None,
        decay=decay,
        basis=rule.linear_map.basis if low_rank else None,
    )


def encode_records(plan, grads_ND, metrics_NM, noise_seed):
    """Encode a step's records that are all in memory."""
    accumulator = RecordAccumulator(plan)
    accumulator.add(grads_ND, metrics_NM)
    return accumulator.finish(noise_seed)
