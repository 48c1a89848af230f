"""Bring everything together: sessions of sites, the queue of jobs, and the one job that runs.

Lives on the event loop. Jobs run one after the other in the order of submission; a job that was
running when the process died goes first. What is shown of a job is pushed to whoever watches it.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch

from aggregator.admission import admit
from aggregator.broadcast import ModelVersion, VersionContents
from aggregator.bundle_stock import BundleStock
from aggregator.config import AggregatorConfig
from aggregator.drive import drive
from aggregator.export import RunFacts, export_model, signer_of
from aggregator.fold import pick_device
from aggregator.job_run import JobRun
from aggregator.jobs import Job, JobState, JobStore
from aggregator.live_attempt import Surroundings
from aggregator.log import LOGGER
from aggregator.progress import JobProgress
from aggregator.registry import EnrolledSite, Registry, SealedManifest
from aggregator.runner import JobRunner
from aggregator.server_app.store import CallStore
from aggregator.sessions import Sessions, SiteSession
from aggregator.shelf import ContentShelf
from aggregator.spool import Spool
from aggregator.store import Store
from aggregator.version_log import DeltaLog, forget_versions, kept_logs
from privacy.errors import PeerError, Reason, TidegateError
from privacy.secagg.graph import STANDARD, GraphRule
from privacy.secagg.keys import suite_named
from tidegate import pki
from tidegate.convert import printable
from tidegate.messages import PROTOCOL, BundleRequest, JobEnded, SiteMessage, Welcome
from tidegate.messages import (
    BundleStock as BundleDelivery,
)
from tidegate.requests import JobHistory, SubmitHeader

_WATCH_INTERVAL_S = 0.1
_JOIN_WITHIN_S = 1.0


class Coordinator:
    """See the module. Implements ``SessionEvents`` and ``TransferEvents``."""

    def __init__(
        self,
        config: AggregatorConfig,
        store: Store,
        registry: Registry,
        graph_rule: GraphRule = STANDARD,
    ) -> None:
        """Load the jobs; ``start`` resumes them. Only tests take another graph rule."""
        self.config = config
        self._graph_rule = graph_rule
        self.registry = registry
        self.sessions = Sessions(config.limits.outgoing_messages)
        self.spool = Spool(config.folder / "spool")
        self.shelf = ContentShelf()
        self.device: torch.device = pick_device(config.device)
        self._store = store
        self._jobs = JobStore(store)
        self._calls = CallStore(store)
        self._known = {job.job_id: job for job in self._jobs.load_all()}
        self._fold_thread = ThreadPoolExecutor(1, "fold")
        self._stock: BundleStock | None = None
        self._run: JobRun | None = None
        self._watchers: dict[str, set[asyncio.Event]] = {}
        self._thread: threading.Thread | None = None
        self._closing = False

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take up work where it was left."""
        unfinished = [job.job_id for job in self._known.values() if not job.state.is_over]
        self._calls.forget_all_but(unfinished)
        for job_id in kept_logs(self._store) - set(unfinished):
            forget_versions(self._store, job_id)
        if self.registry.sealed is not None:
            self._make_stock(self.registry.sealed)
        self._start_next()

    async def close(self) -> None:
        """Stop working; a running job stays running in the store and is resumed at the start."""
        self._closing = True
        if self._run is not None:
            self._run.fail(PeerError(Reason.STOPPED, "the aggregator is stopping"))
        for session in self.sessions.live():
            session.close(PeerError(Reason.STOPPED, "the aggregator is stopping; dial again"))
        for watchers in self._watchers.values():
            for event in watchers:
                event.set()
        self._fold_thread.shutdown(wait=False, cancel_futures=True)
        if self._thread is not None:
            # A commit that has begun may end; a strategy that computes on is left behind.
            await asyncio.to_thread(self._thread.join, _JOIN_WITHIN_S)

    # --- operator ---------------------------------------------------------------------------------

    def put_manifest(self, raw: bytes, signature: bytes) -> SealedManifest:
        """Take the sealed manifest and push it to all connected sites."""
        fresh = self.registry.sealed is None
        sealed = self.registry.put_manifest(raw, signature, time.time(), self.config)
        if fresh:
            LOGGER.info("manifest sealed: sha256:%s", sealed.manifest_hash.hex())
            self._make_stock(sealed)
            for session in self.sessions.live():
                self._welcome(session)
            self._start_next()
        return sealed

    def revoke(self, site_id: str, why: str) -> None:
        """Cut a site off: durable first, then its session ends."""
        self.registry.revoke(site_id, why, time.time())
        LOGGER.warning("site %s revoked: %s", site_id, why)
        site = self.registry.site(site_id)
        session = self.sessions.get(site.fingerprint) if site is not None else None
        if session is not None:
            session.close(PeerError(Reason.REVOKED, f"site {site_id} is revoked: {why}"))

    async def forecast(self, header: SubmitHeader, app: bytes, model: bytes) -> Job:
        """Check a job as `submit` does, and keep nothing of it.

        Raises:
            PeerError: What was sent is malformed, or breaks the manifest's rules.
            UsageError: The job cannot run; says which number to change.
        """
        job, _ = await self._admitted(header, app, model)
        return job

    async def submit(self, header: SubmitHeader, app: bytes, model: bytes) -> Job:
        """Take a job after checking all that can be checked without running its code.

        Raises:
            PeerError: What was sent is malformed, or breaks the manifest's rules.
            UsageError: The job cannot run; says which number to change.
        """
        waiting = sum(1 for job in self._known.values() if not job.state.is_over)
        if waiting >= self.config.limits.max_jobs:
            raise PeerError(Reason.POLICY, f"{waiting} jobs are queued or running: no room")
        job, first = await self._admitted(header, app, model)
        whole = VersionContents(checkpoint=first.whole() if job.replays else None)
        self._jobs.insert(job, first, DeltaLog(self._store, job.job_id).append(first, whole))
        self._known[job.job_id] = job
        LOGGER.info(
            "job %s submitted: %d parameters, B=%d", job.job_id, job.spec.length, job.plan.bits
        )
        self._start_next()
        return self._known[job.job_id]

    async def _admitted(
        self, header: SubmitHeader, app: bytes, model: bytes
    ) -> tuple[Job, ModelVersion]:
        sealed = self.registry.sealed
        if sealed is None:
            raise PeerError(
                Reason.POLICY, "no manifest is sealed: run `tidegate consortium seal` first"
            )
        # Calibrating the noise takes a while: the sites' sessions go on meanwhile.
        return await asyncio.to_thread(
            admit, header, app, model, sealed.manifest, self.config.limits, time.time()
        )

    def stop_job(self, job_id: str, why: str) -> None:
        """End a job; what it has committed stays.

        Raises:
            PeerError: UNKNOWN_JOB; POLICY, it is over already.
        """
        job = self.job(job_id)
        if job.state.is_over:
            raise PeerError(Reason.POLICY, f"job {job_id} is {job.state} already")
        self._end(job, JobState.STOPPED, why)

    def job(self, job_id: str) -> Job:
        """Return a job.

        Raises:
            PeerError: UNKNOWN_JOB.
        """
        job = self._known.get(job_id)
        if job is None:
            raise PeerError(
                Reason.UNKNOWN_JOB, f"no job {job_id!r}; `tidegate job list` shows them"
            )
        return job

    def jobs(self) -> list[Job]:
        """Return all jobs in the order of submission."""
        return list(self._known.values())

    def progress(self, job: Job) -> tuple[JobProgress, float]:
        """Return what is shown of a job, and how long it has run in seconds."""
        if self._run is not None and self._run.job.job_id == job.job_id:
            return self._run.progress, self._run.elapsed_s
        sealed = self.registry.sealed
        names = [member.site_id for member in sealed.manifest.members] if sealed else []
        return JobProgress.from_json(job.progress, names), job.elapsed_s

    def history(self, job_id: str) -> JobHistory:
        """Give what a report needs of a job besides its status.

        Raises:
            PeerError: UNKNOWN_JOB.
        """
        job, sealed = self.job(job_id), self.registry.sealed
        return JobHistory(
            rounds=tuple(self._jobs.history(job_id)),
            vector_spec=job.vector_spec,
            encoding=job.encoding,
            app_sha256=job.app_sha256,
            manifest_hash=sealed.manifest_hash if sealed else b"",
        )

    async def watch(self, job_id: str) -> AsyncIterator[Job]:
        """Give a job now, whenever something has changed, and at its end; at most 10 a second."""
        changed = asyncio.Event()
        watchers = self._watchers.setdefault(job_id, set())
        watchers.add(changed)
        try:
            while True:
                changed.clear()
                job = self.job(job_id)
                yield job
                if job.state.is_over or self._closing:
                    return
                await asyncio.sleep(_WATCH_INTERVAL_S)
                await changed.wait()
        finally:
            watchers.discard(changed)
            if not watchers:
                self._watchers.pop(job_id, None)

    def export(self, job_id: str) -> bytes:
        """Give a job's newest model as a safetensors file.

        Raises:
            PeerError: UNKNOWN_JOB.
        """
        job = self.job(job_id)
        run = RunFacts(self.registry.sealed, self._jobs.last_transcript(job_id))
        checkpoint, signer = self._jobs.load_checkpoint(job_id), signer_of(self.config.folder)
        return export_model(job, checkpoint, self.progress(job)[0], run, signer)

    # --- sites ------------------------------------------------------------------------------------

    def site_connected(self, session: SiteSession) -> None:
        """Greet a site, fill its key stock and give it work."""
        self._welcome(session)
        for job_id in session.hello.jobs:
            job = self._known.get(job_id)
            state = job.state if job is not None else JobState.STOPPED
            if state.is_over:
                why = job.detail if job is not None else "unknown here"
                session.send(JobEnded(job_id, str(state), printable(why)))
        if self._run is not None:
            self._run.site_connected(session)

    def site_disconnected(self, session: SiteSession, why: PeerError) -> None:
        """Go on without a site."""
        if self._run is not None:
            self._run.site_disconnected(session, why)

    def site_said(self, session: SiteSession, message: SiteMessage, size: int) -> None:
        """Take a message of a site.

        Raises:
            PeerError: It is dropped.
        """
        self.transferred(session.site, size, 0)
        if isinstance(message, BundleDelivery):
            self._stock_bundles(session, message)
        elif self._run is not None:
            self._run.site_said(session, message)
            self._ask_for_bundles(session)

    def upload_completed(
        self, site: EnrolledSite, ctx: bytes, sha256: bytes, epsilon_spent: float
    ) -> None:
        """Take note of a whole upload."""
        if self._run is None:
            raise PeerError(Reason.WRONG_CONTEXT, "an upload, and no job is running")
        self._run.upload_completed(site.fingerprint, ctx, sha256, epsilon_spent)

    def transferred(self, site: EnrolledSite, up: int, down: int) -> None:
        """Count bytes on the wire."""
        tally = self._run.progress.sites.get(site.site_id) if self._run is not None else None
        if tally is not None:
            tally.bytes_up += up
            tally.bytes_down += down

    def _welcome(self, session: SiteSession) -> None:
        sealed = self.registry.sealed
        if sealed is None:
            session.send(Welcome(PROTOCOL, b"", b""))
            return
        session.send(Welcome(PROTOCOL, sealed.raw, sealed.signature))
        if self._stock is not None and sealed.manifest.member(session.site.site_id) is not None:
            self._stock.connect(session.site.fingerprint, session.hello.instance_id)
            self._ask_for_bundles(session)

    def _make_stock(self, sealed: SealedManifest) -> None:
        self._stock = BundleStock(
            suite_named(sealed.manifest.suite),
            sealed.manifest.consortium_id,
            self.config.limits.bundle_stock,
        )

    def _ask_for_bundles(self, session: SiteSession) -> None:
        missing = self._stock.missing(session.site.fingerprint, time.time()) if self._stock else 0
        if missing:
            self.transferred(session.site, 0, session.send(BundleRequest(missing)))

    def _stock_bundles(self, session: SiteSession, delivery: BundleDelivery) -> None:
        if self._stock is None:
            raise PeerError(Reason.POLICY, "key bundles before the manifest was sealed")
        site = session.site
        try:
            self._stock.add(site.fingerprint, site.signing_spki, delivery.bundles, time.time())
        except PeerError as error:
            # A site with a bad stock can take no part, and would never be asked again.
            session.close(error)
            raise
        if self._run is not None:
            self._run.bundles_arrived(site.fingerprint)

    def bundles(self, site: EnrolledSite) -> int:
        """Return how many key bundles of a site are in stock."""
        return self._stock.count(site.fingerprint, time.time()) if self._stock is not None else 0

    # --- jobs -------------------------------------------------------------------------------------

    def _start_next(self) -> None:
        """Start the running or the oldest queued job, if none runs."""
        if self._run is not None or self._closing or self.registry.sealed is None:
            return
        waiting = [job for job in self._known.values() if not job.state.is_over]
        waiting.sort(key=lambda job: job.state is not JobState.RUNNING)
        for job in waiting:
            if self._begin(job, self.registry.sealed):
                return

    def _begin(self, job: Job, sealed: SealedManifest) -> bool:
        if self._stock is None:
            return False
        around = Surroundings(
            sessions=self.sessions,
            stock=self._stock,
            spool=self.spool,
            shelf=self.shelf,
            jobs=self._jobs,
            sealed=sealed,
            timeouts=self.config.timeouts,
            device=self.device,
            fold_thread=self._fold_thread,
            kept_folder=self._kept_folder(),
            graph_rule=self._graph_rule,
        )
        nodes = {m.fingerprint(): pki.node_id(m.spki()) for m in sealed.manifest.members}
        loop = asyncio.get_running_loop()
        try:
            run = JobRun(job, around, lambda: self._notify(job.job_id))
            versions = DeltaLog(self._store, job.job_id)
            runner = JobRunner(run, loop, self._jobs, versions, nodes, time.time)
        except TidegateError as error:
            self._end(job, JobState.FAILED, str(error))
            return False
        LOGGER.info("job %s %s", job.job_id, "resumes" if job.state == "running" else "starts")
        self._run = run
        self._keep(replace(job, state=JobState.RUNNING, detail=""))
        run.start()
        self._thread = threading.Thread(
            target=self._work, args=(runner, loop), name=f"job-{job.job_id}", daemon=True
        )
        self._thread.start()
        return True

    def _work(self, runner: JobRunner, loop: asyncio.AbstractEventLoop) -> None:
        """Run a job in its own thread, and report its end to the loop."""
        state, detail = drive(runner, self._calls, self.config)
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._worked, runner.job_id, state, detail)

    def _worked(self, job_id: str, state: JobState, detail: str) -> None:
        job = self._known[job_id]
        if not job.state.is_over and not self._closing:
            self._end(job, state, detail)

    def _end(self, job: Job, state: JobState, detail: str) -> None:
        detail = printable(detail)
        LOGGER.info("job %s %s%s", job.job_id, state, f": {detail}" if detail else "")
        run = self._run if self._run is not None and self._run.job.job_id == job.job_id else None
        if run is not None:
            run.end(JobEnded(job.job_id, str(state), detail))
        self._keep(replace(job, state=state, detail=detail))
        self._calls.forget(job.job_id)
        forget_versions(self._store, job.job_id)
        if run is not None:
            self._run = None
            self._start_next()

    def _keep(self, job: Job) -> None:
        """Make a job's new state durable, and show it."""
        progress, elapsed_s = self.progress(job)
        kept = replace(job, elapsed_s=elapsed_s, progress=progress.to_json())
        self._jobs.set_state(kept, time.time())
        self._known[job.job_id] = kept
        self._notify(job.job_id)

    def _notify(self, job_id: str) -> None:
        for event in self._watchers.get(job_id, ()):
            event.set()

    def _kept_folder(self) -> Path | None:
        return self.config.folder / "kept" if self.config.keep_last_uploads else None
