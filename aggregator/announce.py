"""Decide what a new model version announces, from the public sum that made it.

The bases come from the decoded mean, the step size from the integers of the sum; both are data from
then on, durable with the version and in its chain, and never computed again (traffic.md, "Uplink").
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from privacy.announcement import MAX_SHIFT, Announcement, version_seed
from privacy.basis import first_basis, next_basis
from privacy.pipeline import EncodingPlan
from privacy.step_size import RingUse, next_scale


@dataclass(frozen=True)
class Announcer:
    """What a sum's version was encoded by, and the job's plan behind it.

    Attributes:
        job_plan: The job's.
        version: That the sum's updates were made from.
        plan: The version's.
    """

    job_plan: EncodingPlan = field(repr=False)
    version: int
    plan: EncodingPlan = field(repr=False)

    def scale_after(self, sum_d: NDArray[np.int64], wrap_rate: float) -> float:
        """Give the scale that suits a sum like this one; the plan's own where that is fixed.

        Args:
            sum_d: The centred sum, shape (d,).
            wrap_rate: Estimated share of it that wrapped.
        """
        plan, first = self.plan, self.job_plan.scale
        if not plan.announces_scale:
            return first
        use = RingUse(plan.bits, plan.scale, plan.scale == first, wrap_rate)
        return min(max(next_scale(use, sum_d), first / MAX_SHIFT), first * MAX_SHIFT)

    def after(self, scale: float, gradient_D: NDArray[np.float64]) -> bytes:
        """Give what the version after a sum announces; nothing where the plan says all.

        Args:
            scale: As `scale_after` gave it.
            gradient_D: The decoded mean, shape (D,).
        """
        plan = self.plan
        if not plan.announces_scale and plan.low_rank is None:
            return b""
        basis = None
        if plan.low_rank is not None and plan.basis is not None:
            seed = version_seed(self.job_plan, self.version + 1)
            basis = next_basis(plan.low_rank, plan.basis, gradient_D, seed)
        return Announcement(scale, basis).to_bytes()


def without_sum(plan: EncodingPlan, version: int, announcement: bytes) -> bytes:
    """Give what the next version announces where no sum made it: the scale so far, seeded bases.

    Args:
        plan: The job's.
        version: The newest version.
        announcement: Its own.
    """
    if not plan.announces_scale and plan.low_rank is None:
        return b""
    scale, following = Announcement.from_bytes(plan, version, announcement).scale, version + 1
    layout, seed = plan.low_rank, version_seed(plan, following)
    basis = None if layout is None else first_basis(layout, following % 2, seed)
    return Announcement(scale, basis).to_bytes()
