"""Hold one job's newest model version, and turn it into the next one by replay.

Shapes: D = coordinates of the model vector.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edge_node.rounds.contract import JobAtSite
from privacy.errors import PeerError, Reason
from privacy.planning import encoding_for_version
from tidegate.broadcast import Broadcast
from tidegate.checkpoint import Checkpoint, CheckpointLayout
from tidegate.outer_step import OuterStep
from tidegate.replay import layout_of, outer_step_of, read_sum

Vector = NDArray[np.float32]


@dataclass
class Replica:
    """A version as this site holds it.

    Attributes:
        job: What it is a model of.
        version: From 0.
        head: The version chain up to and with it.
        layout: Of its checkpoint.
        model_D: Shape (D,), finite; never written to once training may read it.
        announcement: Of the version.
        digests: Of the checkpoint's chunks, where they are known to be these; else empty.
        passed_lint: Whether the model as it is now was looked over and may be trained from.
    """

    job: JobAtSite
    version: int
    head: bytes
    layout: CheckpointLayout
    model_D: Vector = field(repr=False)
    announcement: bytes = field(repr=False)
    digests: tuple[bytes, ...] = field(default=(), repr=False)
    step: OuterStep | None = field(default=None, repr=False)
    passed_lint: bool = False

    @classmethod
    def of_file(
        cls, job: JobAtSite, where: tuple[int, bytes], layout: CheckpointLayout, file: bytearray
    ) -> "Replica":
        """Take up a version from its checkpoint.

        Args:
            job: The job.
            where: Version and head.
            layout: The checkpoint's.
            file: Owned by the replica from now on.

        Raises:
            PeerError: MALFORMED: it is not laid out so; NOT_FINITE: it holds NaN or infinity.
            UsageError: The job's strategy cannot run here.
        """
        model_D, state, announcement = layout.split(file)
        _check_finite(model_D, state)
        step = outer_step_of(job.job_file, job.spec)
        if step is not None:
            step.restore(state)
        version, head = where
        return cls(job, version, head, layout, model_D, announcement, step=step)

    def checkpoint(self) -> Checkpoint:
        """Show it as its checkpoint, the model without a copy."""
        return self.layout.view(self.model_D, self._state(), self.announcement)

    def follow(self, broadcast: Broadcast, packed: memoryview, announcement: bytes) -> None:
        """Go on to the next version; takes the time of a decode and a step.

        What raises here may leave the replica half a step ahead: it is of no use any more.

        Raises:
            PeerError: The sum is none of the plan, or the step leaves the finite numbers.
        """
        opened = broadcast.opened
        if opened is None or self.step is None:
            raise PeerError(Reason.POLICY, "a version without a sum cannot be replayed")
        if opened.encoded_at != self.version:
            raise PeerError(Reason.POLICY, "a sum of updates from another version than the last")
        plan = encoding_for_version(self.job.plan, self.version, self.announcement)
        divisor = self.job.job_file.divisor(opened.updates)
        mean_D = read_sum(plan, packed, divisor)
        self.model_D = self.step.replay(broadcast.version, self.model_D, mean_D)
        self.version, self.head = broadcast.version, broadcast.head_after(self.head)
        self.layout = layout_of(self.job.job_file, self.job.plan, self.job.spec, broadcast)
        self.announcement, self.digests, self.passed_lint = announcement, (), False

    def repair(self, file: bytearray, digests: tuple[bytes, ...]) -> None:
        """Take the bytes that the root stands for in place of its own.

        Raises:
            PeerError: NOT_FINITE: the aggregator's own model is not finite.
        """
        model_D, state, self.announcement = self.layout.split(file)
        _check_finite(model_D, state)
        self.model_D, self.digests, self.passed_lint = model_D, digests, False
        if self.step is not None:
            self.step.restore(state)

    def _state(self) -> dict[str, Vector]:
        return self.step.state() if self.step is not None and self.layout.fields else {}


def _check_finite(model_D: Vector, state: Mapping[str, Vector]) -> None:
    for vector_D in (model_D, *state.values()):
        if not np.isfinite(vector_D).all():
            raise PeerError(Reason.NOT_FINITE, "the model version holds NaN or infinity")
