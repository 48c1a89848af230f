"""Sum a local step's records and add its noise: mode record-local (privacy.md, "record-local").

The sampled records (or users) of a step are clipped, rounded to the plan's grid and summed exactly
in integers, as in record-distributed; an exact discrete Gaussian is added, and the result read back
in parameter units. Each record is rounded and its integer norm checked, so D2 = C/g + sqrt(d)/2
holds exactly; privacy.md allows sqrt(d), for a sum rounded once. What comes out is private:
optimiser, further steps, compression and sending it again are post-processing.

Shapes: D = gradient coordinates, M = metrics, N = rows of a micro-batch.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from privacy.errors import UsageError
from privacy.local_noise import LocalNoise, local_noise
from privacy.pipeline import EncodingPlan
from privacy.quantise import RecordSum


@dataclass(frozen=True)
class NoisyStep:
    """A local step's noised sums, undivided: the divisor is ``plan.local.expected_batch``.

    Attributes:
        gradient_D: Noised sum of clipped gradients, float64, shape (D,), parameter units.
        metric_sums_M: Noised sum of clipped metrics, float64, shape (M,), metric units.
    """

    gradient_D: NDArray[np.float64] = field(repr=False)
    metric_sums_M: NDArray[np.float64] = field(repr=False)


class LocalStepAccumulator:
    """Sum the records of one local step after another, micro-batch by micro-batch.

    Memory is that of one vector and a small block. It serves any number of steps: ``finish`` ends
    one and begins the next.
    """

    def __init__(self, plan: EncodingPlan) -> None:
        """Begin the first step.

        Args:
            plan: Of mode record-local.

        Raises:
            UsageError: The plan is of another mode.
            PeerError: POLICY: its numbers are too large for exact sums.
        """
        if plan.local is None:
            raise UsageError(f"local steps are noised in mode record-local, not {plan.mode}")
        self._plan = plan
        self._noise: LocalNoise = plan.local
        self._sum = RecordSum(plan.record_rule)
        self._last_seed = b""

    def add(
        self,
        grads_ND: NDArray[np.float32],
        metrics_NM: NDArray[np.float32],
        mask_N: NDArray[np.bool_] | None = None,
        last_N: NDArray[np.bool_] | None = None,
    ) -> None:
        """Clip, round and add records; one that is not finite counts as zero.

        Args:
            grads_ND: Per-record gradients, float32, shape (N, D).
            metrics_NM: Per-record metrics, float32, shape (N, M).
            mask_N: False for padding rows; None when all are records.
            last_N: Unit user: True at the last row of each user; see `RecordSum.add`.

        Raises:
            PeerError: WRONG_SHAPE: the trainer's arrays have other shapes or types.
            UsageError: More than n_max records, or ``last_N`` does not fit the unit.
        """
        self._sum.add(grads_ND, metrics_NM, mask_N, last_N)

    def finish(self, noise_seed: bytes) -> NoisyStep:
        """Add the step's noise and begin the next step; an empty batch is noise alone.

        Args:
            noise_seed: 32 secret bytes, fresh for this step.

        Raises:
            UsageError: The seed is not 32 bytes, or the step before had the same one; or a user's
                last row never came.
        """
        if noise_seed == self._last_seed:
            raise UsageError("two local steps with one noise seed: each needs a fresh one")
        summed = self._sum.finish()
        noised_d = local_noise(self._noise.level_variance, noise_seed, summed.values_d.size)
        noised_d += summed.values_d
        self._last_seed = noise_seed
        self._sum = RecordSum(self._plan.record_rule)
        noised: NDArray[np.float64] = noised_d.astype(np.float64)
        noised *= self._noise.grid  # a power of two: exact
        return NoisyStep(noised[: self._plan.gradient_length], noised[self._plan.gradient_length :])
