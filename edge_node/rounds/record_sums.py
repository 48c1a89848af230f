"""Sample records, have their gradients taken, clip, sum, round and add noise: D-REC at one site.

Everything that the privacy of a record rests on happens here, in Tidegate's own process: the secret
coins of the sample, the clip, the sum and the noise (privacy.md, "Who is trusted with the clip").
The app only ever sees the sampled rows, padding, and a published model version; each step takes the
same time whatever was drawn (`edge_node.rounds.row_draw`).

Shapes: D = gradient coordinates, M = metrics, N = rows of a step, W = numbers of a row, P = rows of
a physical batch.
"""

import secrets

import numpy as np
from numpy.typing import NDArray

from edge_node.rounds.contract import JobAtSite, RoundRequest
from edge_node.rounds.row_draw import RowDraw
from edge_node.rounds.site_delta import plan_for
from edge_node.trainer.trainer import Trainer
from privacy.noise import NoisedUpdate
from privacy.pipeline import RecordAccumulator
from tidegate.confine.sandbox import SandboxReport

_SEED_BYTES = 32


class RecordSums:
    """One optimiser step's sum of clipped records or users; see ``contract.LocalRound``."""

    def __init__(self, job: JobAtSite, trainer: Trainer) -> None:
        """Take the job and the confined process that evaluates it.

        Raises:
            UsageError: The job's unit is a user, and its column cannot tell users apart.
        """
        self.job = job
        self.trainer = trainer
        unit = job.job_file.privacy.unit
        self._rows = RowDraw(job.dataset, job.schema, unit, job.plan.sampling_rate)

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
        plan = plan_for(self.job, request)
        drawn = self._rows.draw(secrets.token_bytes(_SEED_BYTES))
        accumulator = RecordAccumulator(plan)
        # Each block of a record's metrics has norm at most 1; together they are brought to C_m, to
        # which they are clipped all the same.
        scale = self.job.job_file.metrics.coordinate_scale(plan.clip_metrics)
        scales_N = np.asarray(drawn.shares_N * scale, dtype=np.float32)
        begin = 0

        def add(
            gradients_PD: NDArray[np.float32], metrics_PM: NDArray[np.float32], n_valid: int
        ) -> None:
            nonlocal begin
            rows = slice(begin, begin + n_valid)
            # Minus the gradient, so that the decoded mean is a descent step.
            contribution = np.negative(gradients_PD[:n_valid], out=gradients_PD[:n_valid])
            metrics = metrics_PM[:n_valid] * scales_N[rows, np.newaxis]
            accumulator.add(contribution, metrics, drawn.real_N[rows], drawn.lasts(rows))
            begin += n_valid

        await self.trainer.record_gradients(request.model_D, drawn.rows_NW, add)
        return accumulator.finish(secrets.token_bytes(_SEED_BYTES))
