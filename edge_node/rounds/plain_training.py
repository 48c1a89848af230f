"""Train a task for some local steps and send the whole clipped difference: modes none and site.

Shapes: D = coordinates of the model vector, K = local steps, M = metrics, n = rows of a batch, W =
numbers of a row.
"""

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_node import log
from edge_node.rounds.contract import JobAtSite, RoundRequest
from edge_node.rounds.site_delta import encode_trained, plan_for
from edge_node.trainer.time_box import Clock, TimeBox
from edge_node.trainer.trainer import Trainer
from privacy.delta import take_delta
from privacy.encode import all_finite
from privacy.errors import PeerError, Reason
from privacy.noise import NoisedUpdate
from privacy.normalise import normalise_delta
from privacy.pipeline import EncodingPlan, Mode
from tidegate.confine.sandbox import SandboxReport


class PlainTraining:
    """Local steps without record-level privacy; see ``contract.LocalRound``."""

    def __init__(self, job: JobAtSite, trainer: Trainer, clock: Clock = time.monotonic) -> None:
        """Take the job, the confined process that evaluates it, and what times a time box."""
        self.job = job
        self.trainer = trainer
        self._clock = clock

    async def start(self) -> SandboxReport:
        """Start the trainer."""
        return await self.trainer.start()

    async def make_update(self, request: RoundRequest) -> NoisedUpdate:
        """Take the local steps and encode the difference; in mode site, with its noise.

        In a time-boxed round the difference is scaled to the nominal number of steps first, so that
        the clip, which comes next, bounds what leaves.

        Raises:
            TrainerFailure: The app raised, hung or died.
            PeerError: NOT_FINITE: local training diverged, in mode none; in mode site that counts
                as zero.
        """
        local = self.job.job_file.local
        if local is None or not len(self.job.dataset):
            raise PeerError(Reason.TRAINER_FAILED, "there is nothing to train on for this job")
        plan = plan_for(self.job, request)
        batches = DrawnBatches(self.job, local.steps, local.batch_size)
        rate, box = local.learning_rate or 0.0, time_box(self.job, self._clock)
        trained_D, metrics_KM = await self.trainer.local_steps(request.model_D, batches, rate, box)
        delta = take_delta(self.job.spec, trained_D, request.model_D)
        if box is not None:
            delta = normalise_delta(delta, local.steps, len(metrics_KM))
        metrics_M = self._metrics(plan, metrics_KM)
        if plan.mode is Mode.SITE and not all_finite(delta, metrics_M):
            facts = {"job": self.job.job_id, "round": request.round}
            log.warning("local training gave NaN or infinity: it counts as zero", **facts)
        return encode_trained(self.job, request, delta, metrics_M)

    async def stop(self) -> None:
        """End the trainer."""
        await self.trainer.stop()

    def _metrics(
        self, plan: EncodingPlan, metrics_KM: NDArray[np.float32]
    ) -> NDArray[np.float32] | None:
        """Give the mean record's blocks over all steps, in the scale of the sum; None if none."""
        if not plan.metrics_length:
            return None
        scale = self.job.job_file.metrics.coordinate_scale(plan.metrics_norm)
        return np.asarray(metrics_KM.mean(axis=0) * scale, dtype=np.float32)


@dataclass(frozen=True)
class DrawnBatches:
    """A round's batches, each drawn when it is asked for; no privacy claim rests on the draw.

    Attributes:
        job: Whose rows they are.
        count: How many there are at most.
        size: Rows of each, drawn uniformly with replacement.
    """

    job: JobAtSite
    count: int
    size: int

    def __len__(self) -> int:
        """Return how many there are at most."""
        return self.count

    def __iter__(self) -> Iterator[NDArray[np.float32]]:
        """Draw one after the other."""
        dataset, schema = self.job.dataset, self.job.schema
        for _ in range(self.count):
            coins = np.frombuffer(secrets.token_bytes(8 * self.size), dtype="<u8")
            indices = (coins % np.uint64(len(dataset))).astype(np.int64)
            yield dataset.take_rows(indices, schema)


def time_box(job: JobAtSite, clock: Clock) -> TimeBox | None:
    """Give a round's time box; None where the job has a fixed number of steps."""
    length_s = job.job_file.round.time_box_s
    return None if length_s is None else TimeBox(length_s, clock)
