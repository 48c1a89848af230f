"""Sample records, have their gradients taken, clip, sum, round and add noise: D-REC at one site.

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

import numpy as np
from numpy.typing import NDArray

from edge_node.job_state import encoding_of
from edge_node.rounds.contract import JobAtSite, RoundRequest
from edge_node.trainer import Trainer
from privacy.noise import NoisedUpdate
from privacy.pipeline import RecordAccumulator
from privacy.sampling import poisson_sample
from tidegate.confine.sandbox import SandboxReport

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


class RecordSums:
    """One optimiser step's sum of clipped records; see ``contract.LocalRound``."""

    def __init__(self, job: JobAtSite, trainer: Trainer) -> None:
        """Take the job and the confined process that evaluates it."""
        self.job = job
        self.trainer = trainer

    async def start(self) -> SandboxReport:
        """Start the trainer."""
        return await self.trainer.start()

    async def stop(self) -> None:
        """End the trainer."""
        await self.trainer.stop()

    async def make_update(self, request: RoundRequest) -> NoisedUpdate:
        """Sum the clipped records of a Poisson sample; an empty one is noise alone.

        Raises:
            TrainerFailure: The app raised, hung or died.
        """
        dataset = self.job.dataset
        plan, _ = encoding_of(self.job.plan, request.version)
        coins = secrets.token_bytes(_SEED_BYTES)
        indices = poisson_sample(len(dataset), plan.sampling_rate, coins)
        rows_NC = self._padded(indices, rows_a_step(len(dataset), plan.sampling_rate))
        sampled_N = np.arange(len(rows_NC)) < len(indices)
        accumulator = RecordAccumulator(plan)
        # Each block of a record's metrics has norm at most 1; together they are brought to C_m, to
        # which they are clipped all the same.
        metric_scale = np.float32(self.job.job_file.metrics.coordinate_scale(plan.clip_metrics))
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

        await self.trainer.record_gradients(request.model_D, rows_NC, add)
        return accumulator.finish(secrets.token_bytes(_SEED_BYTES))

    def _padded(self, indices: NDArray[np.int64], n_rows: int) -> NDArray[np.float32]:
        """Copy the sampled rows and put zeros after them, at least n_rows in all."""
        sampled = self.job.dataset.take(indices, self.job.dataset.columns)
        rows_NC = np.zeros((max(n_rows, len(sampled)), sampled.shape[1]), dtype=np.float32)
        rows_NC[: len(sampled)] = sampled
        return rows_NC
