"""Stages 10 and 11 for a job: take the masks off a round's sum and decode it.

Shapes: U = coordinates of the update vector, M = metric coordinates.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from aggregator.jobs import Job
from aggregator.live_round import RoundOutcome
from aggregator.secure_rounds import SecureMean
from aggregator.unmask import Surplus, unmask
from privacy.decode import decode_sum
from privacy.errors import PeerError, Reason
from privacy.metrics import MetricAverager, summarise
from privacy.planning import encoding_for_version
from tidegate.jobfile import FlowerApp


@dataclass(frozen=True)
class OpenedSum:
    """What a round's sum holds.

    Attributes:
        mean: For whoever makes the next model.
        metric_sums: Noised sums of the raw metric blocks, for averages after a restart; empty where
            none are averaged.
    """

    mean: SecureMean = field(repr=False)
    metric_sums: tuple[float, ...]


def open_sum(
    job: Job, outcome: RoundOutcome, version: int, purpose: str, averager: MetricAverager
) -> OpenedSum:
    """Decode the sum of a finished round; its folds are done.

    Args:
        job: The job.
        outcome: The round.
        version: That the sites began from.
        purpose: What they were asked for.
        averager: Averages the metrics of tasks over rounds, so that what is shown is steady. A
            Flower app's are given as they are: its strategy counts on them.

    Raises:
        PeerError: The sum does not fit the job.
    """
    attempt = outcome.attempt
    file, plan = job.file, job.plan_for(purpose)
    surplus = Surplus(plan.noise_share, attempt.surplus_seeds)
    opened = unmask(attempt.fold.finish(), attempt.terms, surplus.parts)
    if opened.updates != len(outcome.survivors):
        raise PeerError(Reason.INTERNAL, "the sum is not of the survivor set")
    divisor = file.divisor(opened.updates)
    decoded = decode_sum(encoding_for_version(plan, version), opened.values_d, divisor)
    noise_std = math.sqrt(surplus.variance_left(opened.updates)) / (plan.scale * divisor)
    if plan is not job.plan:  # an evaluation's metrics are the vector
        layout = file.evaluation_metrics
        sums_M = decoded.gradient_D * (divisor / layout.coordinate_scale(plan.clip_gradient))
        return OpenedSum(SecureMean(np.zeros(0), summarise(layout, sums_M, divisor), noise_std), ())
    if not plan.metrics_length:
        return OpenedSum(SecureMean(decoded.gradient_D, {}, noise_std), ())
    layout = file.metrics
    counts_M: NDArray[np.float64] = decoded.metric_sums_M / layout.coordinate_scale(
        file.privacy.metrics_norm
    )
    if isinstance(file.work, FlowerApp):
        metrics = summarise(layout, counts_M, divisor)
        return OpenedSum(SecureMean(decoded.gradient_D, metrics, noise_std), ())
    averager.add(counts_M)
    mean = SecureMean(decoded.gradient_D, averager.values(divisor), noise_std)
    return OpenedSum(mean, tuple(counts_M.tolist()))
