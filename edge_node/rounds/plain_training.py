"""Train a task for some local steps and send the whole clipped difference: modes none and site."""

import secrets

import numpy as np
from numpy.typing import NDArray

from edge_node.job_state import encoding_of
from edge_node.rounds.contract import JobAtSite, RoundRequest
from edge_node.trainer import Trainer
from privacy.delta import take_delta
from privacy.errors import PeerError, Reason
from privacy.noise import NoisedUpdate
from privacy.pipeline import encode_delta
from tidegate.confine.sandbox import SandboxReport


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
        """Take the local steps and encode the difference.

        Raises:
            TrainerFailure: The app raised, hung or died.
            PeerError: NOT_FINITE: local training diverged.
        """
        local = self.job.job_file.local
        if local is None or not len(self.job.dataset):
            raise PeerError(Reason.TRAINER_FAILED, "there is nothing to train on for this job")
        plan, _ = encoding_of(self.job.plan, request.version)
        batches = [self._draw(local.batch_size) for _ in range(local.steps)]
        rate = local.learning_rate or 0.0
        trained_D = await self.trainer.local_steps(request.model_D, batches, rate)
        return encode_delta(plan, take_delta(self.job.spec, trained_D, request.model_D))

    async def stop(self) -> None:
        """End the trainer."""
        await self.trainer.stop()

    def _draw(self, size: int) -> NDArray[np.float32]:
        """Draw rows uniformly with replacement; no privacy claim rests on this draw."""
        dataset = self.job.dataset
        coins = np.frombuffer(secrets.token_bytes(8 * size), dtype="<u8")
        indices = (coins % np.uint64(len(dataset))).astype(np.int64)
        return dataset.take(indices, dataset.columns)
