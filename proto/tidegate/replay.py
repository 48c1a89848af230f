"""Turn a version and the opened sum of its round into the next version, bit for bit at both ends.

The integers fix the result: decoding is exact arithmetic on them, then each coordinate is scaled
and rounded by the same correctly rounded operations, and the server optimiser's step is the same
code (``outer_step``). A library that rounds otherwise would show at the next root
(``tidegate.checkpoint``) and be repaired.

Shapes: D = coordinates of the model vector, d = integers of the encoded vector, M = metrics.
"""

import numpy as np
from numpy.typing import NDArray

from privacy.announcement import announced_bytes
from privacy.decode import decode_sum
from privacy.errors import PeerError, Reason
from privacy.pipeline import EncodingPlan
from privacy.ring import pack, packed_length, unpack
from privacy.spec import VectorSpec
from tidegate.broadcast import Broadcast
from tidegate.checkpoint import CheckpointLayout
from tidegate.jobfile import SERVER_APP, FlowerApp, JobFile, Task
from tidegate.outer_step import OuterStep, state_fields

Vector = NDArray[np.float32]


def replays(job: JobFile, plan: EncodingPlan) -> bool:
    """Say whether a job's versions after the first are broadcast as the sums that make them.

    Not where something else than a strategy over one sum makes them (a ServerApp, [robust], trees,
    counts), nor where a sum is no shorter than the model.
    """
    work = job.work
    by_strategy = isinstance(work, Task) or (
        isinstance(work, FlowerApp) and work.driver != SERVER_APP
    )
    if not by_strategy or job.strategy is None or job.robust is not None:
        return False
    return packed_length(plan.longest - plan.metrics_tail, plan.bits) < 4 * plan.gradient_length


def sum_bytes(plan: EncodingPlan, version: int) -> int:
    """Give the size of a packed sum: what sites need no metrics for goes without them.

    Args:
        plan: The job's.
        version: That its updates were encoded for: with a low-rank map the length is the version's.
    """
    return packed_length(plan.length_at(version) - plan.metrics_tail, plan.bits)


def pack_sum(plan: EncodingPlan, values_d: NDArray[np.uint32]) -> bytes:
    """Pack an opened sum for the sites.

    Args:
        plan: That its updates were encoded with.
        values_d: uint32 below 2^B, shape (d,).
    """
    return pack(values_d[: plan.length - plan.metrics_tail], plan.bits)


def read_sum(plan: EncodingPlan, packed: bytes | memoryview, divisor: float) -> NDArray[np.float64]:
    """Decode a packed sum to the mean that the server optimiser takes, shape (D,).

    Raises:
        PeerError: MALFORMED: it is not a sum of the plan.
    """
    kept = plan.length - plan.metrics_tail
    values_d = unpack(packed, kept, plan.bits)
    if plan.metrics_tail:
        values_d = np.concatenate([values_d, np.zeros(plan.metrics_tail, values_d.dtype)])
    return decode_sum(plan, values_d, divisor).gradient_D


def outer_step_of(job: JobFile, spec: VectorSpec) -> OuterStep | None:
    """Make a job's server optimiser, fresh; None where a strategy of ours makes no version."""
    strategy = job.strategy
    return None if strategy is None else OuterStep(strategy.name, strategy.options, spec)


def layout_of(
    job: JobFile, plan: EncodingPlan, spec: VectorSpec, broadcast: Broadcast
) -> CheckpointLayout:
    """Give the layout of a version's checkpoint.

    The server optimiser's vectors are in it where sites replay, from its first step on.
    """
    fields: tuple[str, ...] = ()
    if job.strategy is not None and broadcast.version and replays(job, plan):
        fields = state_fields(job.strategy.name, job.strategy.options)
    announcement = broadcast.announcement
    return CheckpointLayout(spec.length, fields, 0 if announcement is None else announcement.size)


def check_broadcast(
    job: JobFile, plan: EncodingPlan, spec: VectorSpec, broadcast: Broadcast
) -> None:
    """Refuse a broadcast whose sizes are not those of the job.

    Raises:
        PeerError: WRONG_SHAPE: a sum, checkpoint or announcement of another size; POLICY: a sum in
            a job that has no replay.
    """
    if broadcast.opened is not None:
        if not replays(job, plan):
            raise PeerError(Reason.POLICY, "this job's versions come whole, not as sums")
        size, due = broadcast.opened.packed.size, sum_bytes(plan, broadcast.opened.encoded_at)
        if size != due:
            raise PeerError(Reason.WRONG_SHAPE, f"a sum of this job has {due} bytes, not {size}")
    announced = broadcast.announcement
    if announced is not None and announced.size != announced_bytes(plan, broadcast.version):
        raise PeerError(Reason.WRONG_SHAPE, "an announcement of another size than the job has")
    layout = layout_of(job, plan, spec, broadcast)
    if broadcast.checkpoint is not None and broadcast.checkpoint.size != layout.size:
        raise PeerError(
            Reason.WRONG_SHAPE,
            f"a checkpoint of this job has {layout.size} bytes, not {broadcast.checkpoint.size}",
        )
