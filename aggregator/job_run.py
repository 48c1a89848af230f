"""One running job on the event loop: offers, rounds, attempts, and what sites say about them.

The shell around ``round.Round``: it makes attempts durable before they are acted on, gives frames
to sessions, folds uploads, keeps the timer, and hands a finished sum to the job's thread
(``runner``). All of it runs on the loop's thread and blocks for one small transaction at most.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field

from sqlalchemy.exc import SQLAlchemyError

from aggregator.broadcast import ModelVersion
from aggregator.cohort import CohortRule
from aggregator.jobs import Job
from aggregator.live_attempt import LiveAttempt, Surroundings, open_attempt
from aggregator.log import LOGGER
from aggregator.participants import Participants
from aggregator.progress import JobProgress
from aggregator.round import (
    AttemptOpened,
    AttemptOver,
    DeadlinePassed,
    Exchange,
    Exchanged,
    OpenAttempt,
    Round,
    RoundCommand,
    RoundConfig,
    RoundDone,
    RoundEvent,
    RoundFailed,
    SiteJoined,
    SiteLeft,
    SiteNotReady,
    SiteReady,
    Train,
)
from aggregator.sessions import SiteSession, frame_of
from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg.commands import (
    Blame,
    FoldUpload,
    SendTo,
    ServerCommand,
    SiteLost,
    UnmaskSum,
    UploadCompleted,
)
from privacy.secagg.messages import (
    AbortSignature,
    DealtShares,
    Fingerprint,
    Published,
    SurvivorSignature,
    UnmaskShares,
)
from privacy.secagg.server import ServerAttempt
from tidegate.messages import (
    AggregatorMessage,
    AttemptFailed,
    AttemptResult,
    JobEnded,
    JobOffer,
    JobReply,
    NotReady,
    Ready,
    SiteMessage,
    TrainRequest,
)


@dataclass(frozen=True)
class RoundOutcome:
    """A finished round, for the job's thread.

    Attributes:
        attempt: Its accumulator and mask terms; folds may still be running.
        survivors: Site ids in the sum.
        transcript_hash: Of the attempt.
        progress: JSON as of this round.
        elapsed_s: The job's running time so far.
    """

    attempt: LiveAttempt
    survivors: tuple[str, ...]
    transcript_hash: bytes
    progress: bytes = field(repr=False)
    elapsed_s: float


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
        manifest = around.sealed.manifest
        self.job = job
        self._around = around
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._members = around.members
        rules = job.file.round
        self.rule = CohortRule(
            manifest.colluders, manifest.min_survivors, rules.target_sites, rules.deadline_s
        )
        self.progress = JobProgress.from_json(job.progress, self._members.values())
        self._sites = Participants(
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
            )
        )
        self._round: Round | None = None
        self._model: ModelVersion | None = None
        self._train_frame = b""
        self._attempt: LiveAttempt | None = None
        self._outcome: asyncio.Future[RoundOutcome] | None = None
        self._enough: asyncio.Future[list[Fingerprint]] | None = None
        self._failure: PeerError | None = None
        self._events: deque[RoundEvent] = deque()
        self._busy = False
        self._timer: tuple[float, asyncio.TimerHandle] | None = None
        self._sent: tuple[object, bytes] = (None, b"")
        self._began_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds that the job has run, over all restarts."""
        return self.job.elapsed_s + time.monotonic() - self._began_s

    # --- life of the job --------------------------------------------------------------------------

    def start(self) -> None:
        """Offer the job to all connected members."""
        self._around.shelf.put(self.job.app_sha256, self.job.app, self._members)
        for session in self._around.sessions.live():
            self.site_connected(session)

    def end(self, message: JobEnded) -> None:
        """Tell the sites that the job is over, and let go of everything."""
        frame = frame_of(message)
        for site in self._members:
            self._send_frame(site, frame)
        self._close_attempt()
        self._around.shelf.withdraw(self.job.app_sha256)
        if self._model is not None:
            self._around.shelf.withdraw(self._model.sha256)
        self.fail(PeerError(Reason.STOPPED, message.detail or message.state))

    def fail(self, why: PeerError) -> None:
        """Wake the job's thread with an error, now and whenever it asks again."""
        self._failure = self._failure or why
        self._disarm()
        self._round = None
        for waiting in (self._outcome, self._enough):
            if waiting is not None and not waiting.done():
                waiting.set_exception(self._failure)

    async def wait_for_cohort(self) -> list[Fingerprint]:
        """Return the connected sites that accepted the job, once there are enough."""
        if self._failure is not None:
            raise self._failure
        self._enough = self._loop.create_future()
        self._look_for_cohort()
        return await self._enough

    async def run_round(
        self, round_number: int, model: ModelVersion, passed_over: Container[Fingerprint]
    ) -> RoundOutcome:
        """Run one round from a model version.

        Args:
            round_number: From 1.
            model: What to train from.
            passed_over: Sites that the strategy knew of and did not sample.

        Raises:
            PeerError: It was given up, or the job was stopped.
        """
        if self._failure is not None:
            raise self._failure
        job_id, shelf = self.job.job_id, self._around.shelf
        if self._model is not None and self._model.sha256 != model.sha256:
            shelf.withdraw(self._model.sha256)
        shelf.put(model.sha256, model.data, self._sites.accepted)
        self._model = model
        self._train_frame = frame_of(
            TrainRequest(
                job_id,
                round_number,
                model.version,
                model.sha256,
                len(model.data),
                model.chain_head,
            )
        )
        config = RoundConfig(
            round_number,
            self.rule,
            self._around.jobs.next_attempt(job_id, round_number),
            self.job.file.round.max_attempts,
        )
        self._round = Round(config, self._members)
        self._outcome = self._loop.create_future()
        present = [site for site in self._sites.here() if site not in passed_over]
        self._carry_out(self._round.begin(present, time.time()))
        self._drain()
        return await self._outcome

    def committed(self, round_number: int, metrics: dict[str, float]) -> None:
        """Show a round that is durable."""
        self.progress.metrics = metrics
        self.progress.committed(round_number, time.time())
        self._changed()

    def release(self, attempt: LiveAttempt) -> None:
        """Drop the uploads of an attempt once they are folded."""
        folder = self._around.kept_folder
        if folder is not None and self.progress.round == self.job.file.rounds:
            self._around.spool.keep(attempt.ctx, folder)
        self._around.spool.discard(attempt.ctx)

    # --- what sites do ----------------------------------------------------------------------------

    def site_connected(self, session: SiteSession) -> None:
        """Offer the job to a member, unless it says that it accepted already."""
        site = session.site.fingerprint
        if site not in self._members or self._sites.is_out(site):
            return
        if self.job.job_id in session.hello.jobs:
            self._accept(site)
        else:
            self._offer_to(site)

    def site_disconnected(self, session: SiteSession, why: PeerError) -> None:
        """Go on without a site; it may come back, unless it was revoked."""
        site = session.site.fingerprint
        if self._sites.leave(site):
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
            case AttemptFailed(ctx, reason, detail):
                if self._attempt is not None and self._attempt.ctx == ctx:
                    self._say(f"{self._members[site]} left the attempt: {reason}: {detail}")
                    self._feed(Exchanged(SiteLost(site, Reason(reason))))
            case AbortSignature(ctx) if self._attempt is None or ctx != self._attempt.ctx:
                pass  # the answer to an AbortRequest, after the attempt is over
            case DealtShares() | SurvivorSignature() | UnmaskShares() | AbortSignature():
                if self._attempt is None or message.ctx != self._attempt.ctx:
                    raise PeerError(Reason.WRONG_CONTEXT, "a frame of an attempt that is over")
                self._feed(Exchanged(message))
            case _:
                raise PeerError(Reason.MALFORMED, "not a message about a job")

    def upload_completed(
        self, site: Fingerprint, ctx: bytes, sha256: bytes, epsilon_spent: float
    ) -> None:
        """Take note of a whole upload, and of what it cost the site.

        Raises:
            PeerError: The attempt does not want it any more.
        """
        if self._attempt is None or self._attempt.ctx != ctx:
            raise PeerError(Reason.WRONG_CONTEXT, "an upload for an attempt that is over")
        tally = self.progress.sites[self._members[site]]
        tally.epsilon = max(tally.epsilon, epsilon_spent)
        self._feed(Exchanged(UploadCompleted(site, sha256)))

    def bundles_arrived(self, site: Fingerprint) -> None:
        """Count a site as ready that only lacked a key bundle."""
        if site in self._sites.lack_bundle:
            self._sites.lack_bundle.discard(site)
            self._feed(SiteReady(site))

    def _offer_to(self, site: Fingerprint) -> None:
        self._sites.offer(site, time.time())
        self._send_frame(site, self._offer)
        self._loop.call_later(self.rule.deadline_s + 0.01, self._look_for_cohort)

    def _replied(self, site: Fingerprint, reply: JobReply) -> None:
        if reply.job_id != self.job.job_id:
            raise PeerError(Reason.UNKNOWN_JOB, f"no such offer: {reply.job_id}")
        if reply.accepted:
            self._accept(site)
        else:
            self._exclude(site, f"{reply.reason}: {reply.detail}", Reason(reply.reason))

    def _accept(self, site: Fingerprint) -> None:
        self._sites.accept(site)
        self.progress.sites[self._members[site]].state = "ready"
        self._look_for_cohort()
        self._feed(SiteJoined(site))
        self._changed()

    def _exclude(self, site: Fingerprint, why: str, reason: Reason) -> None:
        """Go on without a site for the rest of the job; give up where too few are left."""
        name = self._members[site]
        tally = self.progress.sites[name]
        tally.state, tally.detail = "refused", why
        self._say(f"{name} takes no part: {why}")
        shortage = self._sites.exclude(site, why)
        if shortage:
            self.fail(PeerError(reason, shortage))
        self._look_for_cohort()
        self._changed()

    def _ready(self, site: Fingerprint, message: Ready) -> None:
        if message.job_id != self.job.job_id:
            raise PeerError(Reason.UNKNOWN_JOB, f"no such job runs: {message.job_id}")
        tally = self.progress.sites[self._members[site]]
        tally.epsilon = max(tally.epsilon, message.epsilon_spent)
        tally.train_s += message.train_s
        tally.exchange_s += message.exchange_s
        tally.wait_s += message.wait_s
        stale = self._model is None or message.version != self._model.version
        if stale or not self._is_current(message.round):
            return
        if self._around.stock.count(site, time.time()) == 0:
            self._sites.lack_bundle.add(site)
            return
        self._feed(SiteReady(site))

    def _not_ready(self, site: Fingerprint, message: NotReady) -> None:
        if message.job_id != self.job.job_id:
            raise PeerError(Reason.UNKNOWN_JOB, f"no such job runs: {message.job_id}")
        if message.reason == Reason.UNKNOWN_JOB:
            # It forgot the job, for instance because its folder was set up anew: offer it again.
            self._sites.leave(site)
            self._feed(SiteLeft(site, Reason.UNKNOWN_JOB))
            self._offer_to(site)
            return
        name = self._members[site]
        tally = self.progress.sites[name]
        tally.epsilon = max(tally.epsilon, message.epsilon_spent)
        why = f"{message.reason}: {message.detail}"
        tally.detail = why
        self._say(f"{name} is not ready: {why}")
        # A budget does not come back, and a policy does not change within a job.
        final = message.reason in (Reason.BUDGET_EXHAUSTED, Reason.POLICY)
        if final:
            self._exclude(site, why, Reason(message.reason))
        if self._is_current(message.round):
            self._feed(SiteNotReady(site, why, final=final))

    def _is_current(self, round_number: int) -> bool:
        return self._round is not None and self._round.config.round == round_number

    def _look_for_cohort(self) -> None:
        if self._enough is None or self._enough.done():
            return
        self.progress.stalled = self._sites.shortage()
        if self._sites.may_begin(time.time()):
            self._enough.set_result(self._sites.here())
        self._changed()

    # --- the round --------------------------------------------------------------------------------

    def _feed(self, event: RoundEvent) -> None:
        """Give the round an event, and all that follow from it; one at a time."""
        if self._round is not None:
            self._events.append(event)
            self._drain()

    def _drain(self) -> None:
        if self._busy:
            return
        self._busy = True
        try:
            while self._events and self._round is not None:
                self._carry_out(self._round.handle(self._events.popleft(), time.time()))
        except (UsageError, SQLAlchemyError) as error:
            # Our own fault or the disk's: the job ends, other jobs and all sessions live on.
            LOGGER.exception("job %s cannot go on", self.job.job_id)
            self.fail(PeerError(Reason.INTERNAL, str(error)))
        finally:
            self._events.clear()
            self._busy = False
            self._settle()

    def _settle(self) -> None:
        """Keep the timer and what is shown up to date."""
        current = self._round
        deadline_s = current.next_deadline_s() if current is not None else None
        if deadline_s is None:
            self._disarm()
        elif self._timer is None or self._timer[0] != deadline_s:
            self._disarm()
            delay_s = max(0.0, deadline_s - time.time())
            handle = self._loop.call_later(delay_s, self._on_deadline)
            self._timer = (deadline_s, handle)
        if current is not None:
            self.progress.stalled = current.waiting_for()
            for site, (state, why) in current.states().items():
                tally = self.progress.sites[self._members[site]]
                tally.state, tally.detail = str(state), why
        self._changed()

    def _on_deadline(self) -> None:
        self._timer = None
        self._feed(DeadlinePassed())

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer[1].cancel()
            self._timer = None

    def _carry_out(self, commands: Iterable[RoundCommand]) -> None:
        for command in commands:
            match command:
                case Train(sites):
                    for site in sites:
                        self._sites.lack_bundle.discard(site)
                        if not self._send_frame(site, self._train_frame):
                            self._events.append(SiteLeft(site, Reason.TIMEOUT))
                case OpenAttempt(attempt, cohort):
                    self._events.append(AttemptOpened(self._open_attempt(attempt, cohort)))
                case Exchange(inner):
                    self._exchange(inner)
                case AttemptOver(attempt, reason, message):
                    self._abort_attempt(attempt, f"{reason}: {message}")
                case RoundDone():
                    self._finish(command)
                case RoundFailed(reason, message):
                    self.fail(PeerError(reason, message))

    def _exchange(self, command: ServerCommand) -> None:
        attempt = self._attempt
        if attempt is None:
            return
        match command:
            case SendTo(site, message):
                # The result goes out in ``_finish``, with the survivors.
                if not isinstance(message, Published) and not self._send(site, message):
                    self._events.append(Exchanged(SiteLost(site, Reason.TIMEOUT)))
            case FoldUpload(sender):
                attempt.add(sender, self._around)
            case UnmaskSum(terms):
                attempt.terms = terms
            case Blame(site, reason, message):
                LOGGER.warning("site %s blamed: %s: %s", self._members[site], reason, message)
                self._say(f"{self._members[site]} was caught: {reason}: {message}")
            case _:
                pass

    def _open_attempt(self, number: int, cohort: tuple[Fingerprint, ...]) -> ServerAttempt:
        current, model = self._round, self._model
        if current is None or model is None:
            raise RuntimeError("an attempt without a round")
        where = (current.config.round, number)
        self._attempt, machine = open_attempt(
            self._around, self.job, model, where, cohort, time.time()
        )
        return machine

    def _finish(self, done: RoundDone) -> None:
        """Give the sites the result, and the sum to the job's thread."""
        attempt, current = self._attempt, self._round
        if attempt is None or current is None or self._outcome is None:
            raise RuntimeError("a round ended that had not begun")
        names = tuple(self._members[site] for site in done.survivors)
        indices = attempt.indices(done.survivors)
        result = frame_of(AttemptResult(attempt.ctx, done.transcript_hash, indices))
        for site in attempt.members:
            self._send_frame(site, result)
            tally = self.progress.sites[self._members[site]]
            if site in done.survivors:
                tally.rounds_in += 1
            else:
                tally.dropped += 1
        self._attempt = None
        self.progress.round = current.config.round
        outcome = RoundOutcome(
            attempt, names, done.transcript_hash, self.progress.to_json(), self.elapsed_s
        )
        if not self._outcome.done():
            self._outcome.set_result(outcome)

    def _abort_attempt(self, number: int, why: str) -> None:
        current = self._round
        round_number = current.config.round if current is not None else 0
        self._say(f"round {round_number}, attempt {number}: aborted: {why}")
        LOGGER.warning(
            "job %s round %d attempt %d aborted: %s", self.job.job_id, round_number, number, why
        )
        self.progress.attempts_aborted += 1
        self._close_attempt()
        self._around.jobs.abort_attempt(self.job.job_id, (round_number, number), why, time.time())

    def _close_attempt(self) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.give_up(self._around.spool)

    # --- small things -----------------------------------------------------------------------------

    def _send(self, site: Fingerprint, message: AggregatorMessage) -> bool:
        """Send a message, serialised once for all sites that get the same one."""
        if self._sent[0] is not message:
            self._sent = (message, frame_of(message))
        return self._send_frame(site, self._sent[1])

    def _send_frame(self, site: Fingerprint, frame: bytes) -> bool:
        session = self._around.sessions.get(site)
        if session is None:
            return False
        size = session.send_frame(frame)
        self.progress.sites[self._members[site]].bytes_down += size
        return True

    def _say(self, line: str) -> None:
        self.progress.say(line, time.time())
