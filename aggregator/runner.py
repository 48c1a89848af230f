"""Run one job in a thread of its own, exchange by exchange.

Flower's strategies block, so they get a thread; each blocking call of theirs becomes a coroutine on
the event loop (``job_run``). Unmasking, decoding, the server optimiser's step and the commit run
here too and leave the loop to the sites.

``JobRunner`` carries exchanges out and makes them durable; what asks for them is a job's server
step (``run_steps``) or its own ServerApp (``server_app.driver``).
"""

import asyncio
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load
from sqlalchemy import Connection

from aggregator.announce import without_sum
from aggregator.broadcast import (
    ModelVersion,
    VersionContents,
    next_version,
    replayed_version,
)
from aggregator.checkpoints import Checkpoint, CommittedRound
from aggregator.heap import trim_heap
from aggregator.job_run import JobRun
from aggregator.jobs import Job, JobStore
from aggregator.live_round import RoundOrder
from aggregator.log import LOGGER
from aggregator.opened_sum import OpenedSum, open_sum, wrap_lines
from aggregator.optimiser import Optimiser
from aggregator.round_outcome import RoundOutcome
from aggregator.secure_rounds import TRAINING, Instruction, SecureMean
from aggregator.server_step import make_step
from aggregator.version_log import DeltaLog
from privacy.errors import PeerError, Reason
from privacy.metrics import MetricAverager
from privacy.secagg.messages import Fingerprint
from tidegate.jobfile import FlowerApp
from tidegate.messages import EVALUATE, TRAIN, is_evaluation

EVALUATION_PREFIX = "eval-"
"""What the metrics of an evaluation are shown under, beside those of training."""

_AVERAGED_ROUNDS = 100
"""Rounds of metric sums that are read back after a restart; older ones weigh next to nothing."""

_LARGE_MODEL_BYTES = 1 << 24


class JobRunner:
    """Carries a job's exchanges out from its checkpoint; ``SecureRounds`` for its grid.

    Attributes:
        model: The newest version.
        exchange: The number of the last finished exchange.
        strategy: The server step's state, as stored.
    """

    def __init__(
        self,
        run: JobRun,
        loop: asyncio.AbstractEventLoop,
        jobs: JobStore,
        versions: DeltaLog,
        node_ids: Mapping[Fingerprint, int],
        now_s: Callable[[], float],
    ) -> None:
        """Load the checkpoint.

        Raises:
            UsageError: The stored state is damaged.
        """
        self._run = run
        self._loop = loop
        self._jobs = jobs
        self._versions = versions
        self._node_ids = node_ids
        self._offered: set[int] = set()
        self._now_s = now_s
        checkpoint = jobs.load_checkpoint(self.job.job_id)
        self.model = checkpoint.model
        self.exchange = checkpoint.exchange
        self.strategy = checkpoint.strategy
        self._averager = MetricAverager(self.job.file.metrics)
        if self.job.plan.metrics_length and not isinstance(self.job.file.work, FlowerApp):
            for sums in jobs.recent_metric_sums(self.job.job_id, _AVERAGED_ROUNDS):
                self._averager.add(np.asarray(sums, dtype=np.float64))
        self._trained = _part(run.progress.metrics, evaluated=False)
        self._evaluated = _part(run.progress.metrics, evaluated=True)
        self._finished: tuple[RoundOutcome, OpenedSum, int] | None = None
        self._rounds_done = run.progress.round
        self._announcement = b""  # for the version after the newest, once a sum was opened

    @property
    def job(self) -> Job:
        """The job."""
        return self._run.job

    @property
    def job_id(self) -> str:
        """The job's id."""
        return self.job.job_id

    @property
    def min_sites(self) -> int:
        """The fewest sites that make a cohort."""
        return self._run.rule.min_sites

    @property
    def rounds_done(self) -> int:
        """Training rounds that are done, as people see them."""
        return self._rounds_done

    def check_running(self) -> None:
        """Raise why the job was given up, if it was."""
        if self._run.failure is not None:
            raise self._run.failure

    def say(self, line: str) -> None:
        """Add a line to the job's log."""
        self._loop.call_soon_threadsafe(self._run.say, line)

    def wait_for_nodes(self, *, again: bool = False) -> list[int]:
        """Return the node ids of the sites that take part, once they are enough for a cohort.

        A strategy asks several times while it samples: one round, one answer.

        Args:
            again: Whether those who came since then are to be named too.
        """
        if again or not self._offered:
            waiting = asyncio.run_coroutine_threadsafe(self._run.wait_for_cohort(), self._loop)
            self._offered |= {self._node_ids[site] for site in waiting.result()}
        return sorted(self._offered)

    def run_round(self, node_ids: list[int], instruction: Instruction = TRAINING) -> SecureMean:
        """Run the next exchange from the newest version, and decode its sum.

        Raises:
            PeerError: It was given up, or the job was stopped; POLICY, too few nodes are asked.
        """
        asked = set(node_ids) & set(self._node_ids.values())
        if len(asked) < self.min_sites:
            raise PeerError(
                Reason.POLICY,
                f"the strategy asks {len(asked)} sites, and a cohort needs at least"
                f" {self.min_sites}: raise its fraction or its minimum of nodes",
            )
        left_out = self._offered - asked
        self._offered = set()
        passed_over = [site for site, number in self._node_ids.items() if number in left_out]
        shown = self.rounds_done + (not instruction.evaluates)
        offer = self._versions.offer(self.model)
        order = RoundOrder(self.exchange + 1, shown, offer.log, instruction)
        running = asyncio.run_coroutine_threadsafe(
            self._run.run_round(order, self.model, offer.contents, passed_over), self._loop
        )
        outcome = running.result()
        opened = self._open(outcome, order)
        self._finished = outcome, opened, shown
        if not instruction.evaluates:
            self._announcement = opened.announcement
        return opened.mean

    def _open(self, outcome: RoundOutcome, order: RoundOrder) -> OpenedSum:
        is_last = order.shown == self.job.file.rounds
        for one in outcome.opened:
            for folding in one.attempt.folding:
                folding.result()
            self._loop.call_soon_threadsafe(self._run.release, one.attempt, is_last)
        if len(self.model.data) >= _LARGE_MODEL_BYTES:
            trim_heap()  # of what the uploads went through, before the vectors of a step come
        purpose = order.instruction.purpose
        opened = open_sum(self.job, outcome, self.model, purpose, self._averager)
        for line in wrap_lines(self.exchange + 1, opened):
            LOGGER.warning("job %s %s", self.job_id, line)
            self.say(line)
        return opened

    def publish(
        self,
        values_D: NDArray[np.float32],
        also: Callable[[Connection], None] | None = None,
    ) -> None:
        """Make a model the newest version before any sum made it, unless it is that already.

        Args:
            values_D: Shape (D,), finite.
            also: Writes what else is to be durable with it, in either case.
        """
        announcement = self._announcement
        if not announcement:
            version, announced = self.model.version, self.model.announcement
            announcement = without_sum(self.job.plan, version, announced)
        fresh = next_version(self.model, values_D, announcement)
        if fresh.sha256 != self.model.sha256:
            log = self._versions.append(fresh, VersionContents())
            self._jobs.publish(self.job_id, fresh, _both(log, also))
            self.model, self._announcement = fresh, b""
        elif also is not None:
            self._jobs.write(also)

    def commit(
        self,
        metrics: Mapping[str, float],
        purpose: str = TRAIN,
        values_D: NDArray[np.float32] | None = None,
        also: Callable[[Connection], None] | None = None,
    ) -> None:
        """Make the finished exchange durable, and show it.

        Args:
            metrics: To show.
            purpose: What it was for.
            values_D: The model that it made, shape (D,); None where it made none.
            also: Writes what else is to be durable with it.
        """
        if self._finished is None:
            raise PeerError(Reason.INTERNAL, "no exchange is finished that could be kept")
        outcome, opened, shown = self._finished
        model = None
        if values_D is not None:
            model, contents = self._made(values_D, opened)
            also = _both(self._versions.append(model, contents), also)
        checkpoint = Checkpoint(model or self.model, self.strategy, self.exchange + 1)
        used = [o for o in outcome.opened if o.attempt.number not in opened.left_out]
        done = CommittedRound(
            attempt=used[-1].attempt.number,
            checkpoint=checkpoint,
            transcript_hash=outcome.transcript_hash,
            survivors=tuple(name for one in used for name in one.survivors),
            groups=tuple((one.attempt.number, one.survivors) for one in used),
            wrap_rate=opened.wrap_rate,
            metric_sums=opened.metric_sums,
            metrics=metrics,
            elapsed_s=outcome.elapsed_s,
            progress=outcome.progress,
            purpose=purpose,
            publishes=model is not None,
        )
        self._jobs.commit_round(self.job_id, done, self._now_s(), also)
        self.model, self.exchange = checkpoint.model, checkpoint.exchange
        self._finished, self._rounds_done = None, shown
        if model is not None:
            self._announcement = b""
        self._loop.call_soon_threadsafe(self._run.note_wraps, opened.wrap_rate)
        self._show(metrics, evaluates=is_evaluation(purpose))

    def _made(
        self, values_D: NDArray[np.float32], opened: OpenedSum
    ) -> tuple[ModelVersion, VersionContents]:
        """Name the version that an exchange made, and say what the sites may fetch of it."""
        announcement = opened.announcement
        if not opened.packed:
            return next_version(self.model, values_D, announcement), VersionContents()
        state = load(self.strategy) if self.strategy else {}
        packed = opened.packed, opened.updates
        return replayed_version(self.model, values_D, packed, state, announcement)

    def _show(self, metrics: Mapping[str, float], *, evaluates: bool) -> None:
        """Show the newest metrics of training and of evaluation side by side."""
        if evaluates:
            self._evaluated = dict(metrics)
        else:
            self._trained = dict(metrics)
        together = {**self._trained, **self._evaluated}
        self._loop.call_soon_threadsafe(self._run.committed, self.rounds_done, together)


def _both(
    first: Callable[[Connection], None], second: Callable[[Connection], None] | None
) -> Callable[[Connection], None]:
    """Write two things in one transaction."""

    def write(connection: Connection) -> None:
        first(connection)
        if second is not None:
            second(connection)

    return write


def _part(metrics: Mapping[str, float], *, evaluated: bool) -> dict[str, float]:
    return {
        name: value
        for name, value in metrics.items()
        if name.startswith(EVALUATION_PREFIX) is evaluated
    }


def run_steps(runner: JobRunner) -> None:
    """Run all rounds that are left with the job's server step; blocks.

    Raises:
        PeerError: The job failed or was stopped, with the reason.
        UsageError: The stored state is damaged, or the strategy cannot run.
    """
    file = runner.job.file
    step = make_step(file, runner.job.spec, runner.min_sites)
    if runner.strategy:
        step.restore(runner.strategy)
    every = file.work.evaluate_every if isinstance(file.work, FlowerApp) else 0
    while True:
        version = runner.model.version
        evaluated = runner.exchange - version
        if every and isinstance(step, Optimiser) and evaluated < version // every:
            _evaluate(runner, step)
        elif version < file.rounds:
            stepped = step.step(version + 1, runner.model.vector(), runner)
            if stepped is None:
                raise PeerError(Reason.INTERNAL, f"round {version + 1} gave no model")
            runner.strategy = step.state()
            runner.commit(dict(stepped.metrics), values_D=stepped.values_D)
        else:
            return


def _evaluate(runner: JobRunner, step: Optimiser) -> None:
    """Let the sites evaluate the newest version; its round is done with that."""
    metrics = step.evaluate(runner.model.version, runner.model.vector(), runner)
    if metrics is None:
        raise PeerError(Reason.INTERNAL, f"the evaluation of {runner.model.version} gave nothing")
    named = {EVALUATION_PREFIX + name: value for name, value in metrics.items()}
    runner.commit(named, EVALUATE)
