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
from enum import IntEnum

from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg import server_steps, statements
from privacy.secagg.cohort import Cohort, check_distinct_keys, check_plan_for_cohort
from privacy.secagg.commands import (
    AbortAttempt,
    Accusation,
    AggregatorMessage,
    Blame,
    FoldUpload,
    GiveUp,
    Publish,
    SendTo,
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
from privacy.secagg.merkle import MerkleTree
from privacy.secagg.messages import (
    AbortRequest,
    AbortSignature,
    DealtShares,
    Fingerprint,
    GraphReveal,
    GraphReveals,
    Published,
    RetryProof,
    RetryVote,
    Roster,
    ShareDelivery,
    SurvivorQuorum,
    SurvivorSet,
    SurvivorSignature,
    UnmaskShares,
)
from privacy.secagg.retry import prove
from privacy.secagg.rules import ServerConfig, StepTimeouts
from privacy.secagg.site_steps import DealerError
from privacy.surplus import levels_reached

__all__ = ["Phase", "ServerAttempt", "ServerConfig", "StepTimeouts"]


class Phase(IntEnum):
    """Where the attempt stands: the first five after idle go by the step that is awaited."""

    IDLE = -1
    REVEAL = 0
    SHARE_KEYS = 1
    MASKED_UPDATE = 2
    CONSISTENCY = 3
    UNMASK = 4
    DONE = 5
    ABORTED = 6


class _NotDueError(PeerError):
    """A frame to drop without blaming its sender."""


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
        roster = Roster(config.context, config.bundles, config.plan)
        try:
            self.cohort = Cohort.of(roster, config.graph_rule)
            check_plan_for_cohort(config.plan, self.cohort.members)
            check_distinct_keys(config.suite, config.bundles)
        except PeerError as error:
            raise UsageError(f"this cohort cannot be cut: {error.args[0]}") from error
        self.phase = Phase.IDLE
        self._config = config
        self._alive = set(self.cohort.indices)
        self._out: set[int] = set()
        self._culprits: list[Fingerprint] = []
        self._reveals: dict[int, bytes] = {}
        self._dealt: dict[int, DealtShares] = {}
        self._trees: dict[int, MerkleTree] = {}
        self._uploads: dict[int, bytes] = {}
        self._survivors: tuple[int, ...] = ()
        self._votes: dict[int, bytes] = {}
        self._aborts: dict[int, bytes] = {}
        self._answers: dict[int, UnmaskShares] = {}
        self._latest: dict[int, AggregatorMessage] = {}
        self._deadline_s: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether the sum is out or the attempt aborted."""
        return self.phase >= Phase.DONE

    @property
    def survivors(self) -> tuple[Fingerprint, ...]:
        """U3 once it is fixed, by fingerprint; else empty."""
        return self._sites(self._survivors)

    @property
    def votes(self) -> tuple[RetryVote, ...]:
        """What was signed for the retry rule so far: one vote a member, an abort before a U3."""
        dealt, survivors = tuple(self._dealt), self._survivors
        members = self.cohort.members
        aborts = [RetryVote(members[i - 1], signed) for i, signed in self._aborts.items()]
        signed_sets = [
            RetryVote(members[i - 1], signed, dealt, survivors)
            for i, signed in self._votes.items()
            if i not in self._aborts
        ]
        return (*aborts, *signed_sets)

    def proof_for(self, site: Fingerprint) -> RetryProof | None:
        """Return a proof that this attempt cannot release the site's update; None without A votes.

        Raises:
            PeerError: UNAUTHENTICATED, the site is no member.
        """
        return prove(self.cohort, self.votes, site)

    def next_deadline_s(self) -> float | None:
        """Return when to send ``Tick`` if nothing comes, Unix seconds; None if never."""
        return self._deadline_s

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
                self._alive.discard(self.cohort.index_of(event.sender))
                return self._advance(now_s)
            case SiteBack():
                return self._on_back(self.cohort.index_of(event.sender))
            case UploadCompleted():
                return self._on_upload(self.cohort.index_of(event.sender), event, now_s)
            case _:
                return self._on_message(event, now_s)

    def _on_end_of_patience(self, event: Tick | GiveUp, now_s: float) -> list[ServerCommand]:
        if isinstance(event, GiveUp):
            return [] if self.is_over else self._abort(event.reason, event.message)
        late = self._deadline_s is not None and now_s >= self._deadline_s
        return self._advance(now_s, late=True) if late else []

    # --- what sites send -------------------------------------------------------------------------

    def _on_message(self, message: SiteMessage, now_s: float) -> list[ServerCommand]:
        self.cohort.check_ctx(message.ctx)
        index = self.cohort.index_of(message.sender)
        if not isinstance(message, AbortSignature):
            if index in self._out:
                raise PeerError(Reason.STOPPED, f"{self.cohort.name(index)} is out of the attempt")
            if self.phase is Phase.DONE and isinstance(message, UnmaskShares):
                return []  # Honest, and slower than the first t.
        try:
            commands = self._take(index, message)
        except _NotDueError as error:
            raise PeerError(error.reason, str(error.args[0])) from error
        except PeerError as error:
            commands = self._blame(index, error)
        return commands + self._advance(now_s)

    def _take(self, index: int, message: SiteMessage) -> list[ServerCommand]:
        match message:
            case GraphReveal():
                return self._take_reveal(index, message)
            case DealtShares():
                return self._take_dealt(index, message)
            case SurvivorSignature():
                return self._take_vote(index, message)
            case UnmaskShares():
                return self._take_answer(index, message)
            case AbortSignature():
                return self._take_abort(index, message)

    def _take_reveal(self, index: int, message: GraphReveal) -> list[ServerCommand]:
        if index in self._reveals:
            _check_same(self._reveals[index], message.value)
            return []
        self._check_due(Phase.REVEAL, self._alive, index)
        self.cohort.check_reveal(index, message.value)
        self._reveals[index] = message.value
        return []

    def _take_dealt(self, index: int, message: DealtShares) -> list[ServerCommand]:
        if index in self._dealt or self.phase > Phase.SHARE_KEYS:
            _check_same(self._dealt.get(index), message)
            return []
        self._check_due(Phase.SHARE_KEYS, self._alive, index)
        self._trees[index] = server_steps.check_dealt(
            self.cohort, self._config.suite, self._config.pinned, message
        )
        self._dealt[index] = message
        return []

    def _on_upload(self, index: int, event: UploadCompleted, now_s: float) -> list[ServerCommand]:
        if index in self._uploads:
            if event.digest == self._uploads[index]:
                return []
            error = PeerError(Reason.EQUIVOCATION, "a second, different upload of one attempt")
            return [*self._blame(index, error), *self._advance(now_s)]
        if index in self._out:
            raise PeerError(Reason.STOPPED, f"{self.cohort.name(index)} is out of the attempt")
        if self.phase is not Phase.MASKED_UPDATE or index not in self._dealt:
            raise PeerError(Reason.REPLAY, "an upload came too late, or from no member of U2")
        self._uploads[index] = event.digest
        sender = self.cohort.members[index - 1]
        return [FoldUpload(sender), *self._advance(now_s)]

    def _take_vote(self, index: int, message: SurvivorSignature) -> list[ServerCommand]:
        if index in self._votes:
            _check_same(self._votes[index], message.signature)
            return []
        if self.phase not in {Phase.CONSISTENCY, Phase.UNMASK, Phase.ABORTED}:
            raise _NotDueError(Reason.REPLAY, f"{self.cohort.name(index)}: no vote is due")
        if index not in self._survivors:
            raise _NotDueError(Reason.STOPPED, "the attempt proposed no U3 to this site")
        self._verify(index, message.signature, self._survivor_statement())
        self._votes[index] = message.signature
        # Late, but it may still answer: t answers are wanted, whoever gives them.
        return self._post([index], self._quorum) if self.phase is Phase.UNMASK else []

    def _take_answer(self, index: int, message: UnmaskShares) -> list[ServerCommand]:
        if index in self._answers:
            _check_same(self._answers[index], message)
            return []
        self._check_due(Phase.UNMASK, self._votes, index)
        server_steps.check_answer(
            self.cohort, self._dealt, frozenset(self._survivors), message, self._surplus_due
        )
        self._answers[index] = message
        return []

    def _take_abort(self, index: int, message: AbortSignature) -> list[ServerCommand]:
        if index in self._aborts:
            return []
        statement = statements.abort_statement(self.cohort.ctx, self.cohort.rh)
        self._verify(index, message.signature, statement)
        self._aborts[index] = message.signature
        self._out.add(index)
        self._alive.discard(index)
        if message.accused not in self.cohort.members:
            return []
        return [Accusation(message.sender, message.accused)]

    def _verify(self, index: int, signature: bytes, statement: bytes) -> None:
        spki = self._config.pinned[self.cohort.members[index - 1]]
        self._config.suite.verify(spki, signature, statement)

    def _check_due(self, phase: Phase, allowed: Collection[int], index: int) -> None:
        if self.is_over:
            raise _NotDueError(Reason.STOPPED, "the attempt is over")
        if self.phase is not phase or index not in allowed:
            raise _NotDueError(Reason.REPLAY, f"{self.cohort.name(index)}: this message is not due")

    def _blame(self, index: int, error: PeerError) -> list[ServerCommand]:
        site = self.cohort.members[index - 1]
        self._out.add(index)
        self._alive.discard(index)
        self._culprits.append(site)
        return [Blame(site, error.reason, str(error.args[0]))]

    def _on_back(self, index: int) -> list[ServerCommand]:
        if index in self._latest:
            if index not in self._out and not self.is_over:
                self._alive.add(index)
            return [SendTo(self.cohort.members[index - 1], self._latest[index])]
        return []

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
        if self.phase is Phase.IDLE or self.is_over:
            return []
        asked, answered, least, close = self._awaited()
        answered_now = frozenset(answered)
        possible = answered_now | (self._alive & frozenset(asked))
        lack = self._shortage(possible, least)
        if lack:
            return self._abort(Reason.BELOW_THRESHOLD, f"step {int(self.phase)}: {lack}")
        # Any t answers take the masks off; surplus noise goes with the seeds of each one more.
        early = self.phase is Phase.UNMASK and not self._surplus_due
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
        owners = sites if self.phase is Phase.SHARE_KEYS else self._dealt
        summed = self.phase is Phase.MASKED_UPDATE
        return server_steps.ring_shortage(self.cohort, owners, sites, summed=summed)

    def _blame_silent(self) -> list[ServerCommand]:
        """Name who left the graph undrawn: whoever could choose to would else grind for free."""
        error = PeerError(Reason.TIMEOUT, "it did not reveal its r in time: the attempt is burnt")
        silent = [i for i in self.cohort.indices if i not in self._reveals and i in self._alive]
        return [command for i in silent for command in self._blame(i, error)]

    def _awaited(
        self,
    ) -> tuple[Iterable[int], Iterable[int], int, Callable[[float], list[ServerCommand]]]:
        """Return for this phase: who was asked, who answered, how many must, what comes then."""
        limits = self.cohort.limits
        match self.phase:
            case Phase.REVEAL:
                return self.cohort.indices, self._reveals, self.cohort.n, self._close_reveals
            case Phase.SHARE_KEYS:
                # One who dealt and is gone is left out of U2: nobody holds its shares yet.
                present = [i for i in self._dealt if i in self._alive]
                return self.cohort.indices, present, limits.floor, self._close_share_keys
            case Phase.MASKED_UPDATE:
                return self._dealt, self._uploads, limits.floor, self._close_masked_update
            case Phase.CONSISTENCY:
                return self._survivors, self._votes, limits.quorum, self._close_consistency
            case _:
                return self._votes, self._answers, limits.shares, self._close_unmask

    def _close_reveals(self, now_s: float) -> list[ServerCommand]:
        values = tuple(self._reveals[i] for i in self.cohort.indices)
        self.cohort = self.cohort.with_seed(statements.graph_seed(self.cohort.rh, values))
        message = GraphReveals(self.cohort.ctx, values)
        return self._enter(Phase.SHARE_KEYS, self.cohort.indices, lambda _: message, now_s)

    def _close_share_keys(self, now_s: float) -> list[ServerCommand]:
        self._dealt = {i: self._dealt[i] for i in sorted(self._dealt) if i in self._alive}
        ctx = self.cohort.ctx
        excluded = self._exclude("too late for U2", self._dealt)
        return excluded + self._enter(
            Phase.MASKED_UPDATE,
            self._dealt,
            lambda i: ShareDelivery(
                ctx, server_steps.deliver(self.cohort, self._dealt, self._trees, i)
            ),
            now_s,
        )

    def _close_masked_update(self, now_s: float) -> list[ServerCommand]:
        self._survivors = tuple(sorted(self._uploads))
        message = SurvivorSet(self.cohort.ctx, tuple(self._dealt), self._survivors)
        excluded = self._exclude("too late for U3", self._survivors)
        return excluded + self._enter(Phase.CONSISTENCY, self._survivors, lambda _: message, now_s)

    def _close_consistency(self, now_s: float) -> list[ServerCommand]:
        return self._enter(Phase.UNMASK, sorted(self._votes), self._quorum, now_s)

    def _quorum(self, _: int) -> SurvivorQuorum:
        """Return T of the signatures: a site verifies no more than it needs."""
        ctx, members = self.cohort.ctx, self.cohort.members
        signers = sorted(self._votes)[: self.cohort.limits.quorum]
        votes = tuple(SurvivorSignature(ctx, members[i - 1], self._votes[i]) for i in signers)
        return SurvivorQuorum(ctx, votes)

    def _close_unmask(self, _: float) -> list[ServerCommand]:
        cohort = self.cohort
        try:
            terms = server_steps.unmask_terms(
                cohort,
                self._config.suite,
                self._dealt,
                frozenset(self._survivors),
                self._answers,
            )
        except DealerError as error:
            commands = self._blame(cohort.index_of(error.dealer), error)
            return commands + self._abort(error.reason, str(error.args[0]))
        transcript = statements.transcript_hash(
            cohort.ctx, cohort.rh, cohort.mh, self._dealt, self._survivors
        )
        self.phase = Phase.DONE
        self._deadline_s = None
        published = Published(cohort.ctx, transcript)
        return [
            UnmaskSum(terms, self._surplus_seeds()),
            Publish(transcript, self.survivors),
            *self._post(self._survivors, lambda _: published),
        ]

    def _enter(
        self,
        phase: Phase,
        recipients: Iterable[int],
        message: Callable[[int], AggregatorMessage],
        now_s: float,
    ) -> list[ServerCommand]:
        timeouts = self._config.timeouts
        seconds = {
            Phase.REVEAL: timeouts.reveal_s,
            Phase.SHARE_KEYS: timeouts.share_keys_s,
            Phase.MASKED_UPDATE: timeouts.masked_update_s,
            Phase.CONSISTENCY: timeouts.consistency_s,
            Phase.UNMASK: timeouts.unmask_s,
        }
        self.phase = phase
        self._deadline_s = now_s + seconds[phase]
        return self._post(recipients, message)

    def _post(
        self, recipients: Iterable[int], message: Callable[[int], AggregatorMessage]
    ) -> list[ServerCommand]:
        """Send to the live ones; a lost one gets its latest message when it is back."""
        commands: list[ServerCommand] = []
        for index in recipients:
            self._latest[index] = message(index)
            if index in self._alive:
                commands.append(SendTo(self.cohort.members[index - 1], self._latest[index]))
        return commands

    def _exclude(self, reason: str, kept: Collection[int]) -> list[ServerCommand]:
        """Tell every member that the attempt goes on without it; its abort counts as a vote."""
        left = [i for i in self._latest if i not in kept and i not in self._out]
        request = AbortRequest(self.cohort.ctx, reason)
        commands = self._post(left, lambda _: request)
        self._out.update(left)
        self._alive.difference_update(left)
        return commands

    def _abort(self, reason: Reason, message: str) -> list[ServerCommand]:
        self.phase = Phase.ABORTED
        self._deadline_s = None
        request = AbortRequest(self.cohort.ctx, message)
        members = [i for i in self._latest if i not in self._aborts]
        return [
            AbortAttempt(reason, message, tuple(self._culprits)),
            *self._post(members, lambda _: request),
        ]

    @property
    def _surplus_due(self) -> int:
        """How many seeds each survivor reveals, now that U3 is fixed."""
        return levels_reached(self._config.surplus_levels, len(self._survivors))

    def _surplus_seeds(self) -> tuple[tuple[bytes, ...], ...]:
        if not self._surplus_due:
            return ()
        return tuple(answer.surplus_seeds for answer in self._answers.values())

    def _survivor_statement(self) -> bytes:
        cohort = self.cohort
        return statements.survivor_statement(cohort.rh, cohort.mh, self._dealt, self._survivors)

    def _sites(self, indices: Iterable[int]) -> tuple[Fingerprint, ...]:
        return tuple(self.cohort.members[i - 1] for i in indices)


def _check_same(before: object, again: object) -> None:
    if before is not None and before != again:
        raise PeerError(Reason.EQUIVOCATION, "a second, different answer to one step")
