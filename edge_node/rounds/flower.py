"""Have an unchanged Flower app train or evaluate, judge its answer, clip and encode it.

The app runs as it is, in the confined process, and only what `edge_node.flower.reply` lets pass is
encoded: the clipped difference of its arrays to the model version it was given, or the metrics of
its evaluation. Modes ``site`` and ``none``; in ``record-local`` the app declares its own record
privacy, which is why every surface calls that conditional. The app's state moves on only with an
update that is kept.

Shapes: D = coordinates of the model vector, M = metric coordinates.
"""

import asyncio
import secrets
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_node import log
from edge_node.commands import UpdateKey
from edge_node.config import SiteConfig
from edge_node.flower.app_states import AppStates, StateChange
from edge_node.flower.data import FlowerData, check_readable
from edge_node.flower.reply import (
    DESCRIPTION_BYTES,
    ReplyDescription,
    ReplyRefused,
    check_evaluation,
    check_update,
    metric_vector,
    read_description,
)
from edge_node.rounds.contract import JobAtSite, RoundRequest
from edge_node.rounds.site_delta import encode_trained, plan_for
from edge_node.rounds.trainer_rules import trainer_confinement, trainer_limits
from edge_node.trainer.frames import CALL, FLOWER
from edge_node.trainer.trainer import Reply, Trainer, TrainerJob
from privacy.delta import Delta, take_delta
from privacy.encode import all_finite, encode_delta
from privacy.errors import PeerError, Reason, UsageError
from privacy.noise import NoisedUpdate
from privacy.pipeline import EncodingPlan, Mode
from tidegate import flower_config
from tidegate.confine.sandbox import SandboxReport
from tidegate.jobfile import FlowerApp
from tidegate.messages import is_evaluation
from tidegate.schema import Schema

_SEED_BYTES = 32
_MIB = 1 << 20
_MOST_NOTES = 64

Vector = NDArray[np.float32]


@dataclass(frozen=True)
class FlowerSite:
    """What apps are told of this site, and where what they remember is kept.

    Attributes:
        node_id: Flower's, as the aggregator derives it too.
    """

    node_id: int
    states: AppStates


class FlowerRound:
    """An unchanged ClientApp's updates; see ``contract.LocalRound``."""

    def __init__(self, job: JobAtSite, trainer: Trainer, states: AppStates, most: int) -> None:
        """Take the job and where it is done.

        Args:
            job: Its work is a `FlowerApp`.
            trainer: The confined process that holds the app.
            states: Where what the app remembers is kept.
            most: How many bytes that may be.
        """
        self.job = job
        self.trainer = trainer
        self._states = states
        self._most = most
        self._spec_bytes = job.spec.to_bytes()
        self._said: set[str] = set()

    async def start(self) -> SandboxReport:
        """Start the process and load the app."""
        return await self.trainer.start()

    async def stop(self) -> None:
        """End the process."""
        await self.trainer.stop()

    async def make_update(self, request: RoundRequest) -> NoisedUpdate:
        """Call the app once and encode what it answered.

        Raises:
            TrainerFailure: The app raised, hung or died.
            PeerError: Its answer was refused; or the job has no such purpose.
            UsageError: What the app remembers is lost.
        """
        plan = plan_for(self.job, request)
        job_id = self.job.job_id
        key = UpdateKey(request.round, request.version, request.purpose)
        before = await self._states.begin(job_id, key)
        frame = {
            "action": CALL,
            "purpose": request.purpose,
            "sizes": [len(self._spec_bytes), len(request.config), len(before)],
        }
        blob = b"".join((self._spec_bytes, request.config, before))
        reply, answer_D = await self.trainer.request(frame, request.model_D, blob)
        try:
            description, after = self._take_apart(reply)
            update = await asyncio.to_thread(self._encode, plan, request, description, answer_D)
        except ReplyRefused as error:
            facts = {"job": job_id, "round": request.round, "detail": error.detail}
            log.warning("the app's reply was refused", why=error, **facts)
            raise
        await self._states.keep(StateChange(job_id, key, before, after))
        return update

    def _take_apart(self, reply: Reply) -> tuple[ReplyDescription, bytes]:
        """Split an answer's bytes into the description and the state, and bound both."""
        size = reply.fields.get("description")
        if type(size) is not int or not 0 <= size <= min(DESCRIPTION_BYTES, len(reply.blob)):
            raise ReplyRefused(Reason.MALFORMED, "the app's process broke the trainer's protocol")
        after = reply.blob[size:]
        if len(after) > self._most:
            message = "the app remembers more than this site keeps"
            raise ReplyRefused(Reason.TOO_LARGE, message, f"{len(after)} bytes")
        return read_description(reply.blob[:size]), after

    def _encode(
        self,
        plan: EncodingPlan,
        request: RoundRequest,
        reply: ReplyDescription,
        answer_D: Vector,
    ) -> NoisedUpdate:
        """Judge a reply and make it an update: clipped, and in mode site rounded and noised."""
        metrics_M: Vector | None = None
        counts_as_zero = plan.mode is Mode.SITE  # what is not finite; see `encode_delta`
        if is_evaluation(request.purpose):
            notes = check_evaluation(reply)
            layout = self.job.job_file.evaluation_metrics
            scale = layout.coordinate_scale(plan.clip_gradient)
            values_D, more = metric_vector(reply, layout, scale, keep_nan=counts_as_zero)
            delta = Delta(values_D, plan.spec_digest)
        else:
            notes = check_update(reply, self.job.spec)
            layout = self.job.job_file.metrics
            scale = layout.coordinate_scale(plan.metrics_norm)
            metrics_M, more = metric_vector(reply, layout, scale, keep_nan=counts_as_zero)
            metrics_M = metrics_M if plan.metrics_length else None
            delta = take_delta(self.job.spec, answer_D, request.model_D)
        self._say({*notes, *more})
        if counts_as_zero and not all_finite(delta, metrics_M):
            log.warning(
                "not finite, so it counts as zero", job=self.job.job_id, round=request.round
            )
        if not is_evaluation(request.purpose):
            return encode_trained(self.job, request, delta, metrics_M)
        if plan.mode is not Mode.SITE:
            return encode_delta(plan, delta, metrics_M)
        rounding, noise = (secrets.token_bytes(_SEED_BYTES) for _ in range(2))
        return encode_delta(plan, delta, metrics_M, rounding, noise)

    def _say(self, notes: set[str]) -> None:
        """Write notes to the site's own log, each once, and not without end."""
        for note in sorted(notes - self._said)[:_MOST_NOTES]:
            log.info("note on the app's reply", job=self.job.job_id, what=note)
        if len(self._said) < _MOST_NOTES:
            self._said |= notes


def make_flower_round(
    job: JobAtSite, work: FlowerApp, config: SiteConfig, app_folder: Path, site: FlowerSite
) -> FlowerRound:
    """Make the work place of a job with an unchanged Flower app.

    Args:
        job: As this site agreed to it.
        work: Its work.
        config: The site's settings.
        app_folder: The unpacked app.
        site: What the app is told of the site, and where its state is kept.

    Raises:
        PeerError: POLICY: the mode is one for tasks, or the site shows this data set to no Flower
            app, or not now.
    """
    if job.plan.mode is Mode.RECORD_DISTRIBUTED:
        raise PeerError(
            Reason.POLICY,
            "an unchanged Flower app takes its own steps, so mode record-distributed cannot hold"
            " it to the clip of each record; use mode site or none, or a [task]",
        )
    data = shown_data(config, job.job_file.dataset)
    most = config.trainer.app_state_mib * _MIB
    spec_bytes = len(job.spec.to_bytes())
    trainer_job = TrainerJob(
        app_folder=app_folder,
        task_file="",
        schema=Schema(()),
        spec=job.spec,
        physical_batch=1,
        serves=CALL,
        work=FLOWER,
        settings={
            "run_config": dict(work.run_config),
            "node_config": dict(data.node_config),
            "node_id": site.node_id,
            "state_bytes": most,
        },
        blob_bytes=spec_bytes + flower_config.MAX_BYTES + DESCRIPTION_BYTES + most,
        readable=data.readable,
    )
    # Its steps are its own: there are no batches that several processes could share.
    limits = replace(trainer_limits(config), processes=1)
    trainer = Trainer(trainer_job, limits, trainer_confinement(config))
    return FlowerRound(job, trainer, site.states, most)


def shown_data(config: SiteConfig, name: str) -> FlowerData:
    """Give what the site shows Flower apps of a data set.

    Raises:
        PeerError: POLICY: nothing, or a path is missing now.
    """
    declared = config.datasets[name]
    if declared.flower is None:
        raise PeerError(
            Reason.POLICY,
            f"this site shows its data set {name!r} to no Flower app: its site.toml has no table"
            f" [datasets.{name}.flower]",
        )
    try:
        check_readable(declared.flower, f"[datasets.{name}.flower]")
    except UsageError as error:
        log.warning("data set cannot be shown", dataset=name, why=error)
        message = f"this site cannot show its data set {name!r} now"
        raise PeerError(Reason.POLICY, message) from error
    return declared.flower
