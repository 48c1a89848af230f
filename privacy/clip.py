"""Bound what one privacy unit can add to a sum: each record, or a site's whole delta.

Norms are taken in float64: in float32 the square of a large gradient overflows and of a small one
vanishes, and either would let a unit through unclipped (privacy.md, D-REC step 3). A site's delta
that is not finite is refused; a record that is not finite counts as zero, because an abort would
tell that the batch held such a record (step 1).

Shapes: D = coordinates, N = records.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privacy.delta import Delta
from privacy.errors import PeerError, Reason, UsageError

_BLOCK = 1 << 16  # coordinates converted to float64 at once


@dataclass(frozen=True, repr=False)
class ClippedDelta:
    """A delta whose L2 norm is at most the clipping norm, and finite.

    Attributes:
        values_D: float64, shape (D,), parameter units.
        clipping_norm: The bound C, parameter units.
        spec_digest: The digest of the delta's spec, 32 bytes.
    """

    values_D: NDArray[np.float64]
    clipping_norm: float
    spec_digest: bytes


def clip_site_delta(delta: Delta, clipping_norm: float) -> ClippedDelta:
    """Scale a site's delta so that its L2 norm is at most the clipping norm.

    One site joining or leaving then moves the cohort's sum by at most `clipping_norm`. FlatClip of
    McMahan et al. (2018), arXiv 1710.06963.

    Args:
        delta: Local minus global parameters.
        clipping_norm: The bound C, parameter units, finite and positive.

    Raises:
        PeerError: NOT_FINITE: the delta holds a NaN or an infinity: the training diverged.
        UsageError: C is not finite and positive.
    """
    check_clipping_norm(clipping_norm)
    values_D = delta.values_D.astype(np.float64)
    norm = math.sqrt(float(np.vdot(values_D, values_D)))
    # Squares of float32 values never overflow float64, so the norm is finite iff the values are.
    if not math.isfinite(norm):
        message = "the local training gave NaN or infinity; lower the learning rate, check the data"
        raise PeerError(Reason.NOT_FINITE, message)
    if norm > clipping_norm:
        values_D *= clipping_norm / norm
    return ClippedDelta(values_D, clipping_norm, delta.spec_digest)


def append_metrics(
    clipped: ClippedDelta, metrics_M: NDArray[np.float32], clipping_norm: float
) -> ClippedDelta:
    """Clip a site's metrics to a norm of their own and append them to its clipped delta.

    Args:
        clipped: The delta, clipped to C_g.
        metrics_M: float32, shape (M,), metric units.
        clipping_norm: The metrics' bound C_m, finite and positive.

    Returns:
        The vector [delta | metrics], clipped to C with C^2 = C_g^2 + C_m^2.

    Raises:
        PeerError: NOT_FINITE: a metric is NaN or infinite.
        UsageError: C_m is not finite and positive.
    """
    metrics = clip_site_delta(Delta(metrics_M, clipped.spec_digest), clipping_norm)
    values = np.concatenate([clipped.values_D, metrics.values_D])
    norm = math.hypot(clipped.clipping_norm, clipping_norm)
    return ClippedDelta(values, norm, clipped.spec_digest)


def clip_factors(
    norms_N: NDArray[np.float64], clipping_norm: float, scale: float
) -> NDArray[np.float64]:
    """Give scale times the factor that brings each norm down to the clipping norm, as a column.

    Args:
        norms_N: L2 norms of records, shape (N,).
        clipping_norm: The bound C, finite and not negative.
        scale: What every factor is multiplied by.

    Returns:
        Shape (N, 1), to be multiplied with rows; 0 where a norm is not finite.

    Raises:
        UsageError: C is not finite, or negative.
    """
    if not (math.isfinite(clipping_norm) and clipping_norm >= 0):
        message = f"a clipping norm must be finite and not negative, not {clipping_norm}"
        raise UsageError(message)
    factors_N = np.full(norms_N.shape, scale)
    clipped_N = norms_N > clipping_norm  # false for NaN
    np.divide(clipping_norm * scale, norms_N, out=factors_N, where=clipped_N)
    factors_N[~np.isfinite(norms_N)] = 0.0
    return factors_N[:, np.newaxis]


def record_norms(records_ND: NDArray[np.floating]) -> NDArray[np.float64]:
    """Take each record's L2 norm in float64, block by block.

    Args:
        records_ND: One row a record, shape (N, D).

    Returns:
        Norms, shape (N,); not finite where a coordinate is not.
    """
    count, length = records_ND.shape
    norms_N = np.empty(count)
    rows = max(1, _BLOCK // max(1, length))
    # Infinity and NaN are answers here, not accidents: the callers look for them.
    with np.errstate(over="ignore", invalid="ignore"):
        for begin in range(0, count, rows):
            block = records_ND[begin : begin + rows].astype(np.float64, copy=False)
            norms_N[begin : begin + rows] = np.sqrt(np.vecdot(block, block))
    return norms_N


def check_clipping_norm(clipping_norm: float) -> None:
    """Refuse a clipping norm that is not finite and positive.

    Raises:
        UsageError: It is zero, negative, infinite or NaN.
    """
    if not (math.isfinite(clipping_norm) and clipping_norm > 0):
        message = f"a clipping norm must be finite and positive, not {clipping_norm}"
        raise UsageError(message)
