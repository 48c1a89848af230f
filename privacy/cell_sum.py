"""Sum sparse records: each adds one value to one cell of each of K ranges of the vector.

Histograms, moments and the gradient histograms of trees are such sums. A dense row a record, as
`privacy.quantise.RecordSum` takes it, would be U numbers of which K are not zero; here a record is
its K cells. The guarantee is the same and carried by the same check: every record's integers are
looked at before they are added, and a record whose integer norm is above D2, or which is not
finite, or names a cell that is not there, counts as zero, so that one record more or less moves the
sum by at most D2.

The plan is the ordinary one. Its D2 = C*s + sqrt(d)/2 bounds what rounding can do to d coordinates;
a sparse record's other coordinates are zero and round to zero, so its integers lie within
C*s + sqrt(K)/2 already, which is no more, and the check against D2 never meets an honest record of
norm C. With dither a coordinate moves by less than one step instead of half a step, and D2 holds
all the same, by the check.

That the K ranges do not overlap is no assumption about cells: cells are numbered within their
range, and the ranges lie one after the other.

In mode ``none`` nothing is claimed: values are summed as they are and rounded once.

Shapes: U = coordinates of the vector, N = records of a block, K = ranges.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from privacy.compress import MapKind
from privacy.errors import PeerError, Reason, UsageError
from privacy.keystream import Keystream, Label
from privacy.noise import NoisedUpdate, add_skellam_noise, without_noise
from privacy.pipeline import EncodingPlan, Mode
from privacy.quantise import QuantisedDelta, Rounding, check_sensitivity

NO_CELL = -1
"""A record that adds nothing to a range has this cell there; its value is not looked at."""

_EXACT = 2**53
_BLOCK = 1 << 17  # values at once: the working arrays stay near the second-level cache
_COIN = 2.0**-32


class CellSum:
    """One update's sum of sparse records; it makes one update and is used up."""

    def __init__(
        self, plan: EncodingPlan, widths_K: Sequence[int], rounding_seed: bytes | None = None
    ) -> None:
        """Lay the ranges out, one after the other.

        Args:
            plan: Mode record-distributed with rounding ``record``, or none; the identity map, no
                metrics.
            widths_K: Cells of each range; they add up to the plan's coordinates.
            rounding_seed: 32 secret bytes, fresh for this update, to round up or down at random
                and so without bias; None rounds to the nearest step, in mode none always.

        Raises:
            UsageError: The plan is not one for sparse sums, or the widths do not fit it.
            PeerError: POLICY: the plan's numbers are too large for exact sums.
        """
        _check_plan(plan)
        if not widths_K or min(widths_K) < 1 or sum(widths_K) != plan.gradient_length:
            message = (
                f"{len(widths_K)} ranges of {sum(widths_K)} cells, each at least 1, do not make the"
                f" plan's {plan.gradient_length} coordinates"
            )
            raise UsageError(message)
        self._plan = plan
        self._widths_K = np.asarray(widths_K, dtype=np.int64)
        self._offsets_K = np.cumsum(self._widths_K) - self._widths_K
        self._private = plan.mode is Mode.RECORD_DISTRIBUTED
        self._limit = float(check_sensitivity(plan.sensitivity)) if self._private else math.inf
        kind = np.int64 if self._private else np.float64
        self._sum_U: NDArray[np.int64 | np.float64] | None = np.zeros(plan.length, dtype=kind)
        self._seen = 0
        self._coins: Keystream | None = None
        if self._private and rounding_seed is not None:
            self._coins = Keystream(rounding_seed, Label.ROUNDING)

    def add(
        self,
        cells_NK: NDArray[np.int64],
        values_NK: NDArray[np.float32] | None = None,
        mask_N: NDArray[np.bool_] | None = None,
    ) -> None:
        """Add records.

        Args:
            cells_NK: Cell of each range, counted from the range's own start, or `NO_CELL`; shape
                (N, K). A record with a cell outside its range counts as zero.
            values_NK: What is added, float32, units of the vector; None for 1.0 everywhere. A
                record with a value that is not finite, in a cell that it has, counts as zero.
            mask_N: False for rows that are no records; None when all are.

        Raises:
            UsageError: Wrong shapes or types; more records than the plan's n_max; it is used up.
        """
        total_U = self._open()
        live_N = self._check(cells_NK, values_NK, mask_N)
        self._seen += int(np.count_nonzero(live_N))
        if self._private and self._seen > self._plan.n_max:
            message = (
                f"more than n_max = {self._plan.n_max} records: n_max must be at least the row cap"
                " of the data set"
            )
            raise UsageError(message)
        rows = max(1, _BLOCK // cells_NK.shape[1])
        for begin in range(0, len(cells_NK), rows):
            block = slice(begin, begin + rows)
            values = None if values_NK is None else values_NK[block]
            self._add_block(total_U, cells_NK[block], values, live_N[block])

    def finish(self, noise_seed: bytes | None) -> NoisedUpdate:
        """Add the noise share and close the sum; without records it is noise alone.

        Args:
            noise_seed: 32 secret bytes, fresh for this attempt; None exactly in mode none.

        Raises:
            UsageError: It is used up; the seed does not fit the mode; in mode none, the sum leaves
                the range that the plan has for one site.
        """
        total_U, plan = self._open(), self._plan
        if (noise_seed is None) == self._private:
            message = f"mode {plan.mode} with these seeds: only record-distributed takes noise"
            raise UsageError(message)
        self._sum_U = None
        if noise_seed is not None:
            quantised = QuantisedDelta(total_U.astype(np.int64, copy=False), plan.sensitivity)
            return add_skellam_noise(quantised, plan.noise_share, noise_seed)
        if np.abs(total_U).max() > plan.clip_gradient:
            message = (
                f"this site's sums leave the plan's range of {plan.clip_gradient:g}: it holds more"
                " records than the job's [privacy] max_records"
            )
            raise UsageError(message)
        rounded_U = np.rint(total_U * plan.scale).astype(np.int64)
        return without_noise(QuantisedDelta(rounded_U, math.inf), plan.bits)

    def _open(self) -> NDArray[np.int64 | np.float64]:
        if self._sum_U is None:
            raise UsageError("this sum has made its update; the next one needs a sum of its own")
        return self._sum_U

    def _add_block(
        self,
        total_U: NDArray[np.int64 | np.float64],
        cells_NK: NDArray[np.int64],
        values_NK: NDArray[np.float32] | None,
        live_N: NDArray[np.bool_],
    ) -> None:
        used_NK = cells_NK != NO_CELL
        inside_NK = (cells_NK >= 0) & (cells_NK < self._widths_K)
        live_N = live_N & (inside_NK | ~used_NK).all(axis=1)
        steps_NK = self._in_steps(values_NK, used_NK)
        if self._private:
            # The check that carries the guarantee, on the very integers that are summed: exact
            # below 2^53, and a norm above that stays above the limit. NaN fails it.
            with np.errstate(over="ignore", invalid="ignore"):
                live_N = live_N & (np.vecdot(steps_NK, steps_NK) <= self._limit)
        else:
            live_N = live_N & np.isfinite(steps_NK).all(axis=1)
        taken_NK = used_NK & live_N[:, np.newaxis]
        steps = steps_NK[taken_NK].astype(total_U.dtype, copy=False)
        np.add.at(total_U, (cells_NK + self._offsets_K)[taken_NK], steps)

    def _in_steps(
        self, values_NK: NDArray[np.float32] | None, used_NK: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """Give values as whole grid steps, zero where there is no cell; plain values without DP."""
        if values_NK is None:
            one = float(np.rint(self._plan.scale)) if self._private else 1.0
            return used_NK.astype(np.float64) * one
        chosen_NK = np.where(used_NK, values_NK, np.float32(0))
        steps_NK: NDArray[np.float64] = chosen_NK.astype(np.float64)
        if not self._private:
            return steps_NK
        steps_NK *= self._plan.scale
        if self._coins is None:
            np.rint(steps_NK, out=steps_NK)
            return steps_NK
        coins = self._coins.read(4 * steps_NK.size).view("<u4").reshape(steps_NK.shape)
        np.add(steps_NK, coins * _COIN, out=steps_NK)
        np.floor(steps_NK, out=steps_NK)
        return steps_NK

    def _check(
        self,
        cells_NK: NDArray[np.int64],
        values_NK: NDArray[np.float32] | None,
        mask_N: NDArray[np.bool_] | None,
    ) -> NDArray[np.bool_]:
        """Refuse arrays of wrong shapes or types, and give the mask."""
        count = len(cells_NK)
        shape = (count, len(self._widths_K))
        if cells_NK.dtype != np.int64 or cells_NK.shape != shape:
            _refuse(f"cells must be int64 of shape {shape}, not {cells_NK.dtype} {cells_NK.shape}")
        if values_NK is not None and (values_NK.dtype != np.float32 or values_NK.shape != shape):
            _refuse(f"values are float32 of shape {shape}, not {values_NK.dtype} {values_NK.shape}")
        if mask_N is None:
            return np.ones(count, dtype=np.bool_)
        if mask_N.dtype != np.bool_ or mask_N.shape != (count,):
            _refuse(f"a mask must be bool of shape ({count},), not {mask_N.dtype} {mask_N.shape}")
        return mask_N


def _check_plan(plan: EncodingPlan) -> None:
    rounding = {Mode.RECORD_DISTRIBUTED: Rounding.RECORD, Mode.NONE: Rounding.PLAIN}
    if rounding.get(plan.mode) is not plan.rounding:
        message = (
            f"sparse records are summed in modes record-distributed (rounding 'record') and none,"
            f" not {plan.mode} with rounding {plan.rounding!r}"
        )
        raise UsageError(message)
    if plan.unit == "user":
        raise UsageError("sparse records are summed one by one: the privacy unit must be 'record'")
    if plan.map_kind is not MapKind.IDENTITY or plan.metrics_length:
        raise UsageError("sparse records are summed as they are: no map, no metrics beside them")
    if plan.n_max * (plan.sensitivity + 1) >= _EXACT:
        message = f"{plan.n_max} records of {plan.sensitivity} grid steps overflow an exact sum"
        raise PeerError(Reason.POLICY, message)


def _refuse(message: str) -> None:
    raise UsageError(message)
