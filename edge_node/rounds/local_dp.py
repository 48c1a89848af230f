"""Train a task for noised local steps and send the difference: mode record-local (L-REC).

Each local step draws a Poisson sample with secret coins, has the records' gradients taken in the
sandbox, physical batch by physical batch, and clips, sums and noises them here, in Tidegate's own
process; the model that the next step starts from is a function of noised sums only. So everything
after a step's noise is post-processing: the optimizer, the further steps, the rounding and the
sending (privacy.md, "record-local"). That holds for the task's own ``optimizer()`` because it runs
in a second confined process that is never handed a record: the first one has seen them.

All steps of an update are charged before the first one (`edge_node.steps`); in a time-boxed round
that is the most that a site may take, never less than what it does take. The difference is then
scaled to that number, which is post-processing too.

Shapes: D = gradient coordinates, M = metrics, N = rows of a step, P = rows of a physical batch.
"""

import asyncio
import secrets
import time

import numpy as np
from numpy.typing import NDArray

from edge_node.rounds.contract import JobAtSite, RoundRequest
from edge_node.rounds.plain_training import time_box
from edge_node.rounds.row_draw import DrawnRows, RowDraw
from edge_node.rounds.site_delta import encode_trained, plan_for
from edge_node.trainer.time_box import Clock
from edge_node.trainer.trainer import Trainer
from privacy.delta import take_delta
from privacy.errors import PeerError, Reason, UsageError
from privacy.local_noise import LocalNoise
from privacy.local_steps import LocalStepAccumulator, NoisyStep
from privacy.noise import NoisedUpdate
from privacy.normalise import normalise_delta
from tidegate.confine.sandbox import SandboxReport

_SEED_BYTES = 32


class LocalDp:
    """A round's noised local steps; see ``contract.LocalRound``."""

    def __init__(
        self,
        job: JobAtSite,
        trainer: Trainer,
        optimiser: Trainer | None,
        clock: Clock = time.monotonic,
    ) -> None:
        """Take the job and the confined processes.

        Args:
            job: Of mode record-local.
            trainer: Takes per-record gradients.
            optimiser: Steps the task's optimizer; None for plain descent by ``learning_rate``.
            clock: Times a time box.

        Raises:
            UsageError: The job's unit is a user, and its column cannot tell users apart; or the
                job lacks what its mode needs.
        """
        local, rules = job.plan.local, job.job_file.local
        if local is None or rules is None or (rules.learning_rate is None) != bool(optimiser):
            raise UsageError("local noised steps need a plan, steps and one optimiser for them")
        self.job = job
        self.trainer = trainer
        self._optimiser = optimiser
        self._clock = clock
        self._local: LocalNoise = local
        self._rate = rules.learning_rate or 0.0
        unit = job.job_file.privacy.unit
        self._rows = RowDraw(job.dataset, job.schema, unit, job.plan.sampling_rate)
        self._metric_scale = job.job_file.metrics.coordinate_scale(local.clip_metrics)

    async def start(self) -> SandboxReport:
        """Start the trainers; gives the report of the one that lacks a protection, if one does."""
        if self._optimiser is None:
            return await self.trainer.start()
        first, second = await asyncio.gather(self.trainer.start(), self._optimiser.start())
        return second if second.missing else first

    async def stop(self) -> None:
        """End the trainers."""
        await self.trainer.stop()
        if self._optimiser is not None:
            await self._optimiser.stop()

    async def make_update(self, request: RoundRequest) -> NoisedUpdate:
        """Take the noised local steps from a model version and encode the difference.

        Raises:
            TrainerFailure: The app raised, hung or died.
            PeerError: NOT_FINITE: the steps diverged.
        """
        plan = plan_for(self.job, request)
        accumulator = LocalStepAccumulator(plan)
        model_D = request.model_D
        metrics_M = np.zeros(plan.metrics_length)
        taken, box = 0, time_box(self.job, self._clock)
        if box is not None:
            box.begin()
        while taken < self._local.steps and not (taken and box is not None and box.is_over):
            step = await self._noised_step(accumulator, model_D)
            mean_D = (step.gradient_D / self._local.expected_batch).astype(np.float32)
            model_D = await self._stepped(model_D, mean_D)
            metrics_M += step.metric_sums_M
            taken += 1
        metrics_M /= self._local.expected_batch * taken
        delta = take_delta(self.job.spec, model_D, request.model_D)
        delta = normalise_delta(delta, self._local.steps, taken)
        metrics = None
        if plan.metrics_length:
            # Noised at the steps' norm; where the step size is announced, the ring has another.
            ratio = plan.metrics_norm / self._local.clip_metrics
            metrics = np.asarray(metrics_M * ratio, dtype=np.float32)
        return encode_trained(self.job, request, delta, metrics)

    async def _noised_step(
        self, accumulator: LocalStepAccumulator, model_D: NDArray[np.float32]
    ) -> NoisyStep:
        drawn: DrawnRows = self._rows.draw(secrets.token_bytes(_SEED_BYTES))
        scales_N = np.asarray(drawn.shares_N * self._metric_scale, dtype=np.float32)
        begin = 0

        def add(
            gradients_PD: NDArray[np.float32], metrics_PM: NDArray[np.float32], n_valid: int
        ) -> None:
            nonlocal begin
            rows = slice(begin, begin + n_valid)
            metrics = metrics_PM[:n_valid] * scales_N[rows, np.newaxis]
            accumulator.add(gradients_PD[:n_valid], metrics, drawn.real_N[rows], drawn.lasts(rows))
            begin += n_valid

        await self.trainer.record_gradients(model_D, drawn.rows_NW, add)
        return accumulator.finish(secrets.token_bytes(_SEED_BYTES))

    async def _stepped(
        self, model_D: NDArray[np.float32], mean_D: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Step along the noised mean gradient."""
        if self._optimiser is not None:
            stepped_D = await self._optimiser.optimise(model_D, mean_D)
        else:
            stepped_D = np.asarray(model_D - self._rate * mean_D, dtype=np.float32)
        if not np.isfinite(stepped_D).all():
            raise PeerError(
                Reason.NOT_FINITE, "the local steps gave NaN or infinity; lower the learning rate"
            )
        return stepped_D
