"""Round to the integer grid, so that one privacy unit moves the integers by at most D2.

Noise is discrete, so its sensitivity must be that of integers, rounding included: leaving the
sqrt(d) terms out understates it (privacy.md, D-REC step 5 and "Site mode"). Five roundings:

- *record* (default): each record is clipped, mapped, scaled and rounded, its integer norm is
  checked against D2 = C*s + sqrt(d)/2, and the integers are summed exactly. A record that fails the
  check, or is not finite, counts as zero: whatever float arithmetic did before, D2 holds. Where
  the privacy unit is a user, "record" reads "sum of a user's rows" here and below.
- *sum*: clipped records are summed in float64 and the sum is rounded once; D2 = C*s + sqrt(d) plus
  a bound on the float error, because two neighbouring sums round apart by up to sqrt(d).
- *conditional*: a site's one vector is rounded stochastically until its norm is at most D2.
- *plain*: to the nearest integer, in mode ``none``; no sensitivity is claimed.
- *stochastic*: up or down at random, so that errors of many sites cancel on coarse grids; no
  sensitivity is claimed either.

Sums of integers run in float64, which is exact here: every partial sum of integers stays below
2^53 (`MAX_SENSITIVITY`, `RecordSum`), in any order, with or without fused multiply-add.

Shapes: D = gradient coordinates, M = metrics, d = integers after the map, N = records.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from privacy.accounting.sensitivity import (
    conditional_rounding_sensitivity,
    record_rounding_sensitivity,
    sum_rounding_sensitivity,
)
from privacy.clip import clip_factors, record_norms
from privacy.compress import CompressedDelta
from privacy.errors import PeerError, Reason, UsageError
from privacy.keystream import Keystream, Label
from privacy.low_rank_map import LowRankMap, SharedMap
from privacy.user_rows import UserRows

MAX_SENSITIVITY = float(2**26)
"""Largest D2: squared integer norms up to it are exact in float64."""

_EXACT = 2**53
_BLOCK = 1 << 17  # coordinates processed at once: bounds memory, stays near the second-level cache
_CHUNK = 1 << 16
_MAX_TRIES = 256  # of conditional rounding; each succeeds with probability >= 1 - exp(-1/2)


class Rounding(StrEnum):
    """The ways to reach the grid, by their names in plans."""

    RECORD = "record"
    SUM = "sum"
    CONDITIONAL = "conditional"
    PLAIN = "plain"
    STOCHASTIC = "stochastic"


@dataclass(frozen=True, repr=False)
class QuantisedDelta:
    """Integers in grid units, not yet noised: nothing but the noise stage may see them.

    Attributes:
        values_d: Signed integers, shape (d,): int64, but for `privacy.dense`.
        sensitivity: D2, the L2 distance in grid units by which one privacy unit can move them
            (add or remove a record; zero out a site); infinite where none is claimed.
    """

    values_d: NDArray[np.integer]
    sensitivity: float


@dataclass(frozen=True)
class RecordRule:
    """How a record becomes integers: the part of a plan that fixes the sensitivity.

    Attributes:
        linear_map: The shared map over the D gradient coordinates and M metrics of a record.
        metrics: M, trailing coordinates of a record.
        clip_gradient: C_g, parameter units.
        clip_metrics: C_m, metric units; 0 where there are no metrics.
        scale: s, grid steps per unit.
        rounding: RECORD or SUM.
        n_max: The most records that a batch can hold: a public cap that the site's whole data set
            never exceeds, so that meeting it tells nothing.
        by_user: The privacy unit is a user: rows of one user are summed before the clip.
    """

    linear_map: SharedMap
    metrics: int
    clip_gradient: float
    clip_metrics: float
    scale: float
    rounding: Rounding
    n_max: int
    by_user: bool = False

    @property
    def clip(self) -> float:
        """Return C with C^2 = C_g^2 + C_m^2: one sensitivity, one charge (D-REC step 3)."""
        return math.hypot(self.clip_gradient, self.clip_metrics)

    @cached_property
    def sensitivity(self) -> float:
        """Return D2 of this rule, grid units.

        Raises:
            UsageError: The rounding is not one of records, or a number is out of range.
        """
        length = self.linear_map.longest_output
        if self.rounding is Rounding.RECORD:
            return record_rounding_sensitivity(self.clip, self.scale, length).D2
        if self.rounding is not Rounding.SUM:
            message = f"records are rounded each or as a sum, not by {self.rounding!r}"
            raise UsageError(message)
        if isinstance(self.linear_map, LowRankMap):
            message = "rounding 'sum' has no error bound through a low-rank map: use 'record'"
            raise UsageError(message)
        inner = self.linear_map.inner_dimensions
        # Norms are taken over the coordinates before a subset, which are more than d.
        return sum_rounding_sensitivity(
            self.clip, self.scale, length, self.n_max, inner, self.linear_map.length
        ).D2


def check_sensitivity(sensitivity: float) -> int:
    """Refuse a D2 whose square float64 could not hold exactly, and give the integer bound on it.

    Returns:
        floor(D2^2), exactly.

    Raises:
        PeerError: POLICY: D2 is not in (0, MAX_SENSITIVITY]: the scale is too fine.
    """
    if not 0 < sensitivity <= MAX_SENSITIVITY:
        message = (
            f"a sensitivity of {sensitivity} grid steps is outside (0, {MAX_SENSITIVITY}]:"
            " the plan's scale s is too fine for the clipping norm"
        )
        raise PeerError(Reason.POLICY, message)
    return math.floor(Fraction(sensitivity) ** 2)


class RecordSum:
    """Sum records that come in micro-batches, each clipped, in memory that does not grow.

    Not one of its inputs leaves a trace but in the sum: there is no count, no clip rate, no error
    that depends on a value.
    """

    def __init__(self, rule: RecordRule) -> None:
        if rule.n_max * (rule.sensitivity + 1) >= _EXACT:
            message = f"{rule.n_max} records of {rule.sensitivity} grid steps overflow an exact sum"
            raise PeerError(Reason.POLICY, message)
        self._rule = rule
        self._limit = float(check_sensitivity(rule.sensitivity))
        self._length = rule.linear_map.length
        self._rows = max(1, _BLOCK // self._length)
        self._scratch = np.empty((self._rows, self._length))
        by_record = rule.rounding is Rounding.RECORD
        self._sum = np.zeros(rule.linear_map.output_length if by_record else self._length)
        self._seen = 0
        self._users = UserRows(self._length) if rule.by_user else None

    def add(
        self,
        grads_ND: NDArray[np.float32],
        metrics_NM: NDArray[np.float32],
        mask_N: NDArray[np.bool_] | None = None,
        last_N: NDArray[np.bool_] | None = None,
    ) -> None:
        """Add a micro-batch of records.

        Args:
            grads_ND: Per-record gradients, float32, shape (N, D), parameter units.
            metrics_NM: Per-record metrics, float32, shape (N, M).
            mask_N: False for padding rows, which are ignored whatever they hold; None for none.
            last_N: Where the unit is a user: True at the last row of each user, whose rows come
                one after the other, over several calls if need be; ignored at padding rows. None
                where the unit is a record.

        Raises:
            PeerError: WRONG_SHAPE: the trainer's arrays are not of these shapes and types.
            UsageError: More than n_max records: the data set is larger than its declared cap; or
                ``last_N`` does not fit the unit.
        """
        live_N = self._check(grads_ND, metrics_NM, mask_N)
        if (last_N is None) == self._rule.by_user:
            raise UsageError("last_N tells users apart: give it where the unit is a user, only")
        if last_N is not None and (last_N.dtype != np.bool_ or last_N.shape != live_N.shape):
            raise UsageError(f"last_N must be bool of shape {live_N.shape}, not {last_N.shape}")
        self._seen += int(np.count_nonzero(live_N if last_N is None else live_N & last_N))
        if self._seen > self._rule.n_max:
            message = (
                f"a batch of more than n_max = {self._rule.n_max} records: n_max must be at least"
                " the row cap of the data set"
            )
            raise UsageError(message)
        for begin in range(0, len(live_N), self._rows):
            rows = slice(begin, begin + self._rows)
            last = None if last_N is None else last_N[rows]
            self._add_block(grads_ND[rows], metrics_NM[rows], live_N[rows], last)

    def finish(self) -> QuantisedDelta:
        """Give the sum as integers; an empty batch gives zeros and is sent like any other.

        Raises:
            UsageError: A user's last row never came.
        """
        if self._users is not None and self._users.is_open:
            raise UsageError("the rows of the last user are not complete: last_N never ended it")
        total = self._sum
        if self._rule.rounding is Rounding.SUM:
            total = np.rint(self._rule.linear_map.apply(total))
        return QuantisedDelta(total.astype(np.int64), self._rule.sensitivity)

    def _add_block(
        self,
        grads_ND: NDArray[np.float32],
        metrics_NM: NDArray[np.float32],
        live_N: NDArray[np.bool_],
        last_N: NDArray[np.bool_] | None,
    ) -> None:
        gradient = self._length - self._rule.metrics
        block = self._scratch[: len(live_N)]
        block[:, :gradient] = grads_ND
        block[:, gradient:] = metrics_NM
        if self._users is not None and last_N is not None:
            block = self._users.take(block[live_N], last_N[live_N])
            live_N = np.ones(len(block), dtype=np.bool_)
        if len(block):
            self._add_units(block, live_N)

    def _add_units(self, block: NDArray[np.float64], live_N: NDArray[np.bool_]) -> None:
        """Clip, map, round and add what each unit gives; overwrites the block, shape (N, D+M)."""
        rule = self._rule
        gradient = self._length - rule.metrics
        grad_norms_N = record_norms(block[:, :gradient])
        metric_norms_N = record_norms(block[:, gradient:])
        live_N = live_N & np.isfinite(grad_norms_N + metric_norms_N)
        block[~live_N] = 0.0  # before any product: 0 * NaN is NaN
        block[:, :gradient] *= clip_factors(grad_norms_N, rule.clip_gradient, rule.scale)
        block[:, gradient:] *= clip_factors(metric_norms_N, rule.clip_metrics, rule.scale)
        if rule.rounding is Rounding.SUM:
            self._sum += block.sum(axis=0)
            return
        rounded = rule.linear_map.apply(block)
        np.rint(rounded, out=rounded)
        # The check that carries the guarantee: exact, on the very integers that are summed.
        kept_N = np.vecdot(rounded, rounded) <= self._limit
        self._sum += kept_N.astype(np.float64) @ rounded

    def _check(
        self,
        grads_ND: NDArray[np.float32],
        metrics_NM: NDArray[np.float32],
        mask_N: NDArray[np.bool_] | None,
    ) -> NDArray[np.bool_]:
        """Refuse arrays of wrong shapes or types, and give the mask."""
        gradient = self._length - self._rule.metrics
        count = len(grads_ND)
        if grads_ND.dtype != np.float32 or metrics_NM.dtype != np.float32:
            _refuse(f"records must be float32, not {grads_ND.dtype} and {metrics_NM.dtype}")
        if grads_ND.shape != (count, gradient) or metrics_NM.shape != (count, self._rule.metrics):
            _refuse(
                f"records must have shapes (N, {gradient}) and (N, {self._rule.metrics}),"
                f" not {grads_ND.shape} and {metrics_NM.shape}"
            )
        if mask_N is None:
            return np.ones(count, dtype=np.bool_)
        if mask_N.dtype != np.bool_ or mask_N.shape != (count,):
            _refuse(f"a mask must be bool of shape ({count},), not {mask_N.dtype} {mask_N.shape}")
        return mask_N


def round_conditionally(
    delta: CompressedDelta, scale: float, rounding_seed: bytes
) -> QuantisedDelta:
    """Round a site's vector stochastically, again until its integer norm is at most D2.

    Each coordinate goes up with the probability of its fractional part (to 2^-32). After 256
    failures, a chance below 2^-177, the vector counts as zero.

    Args:
        delta: Clipped and mapped.
        scale: s, grid steps per unit.
        rounding_seed: 32 secret bytes, fresh for this attempt and used for nothing else.

    Raises:
        PeerError: POLICY: the scale is too fine for exact norms.
    """
    scaled_d = delta.values_d * scale
    sensitivity = conditional_rounding_sensitivity(delta.clipping_norm, scale, scaled_d.size).D2
    limit = float(check_sensitivity(sensitivity))
    floor_d = np.floor(scaled_d)
    threshold_d = np.subtract(scaled_d, floor_d, out=scaled_d)
    threshold_d *= 2.0**32
    stream = Keystream(rounding_seed, Label.ROUNDING)
    for _ in range(_MAX_TRIES):
        rounded_d = floor_d + (stream.read(4 * floor_d.size).view("<u4") < threshold_d)
        if float(np.vdot(rounded_d, rounded_d)) <= limit:
            return QuantisedDelta(rounded_d.astype(np.int64), sensitivity)
    return QuantisedDelta(np.zeros(floor_d.size, dtype=np.int64), sensitivity)


def round_plainly(delta: CompressedDelta, scale: float) -> QuantisedDelta:
    """Round a vector to the nearest integers; no sensitivity is claimed: modes none, record-local.

    Args:
        delta: Clipped and mapped.
        scale: s, grid steps per unit.

    Raises:
        PeerError: POLICY: the scale is too fine: integers beyond 2^53 are not exact.
    """
    _check_exact(delta, scale)
    rounded_d = np.empty(delta.values_d.size, dtype=np.int64)
    for begin in range(0, rounded_d.size, _CHUNK):  # what is between the two stays in the cache
        scaled_s = delta.values_d[begin : begin + _CHUNK] * scale
        rounded_d[begin : begin + _CHUNK] = np.rint(scaled_s, out=scaled_s)
    return QuantisedDelta(rounded_d, math.inf)


def round_stochastically(
    delta: CompressedDelta, scale: float, rounding_seed: bytes
) -> QuantisedDelta:
    """Round each coordinate up with the probability of its fractional part (to 2^-32).

    Args:
        delta: Clipped and mapped.
        scale: s, grid steps per unit.
        rounding_seed: 32 secret bytes, fresh for this update and used for nothing else.

    Raises:
        PeerError: POLICY: the scale is too fine: integers beyond 2^53 are not exact.
    """
    _check_exact(delta, scale)
    stream = Keystream(rounding_seed, Label.ROUNDING)
    rounded_d = np.empty(delta.values_d.size, dtype=np.int64)
    for begin in range(0, rounded_d.size, _CHUNK):
        scaled_s = delta.values_d[begin : begin + _CHUNK] * scale
        floor_s = np.floor(scaled_s)
        threshold_s = (scaled_s - floor_s) * 2.0**32
        up_s = stream.read(4 * floor_s.size).view("<u4") < threshold_s
        rounded_d[begin : begin + _CHUNK] = floor_s + up_s
    return QuantisedDelta(rounded_d, math.inf)


def _check_exact(delta: CompressedDelta, scale: float) -> None:
    if delta.clipping_norm * scale >= _EXACT:
        message = f"a scale of {scale} makes integers that float64 does not hold"
        raise PeerError(Reason.POLICY, message)


def _refuse(message: str) -> None:
    raise PeerError(Reason.WRONG_SHAPE, message)
