"""Stages 10 and 11 for a job: take the masks off a round's sums, see that they fit, decode them.

A round in groups has a sum for each: their means are combined, and nothing of one group alone goes
on to the model.

Shapes: U = coordinates of the update vector, M = metric coordinates.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from aggregator.announce import Announcer
from aggregator.broadcast import ModelVersion
from aggregator.combine import combine
from aggregator.jobs import Job
from aggregator.round_outcome import OpenedAttempt, RoundOutcome
from aggregator.secure_rounds import SecureMean
from aggregator.unmask import Surplus, unmask
from privacy.decode import decode_sum
from privacy.errors import PeerError, Reason
from privacy.metrics import MetricAverager, summarise
from privacy.pipeline import EncodingPlan
from privacy.planning import encoding_for_version
from privacy.ring import centre
from privacy.step_size import SPOILT_RATE
from privacy.wrap import SumBounds, WrapReading, read_wrap
from tidegate.job_terms import most_of_site
from tidegate.jobfile import FlowerApp
from tidegate.replay import pack_sum

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class OpenedSum:
    """What a round's sum, or the sums of its groups, hold.

    Attributes:
        mean: For whoever makes the next model.
        metric_sums: Noised sums of the raw metric blocks, for averages after a restart; empty where
            none are averaged.
        wraps: By attempt, what each sum shows of wrapping.
        left_out: Attempts whose sums have certainly wrapped; their groups are left out.
        packed: The sum's integers for the sites, where they replay it; else empty.
        updates: How many updates the packed sum holds.
        announcement: For the version that the sum makes, if it makes one.
    """

    mean: SecureMean = field(repr=False)
    metric_sums: tuple[float, ...]
    wraps: tuple[tuple[int, WrapReading], ...]
    left_out: tuple[int, ...]
    packed: bytes = field(default=b"", repr=False)
    updates: int = 0
    announcement: bytes = field(default=b"", repr=False)

    @property
    def wrap_rate(self) -> float:
        """Return the estimated share of wrapped coordinates of the worst sum that is used."""
        used = [wrap.rate for number, wrap in self.wraps if number not in self.left_out]
        return max(used, default=0.0)


def wrap_lines(exchange: int, opened: OpenedSum) -> list[str]:
    """Say for the job's log which sums have wrapped, or are about to."""
    lines = []
    for number, wrap in opened.wraps:
        where = f"round {exchange}, attempt {number}: about {wrap.rate:.1e} of the coordinates"
        if number in opened.left_out:
            lines.append(f"{where} wrapped around the ring: its group is left out")
        elif wrap.is_high:
            more = "raise [compression] range or lower clipping_norm"
            if opened.announcement:
                more = "the next version's range is wider"
            lines.append(f"{where} may have wrapped around the ring: {more}")
    return lines


@dataclass(frozen=True)
class _Group:
    """One sum, decoded."""

    number: int
    wrap: WrapReading
    divisor: float
    gradient_D: Vector = field(repr=False)
    metric_sums_M: Vector = field(repr=False)
    noise_std: float
    next_scale: float
    is_lost: bool = False
    packed: bytes = field(default=b"", repr=False)
    updates: int = 0


def open_sum(
    job: Job, outcome: RoundOutcome, model: ModelVersion, purpose: str, averager: MetricAverager
) -> OpenedSum:
    """Decode the sums of a finished round; their folds are done.

    Args:
        job: The job.
        outcome: The round.
        model: The version that the sites began from.
        purpose: What they were asked for.
        averager: Averages the metrics of tasks over rounds, so that what is shown is steady. A
            Flower app's are given as they are: its strategy counts on them.

    Raises:
        PeerError: A sum does not fit the job; RING_WRAP: it has certainly wrapped, or too few
            groups are left without those whose sums have.
    """
    trains = job.plan_for(purpose) is job.plan
    announced = model.announcement if trains else b""
    plan = encoding_for_version(job.plan_for(purpose), model.version, announced)
    announcer = Announcer(job.plan_for(purpose), model.version, plan)
    replayed = job.replays and trains
    groups = [_open(job, one, announcer, outcome, replayed=replayed) for one in outcome.opened]
    whole = _joined(job, groups)
    wraps = tuple((group.number, group.wrap) for group in groups)
    left_out = tuple(group.number for group in groups if group.is_lost)
    mean, metric_sums = _read(job, plan, purpose, whole, averager)
    announcement = announcer.after(whole.next_scale, whole.gradient_D) if trains else b""
    return OpenedSum(mean, metric_sums, wraps, left_out, whole.packed, whole.updates, announcement)


def _open(
    job: Job, one: OpenedAttempt, announcer: Announcer, outcome: RoundOutcome, *, replayed: bool
) -> _Group:
    attempt, plan = one.attempt, announcer.plan
    surplus = Surplus(plan.noise_share, attempt.surplus_seeds)
    opened = unmask(attempt.fold.finish(), attempt.terms, surplus.parts)
    if opened.updates != len(one.survivors):
        raise PeerError(Reason.INTERNAL, "the sum is not of the survivor set")
    share = len(attempt.members) / outcome.cohort
    divisor = job.file.divisor(opened.updates, share)
    noise = float(surplus.variance_left(opened.updates))
    bounds = SumBounds.of(plan, opened.updates, noise, divisor, most_of_site(job.file))
    wrap = read_wrap(opened.values_d, plan.bits, bounds)
    # Where the step size is announced, the next version's range is wider: the job goes on, and in
    # place of a sum that has wrapped there are zeros, for sites that replay it too.
    spoilt = plan.announces_scale and (wrap.is_certain or wrap.rate > SPOILT_RATE)
    values_d = np.zeros_like(opened.values_d) if spoilt else opened.values_d
    decoded = decode_sum(plan, values_d, divisor)
    centred_d = centre(opened.values_d, plan.bits)
    return _Group(
        number=attempt.number,
        wrap=wrap,
        divisor=divisor,
        gradient_D=decoded.gradient_D,
        metric_sums_M=decoded.metric_sums_M,
        noise_std=math.sqrt(noise) / (plan.scale * divisor),
        next_scale=announcer.scale_after(centred_d, 1.0 if spoilt else wrap.rate),
        is_lost=wrap.is_certain and not plan.announces_scale,
        packed=pack_sum(plan, values_d) if replayed else b"",
        updates=opened.updates,
    )


def _joined(job: Job, groups: list[_Group]) -> _Group:
    """Give the one sum, or what the groups' sums combine to."""
    sound = [group for group in groups if not group.is_lost]
    robust = job.file.robust
    if robust is None:
        if not sound:
            raise _wrapped(groups, 1)
        return sound[0]
    if len(sound) < robust.least_groups:
        raise _wrapped(groups, robust.least_groups)
    divisor = sum(group.divisor for group in sound)
    # Metrics are combined as means too, and given as the sum over all that those means imply.
    metrics_M = combine([group.metric_sums_M / group.divisor for group in sound], robust)
    return _Group(
        number=sound[-1].number,
        wrap=max((group.wrap for group in sound), key=lambda wrap: wrap.rate),
        divisor=divisor,
        gradient_D=combine([group.gradient_D for group in sound], robust),
        metric_sums_M=metrics_M * divisor,
        noise_std=max(group.noise_std for group in sound),
        next_scale=min(group.next_scale for group in sound),
    )


def _read(
    job: Job, plan: EncodingPlan, purpose: str, whole: _Group, averager: MetricAverager
) -> tuple[SecureMean, tuple[float, ...]]:
    file, divisor, noise_std = job.file, whole.divisor, whole.noise_std
    if job.plan_for(purpose) is not job.plan:  # an evaluation's metrics are the vector
        layout = file.evaluation_metrics
        sums_M = whole.gradient_D * (divisor / layout.coordinate_scale(plan.clip_gradient))
        return SecureMean(np.zeros(0), summarise(layout, sums_M, divisor), noise_std), ()
    if not plan.metrics_length:
        return SecureMean(whole.gradient_D, {}, noise_std), ()
    layout = file.metrics
    counts_M = whole.metric_sums_M / layout.coordinate_scale(plan.metrics_norm)
    if isinstance(file.work, FlowerApp):
        metrics = summarise(layout, counts_M, divisor)
        return SecureMean(whole.gradient_D, metrics, noise_std), ()
    averager.add(counts_M)
    mean = SecureMean(whole.gradient_D, averager.values(divisor), noise_std)
    return mean, tuple(counts_M.tolist())


def _wrapped(groups: list[_Group], needed: int) -> PeerError:
    """Say that sums cannot be used, and what to do: the job stops, for each try would be charged.

    What made them wrap does so again, and a site's budget is spent each time.
    """
    found = [group.wrap for group in groups if group.is_lost]
    which = "the sum has" if needed == 1 else f"{len(found)} of {len(groups)} groups' sums have"
    worst = max(found, key=lambda wrap: wrap.at_edge - wrap.most)
    return PeerError(
        Reason.RING_WRAP,
        f"{which} wrapped around the ring, so nothing of it was applied: {worst.at_edge}"
        f" coordinates lie in the ring's outermost eighth, and an honest sum leaves {worst.most}"
        " there at most. Raise [compression] range (more bits a coordinate), or lower [privacy]"
        " clipping_norm (a smaller range); if the job's numbers are right, a site sent what no"
        " honest site sends: [robust] passes its group over",
    )
