"""Make a job's updates and send them, masked, with what each has cost.

Nothing is trained from a model version before the lint has looked it over: the aggregator chose it.

What goes wrong here never stops the daemon: it becomes an event for the participant. Why in detail
stays in the site's own log where it could hold data.

Shapes: D = coordinates of the model vector.
"""

import asyncio
import secrets

import numpy as np
from numpy.typing import NDArray

from edge_node import log
from edge_node.bench import Bench
from edge_node.budget import Ledgers
from edge_node.commands import Train, Trained, TrainFailed, UploadFailed, UploadUpdate
from edge_node.link import Link
from edge_node.policy import Policy
from edge_node.rounds.contract import JobAtSite, RoundRequest
from edge_node.steps import StepWriter
from edge_node.trainer.trainer import TrainerFailure
from edge_node.upload import mask_update, send_update
from edge_node.versions.follower import VersionFollower
from privacy.errors import PeerError, Reason, UsageError
from privacy.leakage.model_lint import check_model
from tidegate.convert.bounds import MAX_EPSILON
from tidegate.requests import UploadHeader


class UpdateDesk:
    """The shell's answer to `Train` and `UploadUpdate`; the update lies on the bench between."""

    def __init__(
        self,
        link: Link,
        versions: VersionFollower,
        policy: Policy,
        books: tuple[Ledgers, StepWriter],
        bench: Bench,
    ) -> None:
        """Take whom to send to, the model versions, the site's rules, and where updates lie.

        ``books`` are what is spent, and who charges ahead.
        """
        self._link = link
        self._versions = versions
        self._policy = policy
        self._ledgers, self._steps = books
        self._bench = bench

    async def make(self, command: Train) -> Trained | TrainFailed:
        """Come to the model version and make an update from it, if the budget still allows one.

        In record-local it is charged here, before the first local step; elsewhere at step 2.
        """
        job_id, key = command.job_id, command.key
        local = self._bench.jobs[job_id]
        try:
            _, event = local.job.terms_for(key.purpose)
            self._ledgers.look_ahead(local.job.dataset.dataset_id, event)
            model_D = await self._model(command, local.job)
            if local.job.charged_ahead:
                self._steps.charge_ahead(local.job, key)
            request = RoundRequest(
                key.round,
                key.version,
                model_D,
                key.purpose,
                command.config,
                command.wanted.announcement,
            )
            update = await local.make_update(request)
        except TrainerFailure as error:
            log.warning("training failed", job=job_id, round=key.round, detail=error.detail)
            return self._failed(command, local.job, error)
        except PeerError as error:
            return self._failed(command, local.job, error)
        except UsageError as error:
            log.warning("training is not possible here", job=job_id, why=error)
            told = PeerError(Reason.TRAINER_FAILED, "this site cannot train now")
            return self._failed(command, local.job, told)
        self._bench.ready[job_id] = (key, update)
        return Trained(job_id, key, self._spent(local.job))

    async def send(self, command: UploadUpdate) -> UploadFailed | None:
        """Mask by slot 2 and upload; the same bytes however often it is asked."""
        ctx = command.ctx
        try:
            masked = self._bench.masked.get(ctx)
            resume = masked is not None
            if masked is None:
                update = self._bench.update_of(ctx)
                masked = await mask_update(update, command.terms, command.ring_bits)
                self._bench.masked[ctx] = masked
            local = self._bench.jobs.get(command.job_id)
            spent = 0.0 if local is None else self._spent(local.job)
            header = UploadHeader(ctx, len(masked.data), masked.sha256, spent)
            await send_update(self._link, header, masked, resume=resume)
        except PeerError as error:
            return UploadFailed(ctx, error.reason, str(error.args[0]))
        return None

    def _failed(self, command: Train, job: JobAtSite, error: PeerError) -> TrainFailed:
        spent = self._spent(job)
        why = str(error.args[0])
        return TrainFailed(command.job_id, command.key, error.reason, why, spent)

    def _spent(self, job: JobAtSite) -> float:
        """Give the epsilon spent, at the job's delta, for the operator's display; 0 without one."""
        delta_dp = job.delta_dp
        if delta_dp is None:
            return 0.0
        return min(self._ledgers.spent(job.dataset.dataset_id, delta_dp), MAX_EPSILON)

    async def _model(self, command: Train, job: JobAtSite) -> NDArray[np.float32]:
        """Come to a model version and look it over, once, before anything is trained from it.

        Raises:
            PeerError: It cannot be had, is no model of the job, or looks made to leak.
        """
        replica = await self._versions.come_to(command.wanted, job)
        if not replica.passed_lint and job.job_file.runs_app:
            # Where no app runs the vector is no layers, and nothing is learnt through it.
            tensors = job.spec.unflatten(replica.model_D)
            allowed = self._policy.lint_allow
            await asyncio.to_thread(check_model, tensors, secrets.randbits(128), allowed)
        replica.passed_lint = True
        return replica.model_D
