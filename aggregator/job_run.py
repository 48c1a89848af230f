"""One running job on the event loop: offers, who takes part, and what sites say about the job.

Its rounds are ``live_round``'s, one after the other, each asked for by the job's thread
(``runner``). All of it runs on the loop's thread and does not block.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Container, Mapping

from aggregator.broadcast import ModelVersion
from aggregator.cohort import cohort_rule
from aggregator.jobs import Job
from aggregator.live_attempt import LiveAttempt, Surroundings
from aggregator.live_round import LiveRound, RoundOrder
from aggregator.participants import Participants
from aggregator.progress import JobProgress
from aggregator.round import RoundConfig
from aggregator.round_events import (
    Exchanged,
    RoundEvent,
    SiteJoined,
    SiteLeft,
    SiteNotReady,
    SiteReady,
)
from aggregator.round_outcome import RoundOutcome
from aggregator.sessions import SiteSession, frame_of
from aggregator.shelf import Content, HeldContent
from privacy.errors import PeerError, Reason
from privacy.secagg.commands import UploadCompleted
from privacy.secagg.messages import (
    AbortSignature,
    DealtShares,
    Fingerprint,
    GraphReveal,
    SurvivorSignature,
    UnmaskShares,
)
from tidegate.messages import (
    AttemptFailed,
    JobEnded,
    JobOffer,
    JobReply,
    NotReady,
    Ready,
    SiteMessage,
)

_SEED_BYTES = 32


class JobRun:
    """See the module."""

    def __init__(self, job: Job, around: Surroundings, changed: Callable[[], None]) -> None:
        """Prepare a job.

        Args:
            job: What to run.
            around: See ``Surroundings``.
            changed: Called whenever something that is shown has changed.

        Raises:
            UsageError: The job asks for cohorts that the manifest does not allow.
        """
        self.job = job
        self.around = around
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._members = around.members
        self.rule = cohort_rule(job.file, around.sealed.manifest, around.graph_rule)
        self.progress = JobProgress.from_json(job.progress, self._members.values())
        self.sites = Participants(
            self._members, self.rule, lambda site: around.sessions.get(site) is not None
        )
        self._offer = frame_of(
            JobOffer(
                job.job_id,
                job.job_toml,
                job.app_sha256,
                len(job.app),
                job.vector_spec,
                job.encoding,
                job.evaluation_encoding,
            )
        )
        self._app_offer = f"{job.job_id}/app"
        self._live: LiveRound | None = None
        self._enough: asyncio.Future[list[Fingerprint]] | None = None
        self._failure: PeerError | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._began_s = time.monotonic()

    @property
    def failure(self) -> PeerError | None:
        """Why the job is given up; None while it goes on. May be read from any thread."""
        return self._failure

    @property
    def elapsed_s(self) -> float:
        """Seconds that the job has run, over all restarts."""
        return self.job.elapsed_s + time.monotonic() - self._began_s

    # --- life of the job --------------------------------------------------------------------------

    def start(self) -> None:
        """Offer the job to all connected members."""
        app: dict[bytes, Content] = {self.job.app_sha256: HeldContent(self.job.app)}
        self.around.shelf.offer(self._app_offer, app, self._members)
        for session in self.around.sessions.live():
            self.site_connected(session)

    def end(self, message: JobEnded) -> None:
        """Tell the sites that the job is over, and let go of everything."""
        frame = frame_of(message)
        for site in self._members:
            self.send_frame(site, frame)
        if self._looking is not None:
            self._looking.cancel()
        self.around.shelf.withdraw(self._app_offer)
        self.around.shelf.withdraw(self.job.job_id)
        if self._live is not None:
            self._live.close()
        self.fail(PeerError(Reason.STOPPED, message.detail or message.state))

    def fail(self, why: PeerError) -> None:
        """Wake the job's thread with an error, now and whenever it asks again."""
        self._failure = self._failure or why
        if self._live is not None:
            self._live.stop(self._failure)
        if self._enough is not None and not self._enough.done():
            self._enough.set_exception(self._failure)

    async def wait_for_cohort(self) -> list[Fingerprint]:
        """Return the connected sites that accepted the job, once there are enough."""
        if self._failure is not None:
            raise self._failure
        self._enough = self._loop.create_future()
        self._look_for_cohort()
        return await self._enough

    async def run_round(
        self,
        order: RoundOrder,
        model: ModelVersion,
        contents: Mapping[bytes, Content],
        passed_over: Container[Fingerprint],
    ) -> RoundOutcome:
        """Run one round from a model version.

        Args:
            order: Which, and what for.
            model: What to train from.
            contents: What the sites may fetch meanwhile, by digest.
            passed_over: Sites that the strategy knew of and did not sample.

        Raises:
            PeerError: It was given up, or the job was stopped.
        """
        if self._failure is not None:
            raise self._failure
        self.around.shelf.offer(self.job.job_id, contents, self.sites.accepted)
        config = RoundConfig(
            order.number,
            self.rule,
            self.around.jobs.next_attempt(self.job.job_id, order.number),
            self.job.file.round.max_attempts,
            secrets.token_bytes(_SEED_BYTES),
        )
        self._live = LiveRound(self, config, model, order)
        return await self._live.run([site for site in self.sites.here() if site not in passed_over])

    def committed(self, round_number: int, metrics: dict[str, float]) -> None:
        """Show a round that is durable."""
        self.progress.metrics = metrics
        self.progress.committed(round_number, time.time())
        self.changed()

    def note_wraps(self, rate: float) -> None:
        """Show how much of the newest sum is likely to have wrapped around its ring."""
        self.progress.wrap_rate = rate

    def release(self, attempt: LiveAttempt, is_last: bool) -> None:  # noqa: FBT001 - by call_soon
        """Drop the uploads of an attempt once they are folded; the last round's may be kept."""
        folder = self.around.kept_folder
        if folder is not None and is_last:
            self.around.spool.keep(attempt.ctx, folder)
        self.around.spool.discard(attempt.ctx)

    # --- what sites do ----------------------------------------------------------------------------

    def site_connected(self, session: SiteSession) -> None:
        """Offer the job to a member, unless it says that it accepted already."""
        site = session.site.fingerprint
        if site not in self._members or self.sites.is_out(site):
            return
        if self.job.job_id in session.hello.jobs:
            self._accept(site)
        else:
            self._offer_to(site)

    def site_disconnected(self, session: SiteSession, why: PeerError) -> None:
        """Go on without a site; it may come back, unless it was revoked."""
        site = session.site.fingerprint
        if self.sites.leave(site):
            self._feed(SiteLeft(site, why.reason))
        if why.reason is Reason.REVOKED and site in self._members:
            self._exclude(site, str(why), why.reason)
        self._look_for_cohort()

    def site_said(self, session: SiteSession, message: SiteMessage) -> None:
        """Take a message about this job.

        Raises:
            PeerError: It is dropped.
        """
        site = session.site.fingerprint
        if site not in self._members:
            raise PeerError(Reason.POLICY, "the site is no member of the sealed manifest")
        match message:
            case JobReply():
                self._replied(site, message)
            case Ready():
                self._ready(site, message)
            case NotReady():
                self._not_ready(site, message)
            case (
                AttemptFailed()
                | AbortSignature()
                | GraphReveal()
                | DealtShares()
                | SurvivorSignature()
                | UnmaskShares()
            ):
                if self._live is None:
                    raise PeerError(Reason.WRONG_CONTEXT, "a frame before the first round")
                self._live.take(site, message)
            case _:
                raise PeerError(Reason.MALFORMED, "not a message about a job")

    def upload_completed(
        self, site: Fingerprint, ctx: bytes, sha256: bytes, epsilon_spent: float
    ) -> None:
        """Take note of a whole upload, and of what it cost the site.

        Raises:
            PeerError: The attempt does not want it any more.
        """
        if self._live is None:
            raise PeerError(Reason.WRONG_CONTEXT, "an upload before the first round")
        number = self._live.attempt_of(ctx)
        tally = self.progress.sites[self._members[site]]
        tally.epsilon = max(tally.epsilon, epsilon_spent)
        self._feed(Exchanged(number, UploadCompleted(site, sha256)))

    def bundles_arrived(self, site: Fingerprint) -> None:
        """Count a site as ready that only lacked a key bundle."""
        if site in self.sites.lack_bundle:
            self.sites.lack_bundle.discard(site)
            self._feed(SiteReady(site))

    def _offer_to(self, site: Fingerprint) -> None:
        self.sites.offer(site, time.time())
        self.send_frame(site, self._offer)
        # Who was offered the job last decides how long is waited: one timer, however many offers.
        if self._looking is not None:
            self._looking.cancel()
        delay_s = self.rule.deadline_s + 0.01
        self._looking = self._loop.call_later(delay_s, self._look_for_cohort)

    def _replied(self, site: Fingerprint, reply: JobReply) -> None:
        if reply.job_id != self.job.job_id:
            raise PeerError(Reason.UNKNOWN_JOB, f"no such offer: {reply.job_id}")
        if reply.accepted:
            self._accept(site)
        else:
            self._exclude(site, f"{reply.reason}: {reply.detail}", Reason(reply.reason))

    def _accept(self, site: Fingerprint) -> None:
        self.sites.accept(site)
        self.progress.sites[self._members[site]].state = "ready"
        self._look_for_cohort()
        self._feed(SiteJoined(site))
        self.changed()

    def _exclude(self, site: Fingerprint, why: str, reason: Reason) -> None:
        """Go on without a site for the rest of the job; give up where too few are left."""
        name = self._members[site]
        tally = self.progress.sites[name]
        tally.state, tally.detail = "refused", why
        self.say(f"{name} takes no part: {why}")
        shortage = self.sites.exclude(site, why)
        if shortage:
            self.fail(PeerError(reason, shortage))
        self._look_for_cohort()
        self.changed()

    def _ready(self, site: Fingerprint, message: Ready) -> None:
        if message.job_id != self.job.job_id:
            raise PeerError(Reason.UNKNOWN_JOB, f"no such job runs: {message.job_id}")
        tally = self.progress.sites[self._members[site]]
        tally.epsilon = max(tally.epsilon, message.epsilon_spent)
        tally.train_s += message.train_s
        tally.exchange_s += message.exchange_s
        tally.wait_s += message.wait_s
        if self._live is None or not self._live.is_at(message.round, message.version):
            return
        if self.around.stock.count(site, time.time()) == 0:
            self.sites.lack_bundle.add(site)
            return
        self._feed(SiteReady(site))

    def _not_ready(self, site: Fingerprint, message: NotReady) -> None:
        if message.job_id != self.job.job_id:
            raise PeerError(Reason.UNKNOWN_JOB, f"no such job runs: {message.job_id}")
        if message.reason == Reason.UNKNOWN_JOB:
            # It forgot the job, for instance because its folder was set up anew: offer it again,
            # once for each time that it had accepted.
            if self.sites.leave(site):
                self._feed(SiteLeft(site, Reason.UNKNOWN_JOB))
                self._offer_to(site)
            return
        name = self._members[site]
        tally = self.progress.sites[name]
        tally.epsilon = max(tally.epsilon, message.epsilon_spent)
        why = f"{message.reason}: {message.detail}"
        tally.detail = why
        self.say(f"{name} is not ready: {why}")
        # A budget does not come back, and a policy does not change within a job.
        final = message.reason in (Reason.BUDGET_EXHAUSTED, Reason.POLICY)
        if final:
            self._exclude(site, why, Reason(message.reason))
        if self._live is not None and self._live.is_at(message.round):
            self._feed(SiteNotReady(site, why, final=final))

    def _look_for_cohort(self) -> None:
        if self._enough is None or self._enough.done():
            return
        self.progress.stalled = self.sites.shortage()
        if self.sites.may_begin(time.time()):
            self._enough.set_result(self.sites.here())
        self.changed()

    def _feed(self, event: RoundEvent) -> None:
        if self._live is not None:
            self._live.feed(event)

    # --- what a round uses of its job -------------------------------------------------------------

    def send_frame(self, site: Fingerprint, frame: bytes) -> bool:
        """Send a serialised message; False where the site has no session."""
        session = self.around.sessions.get(site)
        if session is None:
            return False
        size = session.send_frame(frame)
        self.progress.sites[self._members[site]].bytes_down += size
        return True

    def changed(self) -> None:
        """Tell those who watch."""
        self._changed()

    def say(self, line: str) -> None:
        """Add a line to the job's log."""
        self.progress.say(line, time.time())
