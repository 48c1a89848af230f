"""Make one job's updates: sample, train in the confined process, clip, round and add noise.

Everything that the privacy of a record rests on happens here, in Tidegate's own process: the secret
coins of the sample, the clip, the sum and the noise (privacy.md, "Who is trusted with the clip").
The app only ever sees the sampled rows, rows of zeros, and a published model version.

How long a step takes must not tell how many records the secret coins chose, for "ready" is sent
when it ends (privacy.md: no timing that depends on data leaves a site). So each step hands over as
many rows as the largest draw that ever comes (`rows_a_step`): the sampled ones, then zeros, which
are evaluated, clipped and summed like the others under a mask. What is left: the number of rows
follows from the size of the site's data set, which therefore shows; a draw above the bound, one in
about 10^9 steps, takes longer; and neither gathering rows nor float arithmetic is constant-time in
its values.

Shapes: D = gradient coordinates, M = metrics, N = rows of a step, C = columns, P = rows of a
physical batch.
"""

import math
import secrets
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_node.data import Dataset
from edge_node.job_state import encoding_of
from edge_node.trainer import Trainer
from privacy.accounting.events import Event
from privacy.delta import take_delta
from privacy.errors import PeerError, Reason
from privacy.noise import NoisedUpdate
from privacy.pipeline import EncodingPlan, Mode, RecordAccumulator, encode_delta
from privacy.sampling import poisson_sample
from privacy.spec import VectorSpec
from tidegate.jobfile import JobFile

_SEED_BYTES = 32


def rows_a_step(n_rows: int, sampling_rate: float) -> int:
    """Give how many rows each step hands over: more than a Poisson sample has but once in 10^9.

    Six standard deviations above the mean, and six more where the mean is small; never more than
    there are records.

    Args:
        n_rows: Records of the site's data set.
        sampling_rate: The public rate q.
    """
    mean = n_rows * sampling_rate
    return min(n_rows, math.ceil(mean + 6 * math.sqrt(mean) + 6))


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
        rows_NC = self._padded(indices, rows_a_step(len(self.dataset), plan.sampling_rate))
        sampled_N = np.arange(len(rows_NC)) < len(indices)
        accumulator = RecordAccumulator(plan)
        # Each block of a record's metrics has norm at most 1; together they are brought to C_m, to
        # which they are clipped all the same.
        metric_scale = np.float32(self.job_file.metrics.coordinate_scale(plan.clip_metrics))
        begin = 0

        def add(
            gradients_PD: NDArray[np.float32], metrics_PM: NDArray[np.float32], n_valid: int
        ) -> None:
            nonlocal begin
            # Minus the gradient, so that the decoded mean is a descent step.
            contribution = np.negative(gradients_PD[:n_valid], out=gradients_PD[:n_valid])
            metrics = metrics_PM[:n_valid] * metric_scale
            accumulator.add(contribution, metrics, sampled_N[begin : begin + n_valid])
            begin += n_valid

        await self.trainer.record_gradients(model_D, rows_NC, add)
        return accumulator.finish(secrets.token_bytes(_SEED_BYTES))

    def _padded(self, indices: NDArray[np.int64], n_rows: int) -> NDArray[np.float32]:
        """Copy the sampled rows and put zeros after them, at least n_rows in all."""
        sampled = self.dataset.take(indices, self.dataset.columns)
        rows_NC = np.zeros((max(n_rows, len(sampled)), sampled.shape[1]), dtype=np.float32)
        rows_NC[: len(sampled)] = sampled
        return rows_NC

    async def _train_locally(
        self, plan: EncodingPlan, model_D: NDArray[np.float32]
    ) -> NoisedUpdate:
        """Take local steps from the model version and send the clipped difference, without DP."""
        local = self.job_file.local
        if local is None or not len(self.dataset):
            raise PeerError(Reason.TRAINER_FAILED, "there is nothing to train on for this job")
        batches = [self._draw(local.batch_size) for _ in range(local.steps)]
        trained_D = await self.trainer.local_steps(model_D, batches, local.learning_rate)
        return encode_delta(plan, take_delta(self.spec, trained_D, model_D))

    def _draw(self, size: int) -> NDArray[np.float32]:
        """Draw rows uniformly with replacement; no privacy claim rests on this draw."""
        coins = np.frombuffer(secrets.token_bytes(8 * size), dtype="<u8")
        indices = (coins % np.uint64(len(self.dataset))).astype(np.int64)
        return self.dataset.take(indices, self.dataset.columns)
