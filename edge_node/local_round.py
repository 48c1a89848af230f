"""Make one job's updates: sample, train in the confined process, clip, round and add noise.

Everything that the privacy of a record rests on happens here, in Tidegate's own process: the secret
coins of the sample, the clip, the sum and the noise (privacy.md, "Who is trusted with the clip").
The app only ever sees the sampled rows and a published model version.

Shapes: D = gradient coordinates, M = metrics, N = sampled records, C = columns, P = rows of a
physical batch.
"""

import secrets
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_node.data import Dataset
from edge_node.job_state import encoding_of
from edge_node.trainer import Trainer
from privacy.accounting.events import Event
from privacy.delta import Delta
from privacy.errors import PeerError, Reason
from privacy.noise import NoisedUpdate
from privacy.pipeline import EncodingPlan, Mode, RecordAccumulator, encode_delta
from privacy.sampling import poisson_sample
from privacy.spec import VectorSpec
from tidegate.jobfile import JobFile

_SEED_BYTES = 32


@dataclass(frozen=True)
class LocalRound:
    """A job as this site works on it.

    Attributes:
        plan: As accepted; each version's map seed derives from it.
        event: What one step is charged as.
        tier: Who is trusted with the clip, in the words of the ledger.
    """

    job_file: JobFile
    plan: EncodingPlan
    spec: VectorSpec
    event: Event
    tier: str
    dataset: Dataset
    trainer: Trainer

    def read_model(self, content: bytes) -> NDArray[np.float32]:
        """Show a broadcast model version as a vector, shape (D,).

        Raises:
            PeerError: WRONG_SHAPE: it has not D coordinates; NOT_FINITE: it holds NaN or infinity.
        """
        if len(content) != 4 * self.spec.length:
            raise PeerError(Reason.WRONG_SHAPE, "the model version has not the job's length")
        model_D = np.frombuffer(content, dtype="<f4")
        if not np.isfinite(model_D).all():
            raise PeerError(Reason.NOT_FINITE, "the model version holds NaN or infinity")
        return model_D

    async def make_update(self, version: int, model_D: NDArray[np.float32]) -> NoisedUpdate:
        """Take one step's update at a published model version, with fresh coins and noise.

        Raises:
            TrainerFailure: The app raised, hung or died.
            PeerError: NOT_FINITE: local training diverged (mode ``none``).
        """
        plan, _ = encoding_of(self.plan, version)
        if plan.mode is Mode.RECORD_DISTRIBUTED:
            return await self._sum_records(plan, model_D)
        return await self._train_locally(plan, model_D)

    async def _sum_records(self, plan: EncodingPlan, model_D: NDArray[np.float32]) -> NoisedUpdate:
        """Sum the clipped records of a Poisson sample; an empty one is noise alone."""
        coins = secrets.token_bytes(_SEED_BYTES)
        indices = poisson_sample(len(self.dataset), plan.sampling_rate, coins)
        rows_NC = self.dataset.take(indices, self.dataset.columns)
        accumulator = RecordAccumulator(plan)

        def add(
            gradients_PD: NDArray[np.float32], metrics_PM: NDArray[np.float32], n_valid: int
        ) -> None:
            # Minus the gradient, so that the decoded mean is a descent step; the task's metrics
            # have norm at most 1 and are brought to C_m, to which they are clipped all the same.
            contribution = np.negative(gradients_PD[:n_valid], out=gradients_PD[:n_valid])
            metrics = metrics_PM[:n_valid] * np.float32(plan.clip_metrics)
            accumulator.add(contribution, metrics)

        await self.trainer.record_gradients(model_D, rows_NC, add)
        return accumulator.finish(secrets.token_bytes(_SEED_BYTES))

    async def _train_locally(
        self, plan: EncodingPlan, model_D: NDArray[np.float32]
    ) -> NoisedUpdate:
        """Take local steps from the model version and send the clipped difference, without DP."""
        local = self.job_file.local
        if local is None or not len(self.dataset):
            raise PeerError(Reason.TRAINER_FAILED, "there is nothing to train on for this job")
        batches = [self._draw(local.batch_size) for _ in range(local.steps)]
        trained_D = await self.trainer.local_steps(model_D, batches, local.learning_rate)
        return encode_delta(plan, Delta(trained_D - model_D, self.spec.digest))

    def _draw(self, size: int) -> NDArray[np.float32]:
        """Draw rows uniformly with replacement; no privacy claim rests on this draw."""
        coins = np.frombuffer(secrets.token_bytes(8 * size), dtype="<u8")
        indices = (coins % np.uint64(len(self.dataset))).astype(np.int64)
        return self.dataset.take(indices, self.dataset.columns)
