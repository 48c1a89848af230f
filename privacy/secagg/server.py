"""One attempt of SA-1 at the aggregator: a state machine without I/O.

    Start ─ Roster (─ GraphReveal ─ GraphReveals) ─ DealtShares ─ ShareDelivery
          ─ UploadCompleted (fold) ─ SurvivorSet ─ SurvivorSignature ─ SurvivorQuorum
          ─ UnmaskShares ─ UnmaskSum, Publish

Each step ends when every live member has answered, or at its deadline with those who have; below
max(t, T, N_min) the attempt aborts with nothing revealed. A sparse cohort begins with step 0, the
reveals that its graph is drawn from, and every member must answer it. The honest aggregator gains
nothing from its own checks but to name a culprit: the sites do not trust it (``site.py``).
"""

from collections.abc import Callable, Collection, Iterable

from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg import server_steps, statements
from privacy.secagg.cohort import Cohort
from privacy.secagg.commands import (
    AbortAttempt,
    AggregatorMessage,
    GiveUp,
    Publish,
    ServerCommand,
    ServerEvent,
    SiteBack,
    SiteLost,
    SiteMessage,
    Start,
    Tick,
    UnmaskSum,
    UploadCompleted,
)
from privacy.secagg.messages import (
    AbortSignature,
    Fingerprint,
    GraphReveals,
    Published,
    RetryProof,
    RetryVote,
    ShareDelivery,
    SurvivorSet,
    UnmaskShares,
)
from privacy.secagg.retry import prove
from privacy.secagg.rules import ServerConfig, StepTimeouts
from privacy.secagg.server_state import NotDueError, Phase, ServerState
from privacy.secagg.site_steps import DealerError

__all__ = ["Phase", "ServerAttempt", "ServerConfig", "StepTimeouts"]


class ServerAttempt:
    """Take a cohort from its roster to an unmasked sum, or to an abort that reveals nothing.

    Deterministic: replaying the journal of events gives the same commands. Begins with ``Start``.
    The shell has checked that each message's ``sender`` is the site of the connection it came by.
    """

    def __init__(self, config: ServerConfig) -> None:
        """Check the cohort.

        Raises:
            UsageError: Cohort, plan or bundles break a rule that the sites would refuse.
        """
        self._state = ServerState(config)

    @property
    def cohort(self) -> Cohort:
        """U1, with its graph once that is drawn."""
        return self._state.cohort

    @property
    def phase(self) -> Phase:
        """Where the attempt stands."""
        return self._state.phase

    @property
    def is_over(self) -> bool:
        """Whether the sum is out or the attempt aborted."""
        return self._state.is_over

    @property
    def survivors(self) -> tuple[Fingerprint, ...]:
        """U3 once it is fixed, by fingerprint; else empty."""
        return self._state.sites(self._state.survivors)

    @property
    def may_have_charged(self) -> tuple[Fingerprint, ...]:
        """Who was asked for a masked update: a site is charged before it gives one."""
        return self._state.sites(self._state.dealt) if self._state.delivered else ()

    @property
    def votes(self) -> tuple[RetryVote, ...]:
        """What was signed for the retry rule so far: one vote a member, an abort before a U3."""
        return self._state.votes

    def proof_for(self, site: Fingerprint) -> RetryProof | None:
        """Return a proof that this attempt cannot release the site's update; None without A votes.

        Raises:
            PeerError: UNAUTHENTICATED, the site is no member.
        """
        return prove(self.cohort, self.votes, site)

    def next_deadline_s(self) -> float | None:
        """Return when to send ``Tick`` if nothing comes, Unix seconds; None if never."""
        return self._state.deadline_s

    def handle(self, event: ServerEvent, now_s: float) -> list[ServerCommand]:
        """Take one event at a time (Unix seconds) and give the commands it leads to, in order.

        Raises:
            PeerError: The frame is dropped and nothing changes: WRONG_CONTEXT, UNAUTHENTICATED (no
                member), STOPPED (a site that is out, or the attempt is over), REPLAY (not due).
        """
        match event:
            case Start():
                return self._start(now_s)
            case Tick() | GiveUp():
                return self._on_end_of_patience(event, now_s)
            case SiteLost():
                self._state.alive.discard(self.cohort.index_of(event.sender))
                return self._advance(now_s)
            case SiteBack():
                return self._state.latest(self.cohort.index_of(event.sender))
            case UploadCompleted():
                return self._on_upload(self.cohort.index_of(event.sender), event, now_s)
            case _:
                return self._on_message(event, now_s)

    def _on_end_of_patience(self, event: Tick | GiveUp, now_s: float) -> list[ServerCommand]:
        state = self._state
        if isinstance(event, GiveUp):
            return [] if self.is_over else self._abort(event.reason, event.message)
        late = state.deadline_s is not None and now_s >= state.deadline_s
        return self._advance(now_s, late=True) if late else []

    # --- what sites send -------------------------------------------------------------------------

    def _on_message(self, message: SiteMessage, now_s: float) -> list[ServerCommand]:
        self.cohort.check_ctx(message.ctx)
        index = self.cohort.index_of(message.sender)
        if not isinstance(message, AbortSignature):
            if index in self._state.out:
                raise PeerError(Reason.STOPPED, f"{self.cohort.name(index)} is out of the attempt")
            if self.phase is Phase.DONE and isinstance(message, UnmaskShares):
                return []  # Honest, and slower than the first t.
        return self._keep(index, lambda: self._state.take(index, message), now_s)

    def _on_upload(self, index: int, event: UploadCompleted, now_s: float) -> list[ServerCommand]:
        return self._keep(index, lambda: self._state.take_upload(index, event.digest), now_s)

    def _keep(
        self, index: int, take: Callable[[], list[ServerCommand]], now_s: float
    ) -> list[ServerCommand]:
        """Take what a site sent, or blame the site for it, and see whether that ends the step."""
        try:
            commands = take()
        except NotDueError as error:
            raise PeerError(error.reason, str(error.args[0])) from error
        except PeerError as error:
            commands = self._state.blame(index, error)
        return commands + self._advance(now_s)

    # --- the steps -------------------------------------------------------------------------------

    def _start(self, now_s: float) -> list[ServerCommand]:
        if self.phase is not Phase.IDLE:
            raise UsageError("an attempt is started once")
        roster = self.cohort.roster
        first = Phase.REVEAL if self.cohort.is_sparse else Phase.SHARE_KEYS
        commands = self._enter(first, self.cohort.indices, lambda _: roster, now_s)
        return commands + self._advance(now_s)

    def _advance(self, now_s: float, *, late: bool = False) -> list[ServerCommand]:
        """Close the step that is awaited when nobody else can answer, or its time is up."""
        state = self._state
        if self.phase is Phase.IDLE or self.is_over:
            return []
        asked, answered, least, close = self._awaited()
        answered_now = frozenset(answered)
        possible = answered_now | (state.alive & frozenset(asked))
        lack = self._shortage(possible, least)
        if lack:
            return self._abort(Reason.BELOW_THRESHOLD, f"step {int(self.phase)}: {lack}")
        # Any t answers take the masks off; surplus noise goes with the seeds of each one more.
        early = self.phase is Phase.UNMASK and not state.surplus_due
        if not (early or late or possible == answered_now):
            return []
        lack = self._shortage(answered_now, least)
        if not lack:
            return close(now_s)
        if not late:
            return []  # Of step 4: t answers a secret are enough, but are not here yet.
        silent = self._blame_silent() if self.phase is Phase.REVEAL else []
        return silent + self._abort(Reason.TIMEOUT, f"step {int(self.phase)}, in time: {lack}")

    def _shortage(self, sites: Collection[int], least: int) -> str:
        """Say why these sites are too few to end the step with; empty if they are enough."""
        if len(sites) < least:
            return f"{len(sites)} sites are left, {least} are needed"
        if not self.cohort.is_sparse or self.phase is Phase.REVEAL:
            return ""
        owners = sites if self.phase is Phase.SHARE_KEYS else self._state.dealt
        summed = self.phase is Phase.MASKED_UPDATE
        return server_steps.ring_shortage(self.cohort, owners, sites, summed=summed)

    def _blame_silent(self) -> list[ServerCommand]:
        """Name who left the graph undrawn: whoever could choose to would else grind for free."""
        state = self._state
        error = PeerError(Reason.TIMEOUT, "it did not reveal its r in time: the attempt is burnt")
        silent = [i for i in state.cohort.indices if i not in state.reveals and i in state.alive]
        return [command for i in silent for command in state.blame(i, error)]

    def _awaited(
        self,
    ) -> tuple[Iterable[int], Iterable[int], int, Callable[[float], list[ServerCommand]]]:
        """Return for this phase: who was asked, who answered, how many must, what comes then."""
        state = self._state
        limits = state.cohort.limits
        match self.phase:
            case Phase.REVEAL:
                return state.cohort.indices, state.reveals, state.cohort.n, self._close_reveals
            case Phase.SHARE_KEYS:
                # One who dealt and is gone is left out of U2: nobody holds its shares yet.
                present = [i for i in state.dealt if i in state.alive]
                return state.cohort.indices, present, limits.floor, self._close_share_keys
            case Phase.MASKED_UPDATE:
                return state.dealt, state.uploads, limits.floor, self._close_masked_update
            case Phase.CONSISTENCY:
                return state.survivors, state.signed, limits.quorum, self._close_consistency
            case _:
                return state.signed, state.answers, limits.shares, self._close_unmask

    def _close_reveals(self, now_s: float) -> list[ServerCommand]:
        state = self._state
        values = tuple(state.reveals[i] for i in state.cohort.indices)
        state.cohort = state.cohort.with_seed(statements.graph_seed(state.cohort.rh, values))
        message = GraphReveals(state.cohort.ctx, values)
        return self._enter(Phase.SHARE_KEYS, state.cohort.indices, lambda _: message, now_s)

    def _close_share_keys(self, now_s: float) -> list[ServerCommand]:
        state = self._state
        state.dealt = {i: state.dealt[i] for i in sorted(state.dealt) if i in state.alive}
        ctx = state.cohort.ctx
        excluded = state.exclude("too late for U2", state.dealt)
        state.delivered = True
        return excluded + self._enter(
            Phase.MASKED_UPDATE,
            state.dealt,
            lambda i: ShareDelivery(
                ctx, server_steps.deliver(state.cohort, state.dealt, state.trees, i)
            ),
            now_s,
        )

    def _close_masked_update(self, now_s: float) -> list[ServerCommand]:
        state = self._state
        state.survivors = tuple(sorted(state.uploads))
        message = SurvivorSet(state.cohort.ctx, tuple(state.dealt), state.survivors)
        excluded = state.exclude("too late for U3", state.survivors)
        return excluded + self._enter(Phase.CONSISTENCY, state.survivors, lambda _: message, now_s)

    def _close_consistency(self, now_s: float) -> list[ServerCommand]:
        return self._enter(Phase.UNMASK, sorted(self._state.signed), self._state.quorum, now_s)

    def _close_unmask(self, _: float) -> list[ServerCommand]:
        state = self._state
        cohort = state.cohort
        try:
            terms = server_steps.unmask_terms(
                cohort,
                state.config.suite,
                state.dealt,
                frozenset(state.survivors),
                state.answers,
            )
        except DealerError as error:
            commands = state.blame(cohort.index_of(error.dealer), error)
            return commands + self._abort(error.reason, str(error.args[0]))
        transcript = statements.transcript_hash(
            cohort.ctx, cohort.rh, cohort.mh, state.dealt, state.survivors
        )
        state.phase = Phase.DONE
        state.deadline_s = None
        published = Published(cohort.ctx, transcript)
        return [
            UnmaskSum(terms, self._surplus_seeds()),
            Publish(transcript, self.survivors),
            *state.post(state.survivors, lambda _: published),
        ]

    def _enter(
        self,
        phase: Phase,
        recipients: Iterable[int],
        message: Callable[[int], AggregatorMessage],
        now_s: float,
    ) -> list[ServerCommand]:
        timeouts = self._state.config.timeouts
        seconds = {
            Phase.REVEAL: timeouts.reveal_s,
            Phase.SHARE_KEYS: timeouts.share_keys_s,
            Phase.MASKED_UPDATE: timeouts.masked_update_s,
            Phase.CONSISTENCY: timeouts.consistency_s,
            Phase.UNMASK: timeouts.unmask_s,
        }
        self._state.phase = phase
        self._state.deadline_s = now_s + seconds[phase]
        return self._state.post(recipients, message)

    def _abort(self, reason: Reason, message: str) -> list[ServerCommand]:
        state = self._state
        state.phase = Phase.ABORTED
        state.deadline_s = None
        return [
            AbortAttempt(reason, message, tuple(state.culprits)),
            *state.request_abort(message),
        ]

    def _surplus_seeds(self) -> tuple[tuple[bytes, ...], ...]:
        state = self._state
        if not state.surplus_due:
            return ()
        return tuple(answer.surplus_seeds for answer in state.answers.values())
