"""Run one job's strategy in a thread of its own, round by round.

Flower's strategies block, so they get a thread; each blocking call of theirs becomes a coroutine on
the event loop (``job_run``). Unmasking, decoding, the server optimiser's step and the commit run
here too and leave the loop to the sites.
"""

import asyncio
import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from aggregator.broadcast import ModelVersion, next_version
from aggregator.heap import trim_heap
from aggregator.job_run import JobRun
from aggregator.jobs import Checkpoint, CommittedRound, JobStore
from aggregator.live_round import RoundOutcome
from aggregator.secure_rounds import TRAINING, Instruction, SecureMean
from aggregator.server_step import make_step
from aggregator.unmask import unmask
from privacy.decode import decode_sum
from privacy.errors import PeerError, Reason
from privacy.metrics import MetricAverager
from privacy.planning import encoding_for_version
from privacy.secagg.messages import Fingerprint
from tidegate.jobfile import Evaluation, JobFile, RecordPrivacy, Statistics, Trees

_AVERAGED_ROUNDS = 100
"""Rounds of metric sums that are read back after a restart; older ones weigh next to nothing."""

_LARGE_MODEL_BYTES = 1 << 24


class JobRunner:
    """Carries a job from its checkpoint to its last round; ``SecureRounds`` for its grid."""

    def __init__(
        self,
        run: JobRun,
        loop: asyncio.AbstractEventLoop,
        jobs: JobStore,
        node_ids: Mapping[Fingerprint, int],
        now_s: Callable[[], float],
    ) -> None:
        """Load the checkpoint.

        Raises:
            UsageError: The stored state is damaged, or the strategy cannot run.
        """
        self._run = run
        self._job = run.job
        self._loop = loop
        self._jobs = jobs
        self._node_ids = node_ids
        self._offered: set[int] = set()
        self._now_s = now_s
        file = self._job.file
        checkpoint = jobs.load_checkpoint(self._job.job_id)
        self._model = checkpoint.model
        self._step = make_step(file, self._job.spec, run.rule.min_sites)
        if checkpoint.strategy:
            self._step.restore(checkpoint.strategy)
        self._averager = MetricAverager(file.metrics)
        for sums in jobs.recent_metric_sums(self._job.job_id, _AVERAGED_ROUNDS):
            if self._job.plan.metrics_length:
                self._averager.add(np.asarray(sums, dtype=np.float64))
        self._outcome: RoundOutcome | None = None
        self._metric_sums: tuple[float, ...] = ()

    @property
    def job_id(self) -> str:
        """The job's id."""
        return self._job.job_id

    def run(self) -> None:
        """Run all rounds that are left; blocks.

        Raises:
            PeerError: The job failed or was stopped, with the reason.
        """
        while self._model.version < self._job.file.rounds:
            round_number = self._model.version + 1
            stepped = self._step.step(round_number, self._model.vector(), self)
            if stepped is None or self._outcome is None:
                raise PeerError(Reason.INTERNAL, f"round {round_number} gave no model")
            metrics = dict(stepped.metrics)
            self._commit(next_version(self._model, stepped.values_D), self._outcome, metrics)
            self._loop.call_soon_threadsafe(self._run.committed, round_number, metrics)

    def wait_for_nodes(self) -> list[int]:
        """Return the node ids of the sites that take part, once they are enough for a cohort.

        A strategy asks several times while it samples: one round, one answer.
        """
        if not self._offered:
            waiting = asyncio.run_coroutine_threadsafe(self._run.wait_for_cohort(), self._loop)
            self._offered = {self._node_ids[site] for site in waiting.result()}
        return sorted(self._offered)

    def run_round(self, node_ids: list[int], instruction: Instruction = TRAINING) -> SecureMean:
        """Run one round and decode its sum."""
        model = self._model
        left_out = self._offered - set(node_ids)
        self._offered = set()
        passed_over = [site for site, number in self._node_ids.items() if number in left_out]
        running = asyncio.run_coroutine_threadsafe(
            self._run.run_round(model.version + 1, model, passed_over), self._loop
        )
        outcome = self._outcome = running.result()
        return self._decode(model, outcome)

    def _decode(self, model: ModelVersion, outcome: RoundOutcome) -> SecureMean:
        attempt = outcome.attempt
        for folding in attempt.folding:
            folding.result()
        self._loop.call_soon_threadsafe(self._run.release, attempt)
        if len(model.data) >= _LARGE_MODEL_BYTES:
            trim_heap()  # of what the uploads went through, before the vectors of a step come
        opened = unmask(attempt.fold.finish(), attempt.terms)
        if opened.updates != len(outcome.survivors):
            raise PeerError(Reason.INTERNAL, "the sum is not of the survivor set")
        file, plan = self._job.file, self._job.plan
        divisor = _divisor(file, opened.updates)
        mean = decode_sum(encoding_for_version(plan, model.version), opened.values_d, divisor)
        metrics: dict[str, float] = {}
        self._metric_sums = ()
        if plan.metrics_length:
            counts_M: NDArray[np.float64] = mean.metric_sums_M / file.metrics.coordinate_scale(
                file.privacy.metrics_norm
            )
            self._metric_sums = tuple(counts_M.tolist())
            self._averager.add(counts_M)
            metrics = self._averager.values(divisor)
        noise_std = math.sqrt(opened.updates * plan.noise_variance) / (plan.scale * divisor)
        return SecureMean(mean.gradient_D, metrics, noise_std)

    def _commit(
        self, model: ModelVersion, outcome: RoundOutcome, metrics: Mapping[str, float]
    ) -> None:
        done = CommittedRound(
            round=model.version,
            attempt=outcome.attempt.number,
            checkpoint=Checkpoint(model, self._step.state()),
            transcript_hash=outcome.transcript_hash,
            survivors=outcome.survivors,
            metric_sums=self._metric_sums,
            metrics=metrics,
            elapsed_s=outcome.elapsed_s,
            progress=outcome.progress,
        )
        self._jobs.commit_round(self._job.job_id, done, self._now_s())
        self._model = model


def _divisor(job: JobFile, updates: int) -> float:
    """Give the public number that a sum is divided by; 1 where the sum itself is wanted."""
    if isinstance(job.work, Trees | Statistics | Evaluation):
        return 1.0
    if isinstance(job.privacy, RecordPrivacy):
        return float(job.privacy.expected_batch_size)
    return float(updates)
