"""Encode a site's whole delta: modes ``site``, ``none`` and ``record-local``.

Clip, map and round give integers; the noise comes last and apart, because what a site sent before
noise is what its residual goes by (`privacy.residual`).

The payload of a low-rank map is clipped after the map: it is what is sent, so its norm is the
sensitivity, and what the map leaves out takes nothing of the bound.

Shapes: D = gradient coordinates, M = metrics, d = integers.
"""

import math

import numpy as np
from numpy.typing import NDArray

from privacy.clip import append_metrics, check_clipping_norm, clip_site_delta
from privacy.compress import CompressedDelta, compress
from privacy.delta import Delta
from privacy.dense import is_dense, round_delta
from privacy.errors import PeerError, Reason, UsageError
from privacy.low_rank_map import LowRankMap
from privacy.noise import NoisedUpdate, add_skellam_noise, without_noise
from privacy.pipeline import EncodingPlan, Mode
from privacy.quantise import (
    QuantisedDelta,
    Rounding,
    round_conditionally,
    round_plainly,
    round_stochastically,
)
from privacy.ring import MAX_BITS


def encode_delta(
    plan: EncodingPlan,
    delta: Delta,
    metrics_M: NDArray[np.float32] | None = None,
    rounding_seed: bytes | None = None,
    noise_seed: bytes | None = None,
) -> NoisedUpdate:
    """Encode a site's whole delta; see `quantise_delta` and `noise_delta`."""
    return noise_delta(plan, quantise_delta(plan, delta, metrics_M, rounding_seed), noise_seed)


def quantise_delta(
    plan: EncodingPlan,
    delta: Delta,
    metrics_M: NDArray[np.float32] | None = None,
    rounding_seed: bytes | None = None,
) -> QuantisedDelta:
    """Clip, map and round a site's whole delta.

    In record-local delta and metrics are noised already (`privacy.local_steps`): what is done here
    is post-processing, and the clip keeps them in the ring's range, no more.

    In mode site a vector that is not finite counts as zero, which is the very neighbour that the
    noise hides it from: a refusal would tell, uncharged, what this site's data did.

    Args:
        plan: Of the version that the delta was trained from. Mode site, none or record-local.
        delta: Local minus global parameters, and what the residual adds.
        metrics_M: The site's metrics, shape (M,); None where the plan has none.
        rounding_seed: 32 secret bytes where the plan rounds at random (mode site, and announced
            step sizes); else None.

    Raises:
        PeerError: WRONG_SHAPE: the delta or the metrics are not of the plan's model; NOT_FINITE:
            they hold a NaN or an infinity, in modes none and record-local.
        UsageError: A seed that does not fit the plan's rounding.
    """
    if delta.spec_digest != plan.spec_digest or delta.values_D.shape != (plan.gradient_length,):
        message = "the delta was taken with another vector spec than the plan's"
        raise PeerError(Reason.WRONG_SHAPE, message)
    if metrics_M is None:
        metrics_M = np.empty(0, np.float32)
    fast = None if metrics_M.size else _rounded_at_once(plan, delta, rounding_seed)
    if fast is not None:
        return fast
    if metrics_M.shape != (plan.metrics_length,):
        message = f"the plan has {plan.metrics_length} metrics, not shape {metrics_M.shape}"
        raise PeerError(Reason.WRONG_SHAPE, message)
    if plan.mode is Mode.SITE and not all_finite(delta, metrics_M):
        delta = Delta(np.zeros_like(delta.values_D), delta.spec_digest)
        metrics_M = np.zeros_like(metrics_M)
    return _round(plan, _compressed(plan, delta, metrics_M), rounding_seed)


def noise_delta(
    plan: EncodingPlan, quantised: QuantisedDelta, noise_seed: bytes | None = None
) -> NoisedUpdate:
    """Add a site's share of the noise, in mode site; pass the integers on in the others.

    Args:
        plan: As `quantise_delta` took it.
        quantised: What it gave.
        noise_seed: Mode site: 32 secret bytes of their own, fresh for this attempt; else None.

    Raises:
        UsageError: A seed that does not fit the mode; in mode none, integers that leave the ring.
    """
    if (plan.mode is Mode.SITE) != (noise_seed is not None):
        message = f"mode {plan.mode} with this noise seed: mode site takes one, the others none"
        raise UsageError(message)
    if noise_seed is not None:
        return add_skellam_noise(quantised, plan.noise_share, noise_seed)
    # Where the ring is as wide as a sum is expected to be, one site may be beyond and the sum fit.
    return without_noise(quantised, MAX_BITS if plan.announces_scale else plan.bits)


def all_finite(delta: Delta, metrics_M: NDArray[np.float32] | None) -> bool:
    """Say whether neither a site's delta nor its metrics hold a NaN or an infinity."""
    metrics_finite = metrics_M is None or bool(np.isfinite(metrics_M).all())
    return metrics_finite and bool(np.isfinite(delta.values_D).all())


def _compressed(
    plan: EncodingPlan, delta: Delta, metrics_M: NDArray[np.float32]
) -> CompressedDelta:
    linear_map = plan.linear_map
    if not isinstance(linear_map, LowRankMap):
        clipped = clip_site_delta(delta, plan.clip_gradient)
        if plan.metrics_length:
            clipped = append_metrics(clipped, metrics_M, plan.clip_metrics)
        return compress(clipped, linear_map)
    vector = np.concatenate([delta.values_D, np.zeros(plan.metrics_length, np.float32)])
    if not np.isfinite(vector).all():
        message = "the local training gave NaN or infinity; lower the learning rate, check the data"
        raise PeerError(Reason.NOT_FINITE, message)
    payload_d = linear_map.project(vector)
    check_clipping_norm(plan.clip_gradient)
    norm = float(np.linalg.norm(payload_d))
    if norm > plan.clip_gradient:
        payload_d *= plan.clip_gradient / norm
    if plan.metrics_length:
        metrics = clip_site_delta(Delta(metrics_M, delta.spec_digest), plan.clip_metrics)
        payload_d[linear_map.metrics_part] = metrics.values_D
    return CompressedDelta(linear_map.rotate(payload_d), plan.clip)


def _rounded_at_once(
    plan: EncodingPlan, delta: Delta, rounding_seed: bytes | None
) -> QuantisedDelta | None:
    """Do all stages in one compiled pass; None where they have to go one by one."""
    linear_map = plan.linear_map
    if plan.mode is Mode.SITE or plan.metrics_length or isinstance(linear_map, LowRankMap):
        return None
    fits = (rounding_seed is not None) == plan.announces_scale
    if not fits or plan.mode is Mode.RECORD_DISTRIBUTED or not is_dense(linear_map):
        return None
    bits = MAX_BITS if plan.announces_scale else plan.bits
    rounded_d = round_delta(
        delta.values_D, plan.clip_gradient, linear_map, plan.scale, bits, rounding_seed
    )
    return None if rounded_d is None else QuantisedDelta(rounded_d, math.inf)


def _round(
    plan: EncodingPlan, compressed: CompressedDelta, rounding_seed: bytes | None
) -> QuantisedDelta:
    if rounding_seed is None and plan.rounding is Rounding.PLAIN:
        return round_plainly(compressed, plan.scale)
    if rounding_seed is not None and plan.rounding is Rounding.CONDITIONAL:
        return round_conditionally(compressed, plan.scale, rounding_seed)
    if rounding_seed is not None and plan.rounding is Rounding.STOCHASTIC:
        return round_stochastically(compressed, plan.scale, rounding_seed)
    message = (
        f"a delta is not rounded by {plan.rounding!r} with this seed: random rounding takes one"
    )
    raise UsageError(message)
