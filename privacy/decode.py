"""Turn the unmasked sum of a cohort back into a mean delta and metric sums.

Everything here is post-processing of what secure aggregation has published: integers, the plan and
public constants. The divisor is the public expected batch size, never the number of records that
were there, which is private (privacy.md, D-REC steps 1 and 7).

Shapes: D = gradient coordinates, M = metrics, d = integers.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privacy.errors import PeerError, Reason, UsageError
from privacy.pipeline import EncodingPlan
from privacy.ring import centre


@dataclass(frozen=True)
class MeanDelta:
    """What the server optimiser takes.

    Attributes:
        gradient_D: Decoded sum over the divisor, float64, shape (D,), parameter units.
        metric_sums_M: Decoded sums, undivided, float64, shape (M,), metric units.
    """

    gradient_D: NDArray[np.float64]
    metric_sums_M: NDArray[np.float64]


def decode_sum(plan: EncodingPlan, ring_sum_d: NDArray[np.uint32], divisor: float) -> MeanDelta:
    """Centre, rescale and map back the sum of a cohort.

    Where the map keeps a subset, the other coordinates come out as zero and the kept ones are not
    scaled up: the server's learning rate makes up for d/D, if anything should.

    Args:
        plan: The plan that all its summands were encoded with.
        ring_sum_d: The exact sum mod 2^B, uint32, shape (d,).
        divisor: Public constant: the expected batch size of the cohort, or the number of sites.

    Raises:
        PeerError: WRONG_SHAPE: the sum is not of the plan's d integers, or not uint32.
        UsageError: The divisor is not finite and positive.
    """
    if not (math.isfinite(divisor) and divisor > 0):
        message = f"the divisor of a mean must be finite and positive, not {divisor}"
        raise UsageError(message)
    if ring_sum_d.dtype != np.uint32 or ring_sum_d.shape != (plan.length,):
        message = (
            f"the sum has {ring_sum_d.dtype} of shape {ring_sum_d.shape},"
            f" the plan says uint32 of shape ({plan.length},)"
        )
        raise PeerError(Reason.WRONG_SHAPE, message)
    vector = decode_integers(plan, centre(ring_sum_d, plan.bits))
    gradient_D = vector[: plan.gradient_length] / divisor
    return MeanDelta(gradient_D, vector[plan.gradient_length :].copy())


def decode_integers(plan: EncodingPlan, values_d: NDArray[np.integer]) -> NDArray[np.float64]:
    """Map integers of a plan's grid back to [gradient | metrics], in parameter and metric units.

    Integers go through the map first and are scaled then: so every end gets the same bits.

    Args:
        plan: Of a version.
        values_d: Signed, shape (d,): a centred sum, or what one site sent.

    Returns:
        float64, shape (D + M,).
    """
    vector = plan.linear_map.decode(values_d.astype(np.float64))
    vector /= plan.scale
    return vector
