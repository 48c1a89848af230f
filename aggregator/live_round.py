"""One round on the event loop: its timer, its frames, its attempts, and the sum at its end.

The shell around ``round.Round``: it makes attempts durable before they are acted on, gives frames
to sessions, folds uploads, and hands a finished sum on. Blocks for one small transaction at most.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from sqlalchemy.exc import SQLAlchemyError

from aggregator.broadcast import ModelVersion
from aggregator.jobs import ATTEMPT_ABORTED, ATTEMPT_UNUSED, Job
from aggregator.live_attempt import AttemptPlace, LiveAttempt, Surroundings, open_attempt
from aggregator.log import LOGGER
from aggregator.participants import Participants
from aggregator.progress import JobProgress
from aggregator.round import Round, RoundConfig, SiteState
from aggregator.round_events import (
    AttemptOpened,
    AttemptOver,
    AttemptUnused,
    DeadlinePassed,
    Exchange,
    Exchanged,
    OpenAttempt,
    RoundCommand,
    RoundDone,
    RoundEnd,
    RoundEvent,
    RoundFailed,
    SiteLeft,
    SumOpened,
    Tell,
    Train,
)
from aggregator.round_outcome import OpenedAttempt, RoundOutcome
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
    GraphReveal,
    Published,
    SurvivorSignature,
    UnmaskShares,
)
from privacy.secagg.server import ServerAttempt
from tidegate.broadcast import ContentName
from tidegate.messages import AggregatorMessage, AttemptFailed, AttemptResult, TrainRequest

AttemptMessage = (
    AttemptFailed | AbortSignature | GraphReveal | DealtShares | SurvivorSignature | UnmaskShares
)
"""What a site says about one attempt, named by its ctx."""


@dataclass(frozen=True)
class RoundOrder:
    """What a round of the job is for.

    Attributes:
        number: The exchange's, on the wire: strictly increasing.
        shown: The number of training rounds that are done with it, for people.
        log: Names the log of versions that late sites may go by.
        instruction: Purpose and settings.
    """

    number: int
    shown: int
    log: ContentName
    instruction: Instruction = TRAINING


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
                model.broadcast,
                model.chain_head,
                order.log,
                order.instruction.purpose,
                order.instruction.config,
                model.announcement,
            )
        )
        self._loop = asyncio.get_running_loop()
        self._outcome: asyncio.Future[RoundOutcome] = self._loop.create_future()
        self._attempts: dict[int, LiveAttempt] = {}
        self._aborted: dict[bytes, int] = {}
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
        """Do nothing more, and wake who waits for the sum; attempts are left to ``close``."""
        self._stopped = True
        self._disarm()
        if not self._outcome.done():
            self._outcome.set_exception(why)

    def close(self) -> None:
        """Drop what has arrived for attempts that are not done."""
        for number in list(self._attempts):
            self._attempts.pop(number).give_up(self._around.spool)

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
        number = self._number_of(message.ctx)
        match message:
            case AttemptFailed(_, reason, detail):
                if number is not None:
                    self._host.say(f"{self._members[site]} left the attempt: {reason}: {detail}")
                    self.feed(Exchanged(number, SiteLost(site, Reason(reason))))
            case AbortSignature() | SurvivorSignature() if number is None:
                # The answer to an AbortRequest, after the attempt is over: it may free somebody.
                if message.ctx in self._aborted:
                    self.feed(Exchanged(self._aborted[message.ctx], message))
            case _:
                if number is None:
                    raise PeerError(Reason.WRONG_CONTEXT, "a frame of an attempt that is over")
                self.feed(Exchanged(number, message))

    def attempt_of(self, ctx: bytes) -> int:
        """Return the number of the running attempt that an upload is for.

        Raises:
            PeerError: WRONG_CONTEXT, there is none.
        """
        number = self._number_of(ctx)
        if number is None:
            raise PeerError(Reason.WRONG_CONTEXT, "an upload for an attempt that is over")
        return number

    def _number_of(self, ctx: bytes) -> int | None:
        return next((n for n, attempt in self._attempts.items() if attempt.ctx == ctx), None)

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
            groups = self._round.groups()
            for site, (state, why) in self._round.states().items():
                tally = progress.sites[self._members[site]]
                tally.state, tally.detail = str(state), why
                tally.group = groups.get(site, 0)
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
                case Tell(site, messages):
                    for message in messages:
                        self._send(site, message)
                case OpenAttempt(attempt):
                    self._events.append(AttemptOpened(attempt, self._open_attempt(command)))
                case Exchange(attempt, inner):
                    self._exchange(attempt, inner)
                case _:
                    self._end(command)

    def _end(self, command: RoundEnd) -> None:
        match command:
            case AttemptOver(attempt, reason, message):
                self._abort_attempt(attempt, f"{reason}: {message}")
            case AttemptUnused(attempt):
                self._end_attempt(attempt, ATTEMPT_UNUSED, "too few groups opened")
            case SumOpened():
                self._tell_result(command)
            case RoundDone():
                self._finish(command)
            case RoundFailed(reason, message):
                self._host.fail(PeerError(reason, message))

    def _exchange(self, number: int, command: ServerCommand) -> None:
        attempt = self._attempts.get(number)
        if attempt is None:
            return
        match command:
            case SendTo(site, message):
                # The result goes out in ``_tell_result``, with the survivors.
                if not isinstance(message, Published) and not self._send(site, message):
                    self._events.append(Exchanged(number, SiteLost(site, Reason.TIMEOUT)))
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

    def _open_attempt(self, command: OpenAttempt) -> ServerAttempt:
        where = AttemptPlace(
            self.number, command.attempt, self._order.instruction.purpose, command.group
        )
        if command.group <= 1:
            self._begin_try(command.attempt)
        self._attempts[command.attempt], machine = open_attempt(
            self._around, self._host.job, self.model, where, command.cohort, time.time()
        )
        return machine

    def _begin_try(self, number: int) -> None:
        """Count a try at the round, however many groups it has: a site is in one of them."""
        self._say_who_is_late()
        # Numbers go on after a restart: what it cut off is counted too.
        each = self._round.config.rule.groups.count
        self._host.progress.attempts_repeated += -(-(number - self._opened) // each)
        self._opened = number

    def _say_who_is_late(self) -> None:
        """Name the sites that a cohort below its target goes on without."""
        rule, states = self._round.config.rule, self._round.states()
        late = [site for site, (state, _) in states.items() if state is SiteState.TRAINING]
        cohort = sum(state is SiteState.IN_COHORT for state, _ in states.values())
        if late and cohort < rule.target_sites:
            names = ", ".join(sorted(self._members[site] for site in late))
            after = f"still training after {rule.deadline_s:g} s"
            self._host.say(f"round {self.number} goes on without {names}: {after}")

    def _tell_result(self, opened: SumOpened) -> None:
        """Give an attempt's sites its result."""
        attempt = self._attempts[opened.attempt]
        indices = attempt.indices(opened.survivors)
        result = frame_of(AttemptResult(attempt.ctx, opened.transcript_hash, indices))
        for site in attempt.members:
            self._host.send_frame(site, result)

    def _finish(self, done: RoundDone) -> None:
        """Count each site's part, and give the sums to who waits for them."""
        progress = self._host.progress
        opened = []
        for sum_ in done.opened:
            attempt = self._attempts.pop(sum_.attempt)
            names = tuple(self._members[site] for site in sum_.survivors)
            opened.append(OpenedAttempt(attempt, names, sum_.transcript_hash))
            for site in attempt.members:
                if site in sum_.survivors:
                    progress.sites[self._members[site]].rounds_in += 1
                else:
                    self._count_dropped(site, self._round.states()[site][1])
        in_sums = {site for one in opened for site in one.attempt.members}
        for site in self._round.groups().keys() - in_sums:
            self._count_dropped(site, "its group's attempt failed")
        kept = progress.to_json(self._order.shown)  # durable with the round, shown after it
        outcome = RoundOutcome(tuple(opened), done.cohort, kept, self._host.elapsed_s)
        if not self._outcome.done():
            self._outcome.set_result(outcome)

    def _count_dropped(self, site: Fingerprint, why: str) -> None:
        self._host.progress.sites[self._members[site]].dropped += 1
        self._host.say(f"round {self.number}: {self._members[site]} dropped out: {why}")

    def _abort_attempt(self, number: int, why: str) -> None:
        job_id = self._host.job.job_id
        self._host.say(f"round {self.number}, attempt {number}: aborted: {why}")
        LOGGER.warning("job %s round %d attempt %d aborted: %s", job_id, self.number, number, why)
        self._host.progress.attempts_aborted += 1
        if number in self._attempts:
            self._aborted[self._attempts[number].ctx] = number
        self._end_attempt(number, ATTEMPT_ABORTED, why)

    def _end_attempt(self, number: int, how: str, why: str) -> None:
        """Let go of an attempt that gives nothing to the round."""
        attempt = self._attempts.pop(number, None)
        if attempt is not None:
            attempt.give_up(self._around.spool)
        where = (self.number, number)
        self._around.jobs.end_attempt(self._host.job.job_id, where, (how, why), time.time())

    def _send(self, site: Fingerprint, message: AggregatorMessage) -> bool:
        """Send a message, serialised once for all sites that get the same one."""
        if self._sent[0] is not message:
            self._sent = (message, frame_of(message))
        return self._host.send_frame(site, self._sent[1])
