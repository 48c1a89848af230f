"""Train a task for some local steps and send the whole clipped difference: modes none and site.

Shapes: D = coordinates of the model vector, K = local steps, M = metrics, n = rows of a batch, W =
numbers of a row.
"""

import secrets

import numpy as np
from numpy.typing import NDArray

from edge_node import log
from edge_node.job_state import encoding_of
from edge_node.rounds.contract import JobAtSite, RoundRequest
from edge_node.trainer.trainer import Trainer
from privacy.delta import take_delta
from privacy.errors import PeerError, Reason
from privacy.noise import NoisedUpdate
from privacy.pipeline import EncodingPlan, Mode, all_finite, encode_delta
from tidegate.confine.sandbox import SandboxReport

_SEED_BYTES = 32


class PlainTraining:
    """Local steps without record-level privacy; see ``contract.LocalRound``."""

    def __init__(self, job: JobAtSite, trainer: Trainer) -> None:
        """Take the job and the confined process that evaluates it."""
        self.job = job
        self.trainer = trainer

    async def start(self) -> SandboxReport:
        """Start the trainer."""
        return await self.trainer.start()

    async def make_update(self, request: RoundRequest) -> NoisedUpdate:
        """Take the local steps and encode the difference; in mode site, with its noise.

        Raises:
            TrainerFailure: The app raised, hung or died.
            PeerError: NOT_FINITE: local training diverged, in mode none; in mode site that counts
                as zero.
        """
        local = self.job.job_file.local
        if local is None or not len(self.job.dataset):
            raise PeerError(Reason.TRAINER_FAILED, "there is nothing to train on for this job")
        plan, _ = encoding_of(self.job.plan, request.version)
        batches = [self._draw(local.batch_size) for _ in range(local.steps)]
        rate = local.learning_rate or 0.0
        trained_D, metrics_KM = await self.trainer.local_steps(request.model_D, batches, rate)
        delta = take_delta(self.job.spec, trained_D, request.model_D)
        metrics_M = self._metrics(plan, metrics_KM)
        if plan.mode is Mode.SITE and not all_finite(delta, metrics_M):
            facts = {"job": self.job.job_id, "round": request.round}
            log.warning("local training gave NaN or infinity: it counts as zero", **facts)
        return encode_delta(plan, delta, metrics_M, *_seeds(plan))

    async def stop(self) -> None:
        """End the trainer."""
        await self.trainer.stop()

    def _metrics(
        self, plan: EncodingPlan, metrics_KM: NDArray[np.float32]
    ) -> NDArray[np.float32] | None:
        """Give the mean record's blocks over all steps, in the scale of the sum; None if none."""
        if not plan.metrics_length:
            return None
        scale = self.job.job_file.metrics.coordinate_scale(plan.clip_metrics)
        return np.asarray(metrics_KM.mean(axis=0) * scale, dtype=np.float32)

    def _draw(self, size: int) -> NDArray[np.float32]:
        """Draw rows uniformly with replacement; no privacy claim rests on this draw."""
        dataset = self.job.dataset
        coins = np.frombuffer(secrets.token_bytes(8 * size), dtype="<u8")
        indices = (coins % np.uint64(len(dataset))).astype(np.int64)
        return dataset.take_rows(indices, self.job.schema)


def _seeds(plan: EncodingPlan) -> tuple[bytes | None, bytes | None]:
    """Draw what mode site rounds and adds noise with; mode none does neither."""
    if plan.mode is not Mode.SITE:
        return None, None
    return secrets.token_bytes(_SEED_BYTES), secrets.token_bytes(_SEED_BYTES)
