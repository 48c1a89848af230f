"""What the aggregator holds of one attempt: who said what, checked before it is kept.

When a step ends and what comes then is the business of ``server.py``.
"""

from collections.abc import Callable, Collection, Iterable
from enum import IntEnum

from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg import server_steps, statements
from privacy.secagg.cohort import Cohort, check_distinct_keys, check_plan_for_cohort
from privacy.secagg.commands import (
    Accusation,
    AggregatorMessage,
    Blame,
    FoldUpload,
    SendTo,
    ServerCommand,
    SiteMessage,
)
from privacy.secagg.merkle import MerkleTree
from privacy.secagg.messages import (
    AbortRequest,
    AbortSignature,
    DealtShares,
    Fingerprint,
    GraphReveal,
    RetryVote,
    Roster,
    SurvivorQuorum,
    SurvivorSignature,
    UnmaskShares,
)
from privacy.secagg.rules import ServerConfig
from privacy.surplus import levels_reached


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


class NotDueError(PeerError):
    """A frame to drop without blaming its sender."""


class ServerState:
    """The memory of one attempt at the aggregator. Sites go by their index in the roster.

    Attributes:
        cohort: U1; with its graph once that is drawn.
        phase: Where the attempt stands.
        alive: Who is connected and has not been caught.
        out: Who is out of the attempt, whatever it sends.
        culprits: Who was caught.
        reveals: Each r.
        dealt: What each dealt; U2, ascending, once step 1 is closed.
        trees: Each dealer's.
        delivered: Step 1 is closed and its shares went out: members of U2 may have been charged.
        uploads: Digests of the folded updates.
        survivors: U3 once it is fixed.
        signed: Signatures on U3.
        aborts: Signatures on the abort.
        answers: Shares that were released.
        deadline_s: When the step that is awaited ends, Unix seconds.
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
        self.config = config
        self.phase = Phase.IDLE
        self.alive = set(self.cohort.indices)
        self.out: set[int] = set()
        self.culprits: list[Fingerprint] = []
        self.reveals: dict[int, bytes] = {}
        self.dealt: dict[int, DealtShares] = {}
        self.trees: dict[int, MerkleTree] = {}
        self.delivered = False
        self.uploads: dict[int, bytes] = {}
        self.survivors: tuple[int, ...] = ()
        self.signed: dict[int, bytes] = {}
        self.aborts: dict[int, bytes] = {}
        self.answers: dict[int, UnmaskShares] = {}
        self.deadline_s: float | None = None
        self._latest: dict[int, AggregatorMessage] = {}

    @property
    def is_over(self) -> bool:
        """Whether the sum is out or the attempt aborted."""
        return self.phase >= Phase.DONE

    @property
    def votes(self) -> tuple[RetryVote, ...]:
        """What was signed for the retry rule so far: one vote a member, an abort before a U3."""
        dealt, survivors = tuple(self.dealt), self.survivors
        members = self.cohort.members
        aborts = [RetryVote(members[i - 1], signed) for i, signed in self.aborts.items()]
        signed_sets = [
            RetryVote(members[i - 1], signed, dealt, survivors)
            for i, signed in self.signed.items()
            if i not in self.aborts
        ]
        return (*aborts, *signed_sets)

    @property
    def surplus_due(self) -> int:
        """How many seeds each survivor reveals, now that U3 is fixed."""
        return levels_reached(self.config.surplus_levels, len(self.survivors))

    def sites(self, indices: Iterable[int]) -> tuple[Fingerprint, ...]:
        """Name sites by their fingerprints."""
        return tuple(self.cohort.members[i - 1] for i in indices)

    # --- what sites send -------------------------------------------------------------------------

    def take(self, index: int, message: SiteMessage) -> list[ServerCommand]:
        """Check a message and keep it.

        Raises:
            NotDueError: It is to be dropped; PeerError: Its sender is to blame.
        """
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

    def take_upload(self, index: int, digest: bytes) -> list[ServerCommand]:
        """Keep the digest of a whole upload; the same one again is nothing.

        Raises:
            PeerError: STOPPED, REPLAY: it is to be dropped; EQUIVOCATION: it differs from the first
                one, and its sender is to blame.
        """
        if index in self.uploads:
            if digest == self.uploads[index]:
                return []
            raise PeerError(Reason.EQUIVOCATION, "a second, different upload of one attempt")
        if index in self.out:
            raise NotDueError(Reason.STOPPED, f"{self.cohort.name(index)} is out of the attempt")
        if self.phase is not Phase.MASKED_UPDATE or index not in self.dealt:
            raise NotDueError(Reason.REPLAY, "an upload came too late, or from no member of U2")
        self.uploads[index] = digest
        return [FoldUpload(self.cohort.members[index - 1])]

    def _take_reveal(self, index: int, message: GraphReveal) -> list[ServerCommand]:
        if index in self.reveals:
            _check_same(self.reveals[index], message.value)
            return []
        self._check_due(Phase.REVEAL, self.alive, index)
        self.cohort.check_reveal(index, message.value)
        self.reveals[index] = message.value
        return []

    def _take_dealt(self, index: int, message: DealtShares) -> list[ServerCommand]:
        if index in self.dealt or self.phase > Phase.SHARE_KEYS:
            _check_same(self.dealt.get(index), message)
            return []
        self._check_due(Phase.SHARE_KEYS, self.alive, index)
        self.trees[index] = server_steps.check_dealt(
            self.cohort, self.config.suite, self.config.pinned, message
        )
        self.dealt[index] = message
        return []

    def _take_vote(self, index: int, message: SurvivorSignature) -> list[ServerCommand]:
        if index in self.signed:
            _check_same(self.signed[index], message.signature)
            return []
        if self.phase not in {Phase.CONSISTENCY, Phase.UNMASK, Phase.ABORTED}:
            raise NotDueError(Reason.REPLAY, f"{self.cohort.name(index)}: no vote is due")
        if index not in self.survivors:
            raise NotDueError(Reason.STOPPED, "the attempt proposed no U3 to this site")
        self._verify(index, message.signature, self._survivor_statement())
        self.signed[index] = message.signature
        # Late, but it may still answer: t answers are wanted, whoever gives them.
        return self.post([index], self.quorum) if self.phase is Phase.UNMASK else []

    def _take_answer(self, index: int, message: UnmaskShares) -> list[ServerCommand]:
        if index in self.answers:
            _check_same(self.answers[index], message)
            return []
        self._check_due(Phase.UNMASK, self.signed, index)
        server_steps.check_answer(
            self.cohort, self.dealt, frozenset(self.survivors), message, self.surplus_due
        )
        self.answers[index] = message
        return []

    def _take_abort(self, index: int, message: AbortSignature) -> list[ServerCommand]:
        if index in self.aborts:
            return []
        statement = statements.abort_statement(self.cohort.ctx, self.cohort.rh)
        self._verify(index, message.signature, statement)
        self.aborts[index] = message.signature
        self.out.add(index)
        self.alive.discard(index)
        if message.accused not in self.cohort.members:
            return []
        return [Accusation(message.sender, message.accused)]

    def _verify(self, index: int, signature: bytes, statement: bytes) -> None:
        spki = self.config.pinned[self.cohort.members[index - 1]]
        self.config.suite.verify(spki, signature, statement)

    def _check_due(self, phase: Phase, allowed: Collection[int], index: int) -> None:
        if self.is_over:
            raise NotDueError(Reason.STOPPED, "the attempt is over")
        if self.phase is not phase or index not in allowed:
            raise NotDueError(Reason.REPLAY, f"{self.cohort.name(index)}: this message is not due")

    def blame(self, index: int, error: PeerError) -> list[ServerCommand]:
        """Put a site out of the attempt for what it sent."""
        site = self.cohort.members[index - 1]
        self.out.add(index)
        self.alive.discard(index)
        if site not in self.culprits:  # an abort is read even of one who is out, and after the end
            self.culprits.append(site)
        return [Blame(site, error.reason, str(error.args[0]))]

    # --- what is sent to sites -------------------------------------------------------------------

    def latest(self, index: int) -> list[ServerCommand]:
        """Send a site that is back its latest message again; it lives on if it can."""
        if index not in self._latest:
            return []
        if index not in self.out and not self.is_over:
            self.alive.add(index)
        return [SendTo(self.cohort.members[index - 1], self._latest[index])]

    def request_abort(self, reason: str) -> list[ServerCommand]:
        """Ask everybody that heard of the attempt for its abort; the signatures are votes."""
        request = AbortRequest(self.cohort.ctx, reason)
        return self.post([i for i in self._latest if i not in self.aborts], lambda _: request)

    def quorum(self, _: int) -> SurvivorQuorum:
        """Return T of the signatures: a site verifies no more than it needs."""
        ctx, members = self.cohort.ctx, self.cohort.members
        signers = sorted(self.signed)[: self.cohort.limits.quorum]
        votes = tuple(SurvivorSignature(ctx, members[i - 1], self.signed[i]) for i in signers)
        return SurvivorQuorum(ctx, votes)

    def post(
        self, recipients: Iterable[int], message: Callable[[int], AggregatorMessage]
    ) -> list[ServerCommand]:
        """Send to the live ones; a lost one gets its latest message when it is back."""
        commands: list[ServerCommand] = []
        for index in recipients:
            self._latest[index] = message(index)
            if index in self.alive:
                commands.append(SendTo(self.cohort.members[index - 1], self._latest[index]))
        return commands

    def exclude(self, reason: str, kept: Collection[int]) -> list[ServerCommand]:
        """Tell every member that the attempt goes on without it; its abort counts as a vote."""
        left = [i for i in self._latest if i not in kept and i not in self.out]
        request = AbortRequest(self.cohort.ctx, reason)
        commands = self.post(left, lambda _: request)
        self.out.update(left)
        self.alive.difference_update(left)
        return commands

    def _survivor_statement(self) -> bytes:
        cohort = self.cohort
        return statements.survivor_statement(cohort.rh, cohort.mh, self.dealt, self.survivors)


def _check_same(before: object, again: object) -> None:
    if before is not None and before != again:
        raise PeerError(Reason.EQUIVOCATION, "a second, different answer to one step")
