"""The edge node: carry out what the participant asks, with real keys, files, clock and network.

One event loop, one store, one session. A step's slot, charge and mirror are written before the
message that depends on them is queued, because commands are carried out in order and writing does
not yield. Training, masking, transfers and bundles run beside the session as tasks.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from edge_node import log
from edge_node.attempt_terms import SiteIdentity
from edge_node.bench import Bench
from edge_node.budget import Ledgers
from edge_node.bundles import BundleMaker
from edge_node.commands import (
    AttemptEncapsulated,
    AttemptSigned,
    CommitStep,
    ConsiderJob,
    DropUpdate,
    EncapsulateStep,
    EraseAttempt,
    FinishJob,
    HoldUpdate,
    JobJudged,
    LocalEvent,
    Note,
    ParticipantCommand,
    ParticipantEvent,
    PinManifest,
    RecallUpdate,
    RefillBundles,
    RosterArrived,
    SendMessage,
    SettleUpdate,
    SignStep,
    StopUpload,
    TimePassed,
    Train,
    UploadUpdate,
)
from edge_node.config import SiteConfig
from edge_node.download import fetch
from edge_node.enrol import Credentials
from edge_node.flower.app_states import AppStates
from edge_node.leakage.records import NotAuditedError
from edge_node.link import Link
from edge_node.offers import OfferDesk
from edge_node.participant import Participant
from edge_node.policy import Policy, manifest_warnings
from edge_node.recovery import take_up
from edge_node.rounds.flower import FlowerSite
from edge_node.session import Session
from edge_node.steps import StepWriter
from edge_node.store import Store
from edge_node.store_schema import MANIFEST_PIN, StoredJob
from edge_node.trainer.device import device_kind
from edge_node.trainer.trainer import TrainerFailure
from edge_node.updates import UpdateDesk
from edge_node.versions.follower import VersionFollower
from edge_node.versions.kept import KeptVersions
from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg.graph import STANDARD, GraphRule
from privacy.secagg.keys import suite_named
from privacy.secagg.messages import Roster
from tidegate import keys
from tidegate.convert import Limits
from tidegate.manifest import Manifest, parse
from tidegate.messages import BundleStock, is_evaluation

_STOP_WITHIN_S = 2.0


class EdgeNode:
    """One site's daemon, from an open store to a clean stop."""

    def __init__(
        self,
        config: SiteConfig,
        credentials: Credentials,
        policy: Policy,
        store: Store,
        graph_rule: GraphRule = STANDARD,
    ) -> None:
        """Put the parts together; nothing runs yet.

        Args:
            config: site.toml.
            credentials: What enrolment left.
            policy: policy.toml.
            store: Open, its lock held by the caller.
            graph_rule: Of the protocol; tests take another, to be small.

        Raises:
            UsageError: A stored ledger or manifest is damaged.
        """
        self._config = config
        self._credentials = credentials
        self._policy = policy
        self._store = store
        self._ledgers = Ledgers(store, config.site_id)
        self._bench = Bench()
        node_id = keys.node_id(credentials.signer.spki)
        flower = FlowerSite(node_id, AppStates(config.folder / "app-states", store))
        audit_of = store.jobs.newest_audit
        self._desk = OfferDesk(config, policy, self._ledgers, flower, audit_of)
        self._steps = StepWriter(store, self._ledgers, self._bench)
        self._bundles = BundleMaker(store, credentials.signer)
        raw = store.pinned(MANIFEST_PIN)
        identity = SiteIdentity(
            site_id=config.site_id,
            me=credentials.signer.fingerprint,
            node_fingerprint=credentials.node_fingerprint.hex(),
            operator_spki=credentials.operator_spki,
            instance_id=store.instance_id,
            device=device_kind(config.trainer.device),
        )
        manifest = None if raw is None else parse(raw)
        self._participant = Participant(identity, policy, manifest, graph_rule)
        self._link = Link.dial(credentials, config.session)
        self._versions = VersionFollower(self._link, KeptVersions(config.folder / "models"))
        books = self._ledgers, self._steps
        self._updates = UpdateDesk(self._link, self._versions, policy, books, self._bench)
        self._session = Session(self._link, config.session, self.dispatch)
        self._tasks: set[asyncio.Task[None]] = set()
        self._uploads: dict[bytes, asyncio.Task[None]] = {}
        self._trains: dict[str, asyncio.Task[None]] = {}
        self._considering: set[str] = set()
        self._refilling: asyncio.Task[None] | None = None
        self._accepted: dict[str, JobJudged] = {}
        self._timer: tuple[float, asyncio.TimerHandle] | None = None
        self._failure: asyncio.Future[None] | None = None
        self._do: dict[type, Callable[[Any], LocalEvent | None]] = {
            SendMessage: self._send,
            SignStep: self._sign,
            EncapsulateStep: self._encapsulate,
            CommitStep: self._steps.commit,
            UploadUpdate: self._upload,
            StopUpload: self._stop_upload,
            EraseAttempt: self._erase,
            HoldUpdate: self._hold,
            RecallUpdate: self._recall,
            Train: self._start_training,
            DropUpdate: self._drop_update,
            RefillBundles: self._refill,
            ConsiderJob: self._consider,
            SettleUpdate: self._settle_update,
            FinishJob: self._finish_job,
            PinManifest: self._pin_manifest,
            Note: self._note,
        }

    # --- life ------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Work until told to stop, then stop cleanly: no process and no half-written file stays.

        Raises:
            UsageError: Our own fault, or the configuration's; everything is closed first.
        """
        self._failure = asyncio.get_running_loop().create_future()
        try:
            self._warn()
            await self._restore()
            session = asyncio.create_task(self._session.keep())
            stopping = asyncio.create_task(stop.wait())
            self._tasks |= {session}
            ends: set[asyncio.Future[Any]] = {session, stopping, self._failure}
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            for ended in done - {stopping}:
                ended.result()
        finally:
            await self._close()

    async def _close(self) -> None:
        if self._timer is not None:
            self._timer[1].cancel()
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_WITHIN_S):
                await asyncio.gather(*self._tasks, return_exceptions=True)
                await asyncio.gather(*(job.stop() for job in self._bench.jobs.values()))
                await self._versions.close()
        await self._link.channel.close(None)
        self._desk.clear()

    def _warn(self) -> None:
        if self._policy.closed:
            log.warning("no policy", why=self._policy.closed)
        if self._participant.manifest is not None:
            self._use_manifest(self._participant.manifest)

    async def _restore(self) -> None:
        """Take up jobs and attempts that an earlier process left, or close them."""
        self._desk.clear()
        for job in self._store.jobs.unfinished():
            verdict = await self._judge(job, again=True)
            if verdict.accepted is None:
                log.warning("job not taken up again", job=job.job_id, why=verdict.detail)
                self._store.jobs.end(job.job_id, "failed")
                self._desk.forget(job.job_id)
            else:
                self._participant.restore_job(verdict.accepted)
                self._spawn(self._warm_up(job.job_id))
        exchange, suite = self._participant.exchange, self._session.limits.suite
        take_up(self._store, exchange, self._bench, suite, time.time())

    def dispatch(self, event: ParticipantEvent) -> None:
        """Hand an event to the participant and carry out what follows, to the end.

        Raises:
            PeerError: The session must be closed.
        """
        events = deque([event])
        while events:
            event = events.popleft()
            if isinstance(event, Roster):
                event = self._with_secrets(event)
            for command in self._participant.handle(event, time.time()):
                answer = self._carry_out(command)
                if answer is not None:
                    events.append(answer)
        self._set_timer()

    def _carry_out(self, command: ParticipantCommand) -> LocalEvent | None:
        return self._do[type(command)](command)

    def _set_timer(self) -> None:
        """See that time reaches the participant when it matters to it.

        Every step puts its deadline off: a timer that rings early is set anew then, which costs
        less than to do so each time.
        """
        deadline_s = self._participant.next_deadline_s()
        if self._timer is not None:
            if deadline_s is not None and self._timer[0] <= deadline_s:
                return
            self._timer[1].cancel()
            self._timer = None
        if deadline_s is not None:
            loop = asyncio.get_running_loop()
            handle = loop.call_later(max(0.0, deadline_s - time.time()) + 0.01, self._ring)
            self._timer = (deadline_s, handle)

    def _ring(self) -> None:
        self._timer = None
        self.dispatch(TimePassed())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something beside the session; an error that nobody expected stops the daemon."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or self._failure is None or self._failure.done():
            return
        error = task.exception()
        if error is not None:
            self._failure.set_exception(error)

    # --- small commands --------------------------------------------------------------------------

    def _send(self, command: SendMessage) -> None:
        self._session.send(command.message)

    def _sign(self, command: SignStep) -> AttemptSigned:
        signature = self._credentials.signer.sign(command.message)
        return AttemptSigned(command.ctx, command.purpose, signature)

    def _encapsulate(self, command: EncapsulateStep) -> AttemptEncapsulated:
        draw = suite_named(command.suite).transport.encapsulate
        return AttemptEncapsulated(command.ctx, tuple(map(draw, command.public_keys)))

    def _note(self, note: Note) -> None:
        (log.warning if note.warning else log.info)(note.event, **note.facts)

    def _with_secrets(self, roster: Roster) -> RosterArrived:
        """Find the own bundle of a roster; of its further seeds two are fresh ones."""
        last = self._store.last_accepted(roster.context.job_id)
        found = self._bundles.find(
            roster, self._session.limits.suite, self._bench.surplus_seeds(roster.context.job_id)
        )
        if found is None:
            return RosterArrived(roster, None, None, last)
        signed, secrets = found
        self._bench.joining[roster.context.digest()] = (signed.bundle.serial, secrets)
        return RosterArrived(roster, signed, secrets, last)

    def _erase(self, command: EraseAttempt) -> None:
        self._bench.forget_attempt(command.ctx)
        # Else a held attempt's own roster, sent and refused again, would take what it holds.
        if not self._bench.holds(command.ctx):
            self._store.erase(command.ctx)

    def _hold(self, command: HoldUpdate) -> None:
        self._store.hold(command.ctx, self._bench.hold(command.job_id, command.ctx))

    def _recall(self, command: RecallUpdate) -> None:
        self._bench.recall(command.job_id, command.key)

    def _drop_update(self, command: DropUpdate) -> None:
        self._bench.ready.pop(command.job_id, None)
        held = self._bench.held.pop(command.job_id, None)
        if held is not None:
            self._store.erase(held[0])

    def _pin_manifest(self, command: PinManifest) -> None:
        self._store.pin(MANIFEST_PIN, command.raw)
        log.info("manifest pinned", hash=command.manifest.hash())
        self._use_manifest(command.manifest)

    def _use_manifest(self, manifest: Manifest) -> None:
        self._session.limits = Limits.of(manifest)
        for warning in manifest_warnings(self._policy, manifest):
            log.warning("policy and manifest", what=warning)

    def _refill(self, command: RefillBundles) -> None:
        """Make bundles, one refill at a time: what is asked meanwhile is asked for again later."""
        manifest = self._participant.manifest
        if manifest is not None and (self._refilling is None or self._refilling.done()):
            self._refilling = self._spawn(self._make_bundles(manifest, command.count))

    async def _make_bundles(self, manifest: Manifest, count: int) -> None:
        made = await self._bundles.make(manifest, count)
        self._session.send(BundleStock(made))

    # --- jobs ------------------------------------------------------------------------------------

    def _consider(self, command: ConsiderJob) -> JobJudged | None:
        offer = StoredJob(**vars(command.offer))
        if self._store.jobs.find(offer.job_id) == offer and offer.job_id in self._accepted:
            return self._accepted[offer.job_id]
        if offer.job_id not in self._considering:
            self._considering.add(offer.job_id)
            self._spawn(self._answer_offer(offer))
        return None

    async def _answer_offer(self, offer: StoredJob) -> None:
        try:
            verdict = await self._judge(offer)
        finally:
            self._considering.discard(offer.job_id)
        if verdict.accepted is not None:
            self._store.jobs.put(offer)
        self.dispatch(verdict)

    async def _warm_up(self, job_id: str) -> None:
        """Start a trainer before it is asked for; what fails here fails again when it is."""
        try:
            await self._bench.jobs[job_id].start()
        except (PeerError, UsageError) as error:  # a base model, too, may be another by now
            log.warning("trainer does not start", job=job_id, why=error)

    async def _judge(self, offer: StoredJob, *, again: bool = False) -> JobJudged:
        manifest = self._participant.manifest
        if manifest is None:
            detail = "this site has no sealed manifest yet"
            return JobJudged(offer.job_id, None, Reason.POLICY, detail)
        try:
            self._store.jobs.check(offer)
            job, local = await self._desk.accept(offer, manifest, self._fetch_app, again=again)
        except TrainerFailure as error:
            log.warning("app does not start", job=offer.job_id, detail=error.detail)
            return JobJudged(offer.job_id, None, error.reason, str(error.args[0]))
        except NotAuditedError as error:
            await self._keep_unaudited(offer)
            return JobJudged(offer.job_id, None, error.reason, str(error.args[0]))
        except PeerError as error:
            return JobJudged(offer.job_id, None, error.reason, str(error.args[0]))
        except UsageError as error:
            log.warning("job cannot be run here", job=offer.job_id, why=error)
            return JobJudged(offer.job_id, None, Reason.POLICY, "this site cannot run the job now")
        self._bench.jobs[offer.job_id] = local
        job = replace(job, previous_survivors=self._store.last_sum(offer.job_id))
        self._accepted[offer.job_id] = JobJudged(offer.job_id, job)
        return self._accepted[offer.job_id]

    async def _keep_unaudited(self, offer: StoredJob) -> None:
        """Keep a refused offer and its app, so that the site's administrator can audit them."""
        try:
            await self._fetch_app(offer.app_sha256, offer.app_size)
        except PeerError as error:
            log.warning("app of an unaudited job not kept", job=offer.job_id, why=error)
            return
        self._store.jobs.put_unaudited(offer)

    async def _fetch_app(self, sha256: bytes, size: int) -> bytes:
        content = self._store.jobs.app(sha256)
        if content is None:
            content = await fetch(self._link, sha256, size)
            self._store.jobs.put_app(sha256, content)
        return content

    def _settle_update(self, command: SettleUpdate) -> None:
        local = self._bench.jobs.get(command.job_id)
        residual = None if local is None else local.job.residual
        if residual is not None and not is_evaluation(command.key.purpose):
            residual.settle(command.key.version)

    def _finish_job(self, command: FinishJob) -> None:
        self._store.jobs.end(command.job_id, command.state)
        self._accepted.pop(command.job_id, None)
        training = self._trains.pop(command.job_id, None)
        if training is not None:
            training.cancel()
        self._spawn(self._versions.forget(command.job_id))
        local = self._bench.forget_job(command.job_id)
        if local is not None:
            self._spawn(self._stop_trainer(command.job_id, local.stop()))

    async def _stop_trainer(self, job_id: str, stopping: Coroutine[Any, Any, None]) -> None:
        await stopping
        self._desk.forget(job_id)

    # --- training and upload ---------------------------------------------------------------------

    def _start_training(self, command: Train) -> None:
        self._trains[command.job_id] = self._spawn(self._train(command))

    async def _train(self, command: Train) -> None:
        self.dispatch(await self._updates.make(command))

    def _upload(self, command: UploadUpdate) -> None:
        running = self._uploads.get(command.ctx)
        if running is None or running.done():
            self._uploads[command.ctx] = self._spawn(self._mask_and_send(command))

    def _stop_upload(self, command: StopUpload) -> None:
        running = self._uploads.pop(command.ctx, None)
        if running is not None:
            running.cancel()

    async def _mask_and_send(self, command: UploadUpdate) -> None:
        failed = await self._updates.send(command)
        if failed is not None:
            self.dispatch(failed)
