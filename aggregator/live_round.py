"""One round on the event loop: its timer, its frames, its attempts, and the sum at its end.

The shell around ``round.Round``: it makes attempts durable before they are acted on, gives frames
to sessions, folds uploads, and hands a finished sum on. Blocks for one small transaction at most.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from sqlalchemy.exc import SQLAlchemyError

from aggregator.broadcast import ModelVersion
from aggregator.jobs import Job
from aggregator.live_attempt import AttemptPlace, LiveAttempt, Surroundings, open_attempt
from aggregator.log import LOGGER
from aggregator.participants import Participants
from aggregator.progress import JobProgress
from aggregator.round import Round, RoundConfig, SiteState
from aggregator.round_events import (
    AttemptOpened,
    AttemptOver,
    DeadlinePassed,
    Exchange,
    Exchanged,
    OpenAttempt,
    RoundCommand,
    RoundDone,
    RoundEvent,
    RoundFailed,
    SiteLeft,
    Train,
)
from aggregator.secure_rounds import TRAINING, Instruction
from aggregator.sessions import frame_of
from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg.commands import (
    Accusation,
    Blame,
    FoldUpload,
    SendTo,
    ServerCommand,
    SiteLost,
    UnmaskSum,
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
from tidegate.messages import AggregatorMessage, AttemptFailed, AttemptResult, TrainRequest

AttemptMessage = AttemptFailed | AbortSignature | DealtShares | SurvivorSignature | UnmaskShares
"""What a site says about one attempt, named by its ctx."""


@dataclass(frozen=True)
class RoundOrder:
    """What a round of the job is for.

    Attributes:
        number: The exchange's, on the wire: strictly increasing.
        shown: The number of training rounds that are done with it, for people.
        instruction: Purpose and settings.
    """

    number: int
    shown: int
    instruction: Instruction = TRAINING


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


class RoundHost(Protocol):
    """The job that a round is of, as far as the round uses it; ``job_run.JobRun`` is one."""

    job: Job
    around: Surroundings
    sites: Participants
    progress: JobProgress

    @property
    def elapsed_s(self) -> float:
        """Seconds that the job has run, over all restarts."""
        ...

    def send_frame(self, site: Fingerprint, frame: bytes) -> bool:
        """Send a serialised message; False where the site has no session."""
        ...

    def say(self, line: str) -> None:
        """Add a line to the job's log."""

    def changed(self) -> None:
        """Note that something that is shown has changed."""

    def fail(self, why: PeerError) -> None:
        """Give the job up."""


class LiveRound:
    """See the module.

    Attributes:
        model: The version that sites train from.
        number: The round's.
    """

    def __init__(
        self, host: RoundHost, config: RoundConfig, model: ModelVersion, order: RoundOrder
    ) -> None:
        """Prepare a round; ``run`` begins it."""
        self.model = model
        self.number = config.round
        self._order = order
        self._host = host
        self._around = host.around
        self._members = host.around.members
        self._round = Round(config, self._members)
        self._train_frame = frame_of(
            TrainRequest(
                host.job.job_id,
                config.round,
                model.version,
                model.sha256,
                len(model.data),
                model.chain_head,
                order.instruction.purpose,
                order.instruction.config,
            )
        )
        self._loop = asyncio.get_running_loop()
        self._outcome: asyncio.Future[RoundOutcome] = self._loop.create_future()
        self._attempt: LiveAttempt | None = None
        self._opened = 1  # the number of an exchange's first attempt
        self._events: deque[RoundEvent] = deque()
        self._busy = False
        self._stopped = False
        self._timer: tuple[float, asyncio.TimerHandle] | None = None
        self._sent: tuple[object, bytes] = (None, b"")

    async def run(self, present: Iterable[Fingerprint]) -> RoundOutcome:
        """Invite these sites and wait for the sum.

        Raises:
            PeerError: The round was given up, or stopped.
        """
        self._carry_out(self._round.begin(present, time.time()))
        self._drain()
        return await self._outcome

    def stop(self, why: PeerError) -> None:
        """Do nothing more, and wake who waits for the sum; an attempt is left to ``close``."""
        self._stopped = True
        self._disarm()
        if not self._outcome.done():
            self._outcome.set_exception(why)

    def close(self) -> None:
        """Drop what has arrived for a running attempt."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.give_up(self._around.spool)

    def is_at(self, round_number: int, version: int | None = None) -> bool:
        """Say whether this round goes on, has this number and, if given, trains from a version."""
        known = version is None or version == self.model.version
        return known and round_number == self.number and not self._stopped

    # --- events -----------------------------------------------------------------------------------

    def take(self, site: Fingerprint, message: AttemptMessage) -> None:
        """Take what a site says about an attempt.

        Raises:
            PeerError: WRONG_CONTEXT, the attempt is over.
        """
        current = self._attempt is not None and self._attempt.ctx == message.ctx
        match message:
            case AttemptFailed(_, reason, detail):
                if current:
                    self._host.say(f"{self._members[site]} left the attempt: {reason}: {detail}")
                    self.feed(Exchanged(SiteLost(site, Reason(reason))))
            case AbortSignature() if not current:
                pass  # the answer to an AbortRequest, after the attempt is over
            case _:
                if not current:
                    raise PeerError(Reason.WRONG_CONTEXT, "a frame of an attempt that is over")
                self.feed(Exchanged(message))

    def check_upload(self, ctx: bytes) -> None:
        """Refuse an upload for another attempt than the running one: WRONG_CONTEXT."""
        if self._attempt is None or self._attempt.ctx != ctx:
            raise PeerError(Reason.WRONG_CONTEXT, "an upload for an attempt that is over")

    def feed(self, event: RoundEvent) -> None:
        """Give the round an event, and all that follow from it; one at a time."""
        if not self._stopped:
            self._events.append(event)
            self._drain()

    def _drain(self) -> None:
        if self._busy:
            return
        self._busy = True
        try:
            while self._events and not self._stopped:
                self._carry_out(self._round.handle(self._events.popleft(), time.time()))
        except (UsageError, SQLAlchemyError) as error:
            # Our own fault or the disk's: the job ends, other jobs and all sessions live on.
            LOGGER.exception("job %s cannot go on", self._host.job.job_id)
            self._host.fail(PeerError(Reason.INTERNAL, str(error)))
        finally:
            self._events.clear()
            self._busy = False
            self._settle()

    def _settle(self) -> None:
        """Keep the timer and what is shown up to date."""
        deadline_s = None if self._stopped else self._round.next_deadline_s()
        if deadline_s is None:
            self._disarm()
        elif self._timer is None or self._timer[0] != deadline_s:
            self._disarm()
            delay_s = max(0.0, deadline_s - time.time())
            handle = self._loop.call_later(delay_s, self._on_deadline)
            self._timer = (deadline_s, handle)
        if not self._stopped:
            progress = self._host.progress
            progress.stalled = self._round.waiting_for()
            for site, (state, why) in self._round.states().items():
                tally = progress.sites[self._members[site]]
                tally.state, tally.detail = str(state), why
        self._host.changed()

    def _on_deadline(self) -> None:
        self._timer = None
        self.feed(DeadlinePassed())

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer[1].cancel()
            self._timer = None

    # --- commands ---------------------------------------------------------------------------------

    def _carry_out(self, commands: Iterable[RoundCommand]) -> None:
        for command in commands:
            match command:
                case Train(sites):
                    for site in sites:
                        self._host.sites.lack_bundle.discard(site)
                        if not self._host.send_frame(site, self._train_frame):
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
                    self._host.fail(PeerError(reason, message))

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
            case UnmaskSum(terms, surplus_seeds):
                attempt.terms, attempt.surplus_seeds = terms, surplus_seeds
            case Blame(site, reason, message):
                LOGGER.warning("site %s blamed: %s: %s", self._members[site], reason, message)
                self._host.say(f"{self._members[site]} was caught: {reason}: {message}")
            case Accusation(by, against):
                pair = f"{self._members[by]} says that {self._members[against]} dealt a bad share"
                LOGGER.warning("%s: one of the two is wrong", pair)
                self._host.say(f"{pair}: nothing is proven, look at both")
            case _:
                pass

    def _open_attempt(self, number: int, cohort: tuple[Fingerprint, ...]) -> ServerAttempt:
        where = AttemptPlace(self.number, number, self._order.instruction.purpose)
        self._say_who_is_late(len(cohort))
        # Numbers go on after a restart: what it cut off is counted too.
        self._host.progress.attempts_repeated += number - self._opened
        self._opened = number
        self._attempt, machine = open_attempt(
            self._around, self._host.job, self.model, where, cohort, time.time()
        )
        return machine

    def _say_who_is_late(self, cohort: int) -> None:
        """Name the sites that a cohort below its target goes on without."""
        rule, states = self._round.config.rule, self._round.states()
        late = [site for site, (state, _) in states.items() if state is SiteState.TRAINING]
        if late and cohort < rule.target_sites:
            names = ", ".join(sorted(self._members[site] for site in late))
            after = f"still training after {rule.deadline_s:g} s"
            self._host.say(f"round {self.number} goes on without {names}: {after}")

    def _finish(self, done: RoundDone) -> None:
        """Give the sites the result, and the sum to who waits for it."""
        attempt, progress = self._attempt, self._host.progress
        if attempt is None:
            raise RuntimeError("a round ended that had no attempt")
        names = tuple(self._members[site] for site in done.survivors)
        indices = attempt.indices(done.survivors)
        result = frame_of(AttemptResult(attempt.ctx, done.transcript_hash, indices))
        for site in attempt.members:
            self._host.send_frame(site, result)
            tally = progress.sites[self._members[site]]
            if site in done.survivors:
                tally.rounds_in += 1
            else:
                tally.dropped += 1
                why = self._round.states()[site][1]
                self._host.say(f"round {self.number}: {self._members[site]} dropped out: {why}")
        self._attempt = None
        progress.round = self._order.shown
        outcome = RoundOutcome(
            attempt, names, done.transcript_hash, progress.to_json(), self._host.elapsed_s
        )
        if not self._outcome.done():
            self._outcome.set_result(outcome)

    def _abort_attempt(self, number: int, why: str) -> None:
        job_id = self._host.job.job_id
        self._host.say(f"round {self.number}, attempt {number}: aborted: {why}")
        LOGGER.warning("job %s round %d attempt %d aborted: %s", job_id, self.number, number, why)
        self._host.progress.attempts_aborted += 1
        self.close()
        self._around.jobs.abort_attempt(job_id, (self.number, number), why, time.time())

    def _send(self, site: Fingerprint, message: AggregatorMessage) -> bool:
        """Send a message, serialised once for all sites that get the same one."""
        if self._sent[0] is not message:
            self._sent = (message, frame_of(message))
        return self._host.send_frame(site, self._sent[1])
