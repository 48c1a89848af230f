"""One round at the aggregator: a state machine without I/O, clock or randomness.

    GATHER  --enough sites ready-->  OPENING  --attempts durable-->  EXCHANGE  --published-->  OVER
      ^                                                                 |
      +------------------------------ aborted --------------------------+

Sites train first and say when they are ready; out of the ready ones a cohort is cut, and only that
cohort runs the secure exchange (``privacy.secagg.server.ServerAttempt``, wrapped here). An abort
reveals nothing: the round gathers again, for the same model version, under a higher attempt number;
sites that were charged first get what frees them, where it is there (``retry_votes``).
A site that left comes back by joining. Tries are capped; what a round waits for is said in words.

Where the rule asks for groups, each try draws its cohort into groups anew, and each group is an
attempt with a number of its own: what holds for an attempt holds for every group by itself. A
group that fails leaves the round to the others while enough can open; else all are tried again.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from aggregator.cohort import CohortRule, choose, draw_groups, may_cut
from aggregator.group_attempt import GroupAttempt
from aggregator.retry_votes import FailedAttempts
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
    RoundEvent,
    RoundFailed,
    SiteJoined,
    SiteLeft,
    SiteNotReady,
    SiteReady,
    SumOpened,
    Tell,
    Train,
)
from privacy.errors import Reason
from privacy.secagg.commands import (
    AbortAttempt,
    Blame,
    GiveUp,
    ServerEvent,
    SiteBack,
    SiteLost,
    Start,
    Tick,
)
from privacy.secagg.messages import Fingerprint


class Phase(StrEnum):
    """Where a round stands."""

    GATHER = "gather"
    OPENING = "opening"
    EXCHANGE = "exchange"
    OVER = "over"


FIRST_PAUSE_S = 0.25
"""Seconds before the same cohort is tried again after an abort; doubles with each try."""

_MOST_DOUBLINGS = 20


class SiteState(StrEnum):
    """What a site does in this round; the words of the operator API."""

    TRAINING = "training"
    READY = "ready"
    IN_COHORT = "in-cohort"
    DROPPED = "dropped"
    REFUSED = "refused"
    ABSENT = "absent"


@dataclass(frozen=True)
class RoundConfig:
    """What fixes a round.

    Attributes:
        round: From 1.
        rule: When a cohort is cut.
        first_attempt: Number of the next attempt; higher than all that were made durable before.
        max_tries: Tries and fruitless gatherings after which the job gives up.
        seed: 32 random bytes, fresh for the round: groups are drawn by it.
    """

    round: int
    rule: CohortRule
    first_attempt: int
    max_tries: int
    seed: bytes = field(default=b"", repr=False)


@dataclass
class _Site:
    """What the round knows of a site."""

    state: SiteState
    why: str = ""
    final: bool = False
    caught: bool = False


@dataclass
class Round:
    """See the module. Every method of it is one event's work."""

    config: RoundConfig
    names: dict[Fingerprint, str]
    phase: Phase = Phase.GATHER
    _sites: dict[Fingerprint, _Site] = field(default_factory=dict)
    _groups: dict[int, GroupAttempt] = field(default_factory=dict)
    _number: int = 0
    _tries: int = 0
    _deadline_s: float | None = None
    _late: bool = False
    _cohort: frozenset[Fingerprint] = frozenset()
    _aborted_cohort: frozenset[Fingerprint] = frozenset()
    _pause_until_s: float | None = None
    _last_failure: str = ""
    _failed: FailedAttempts = field(default_factory=FailedAttempts)

    def begin(self, sites: Iterable[Fingerprint], now_s: float) -> list[RoundCommand]:
        """Invite the connected sites that accepted the job."""
        self._number = self.config.first_attempt - 1
        for site in sites:
            self._sites[site] = _Site(SiteState.TRAINING)
        return self._gather(now_s)

    def states(self) -> dict[Fingerprint, tuple[SiteState, str]]:
        """Return each site's state and, where there is one, the reason in words."""
        return {name: (site.state, site.why) for name, site in self._sites.items()}

    def groups(self) -> dict[Fingerprint, int]:
        """Return each site's group in this try, from 1; nothing where the cohort is not in groups.

        Those of the try that ended the round stay.
        """
        if self.config.rule.groups.count == 1:
            return {}
        tried = enumerate(self._groups.values(), start=1)
        return {site: index for index, group in tried for site in group.sites}

    def waiting_for(self) -> str:
        """Say in words what a round that gathers waits for; empty where it does not."""
        if self.phase is not Phase.GATHER:
            return ""
        ready, need = len(self._in(SiteState.READY)), self.config.rule.min_sites
        training = len(self._in(SiteState.TRAINING))
        if ready + training >= need:
            return ""
        return (
            f"STALLED: a cohort needs {need} sites; {ready} ready, {training} training"
            + "".join(
                f"; {self._name(site)}: {entry.state}{': ' + entry.why if entry.why else ''}"
                for site, entry in self._sites.items()
                if entry.state not in (SiteState.READY, SiteState.TRAINING)
            )
        )

    def next_deadline_s(self) -> float | None:
        """Return when to send ``DeadlinePassed`` if nothing comes; None if never."""
        if self.phase is Phase.EXCHANGE:
            due = [group.deadline_s for group in self._groups.values()]
        elif self.phase is Phase.GATHER:
            votes_s = self._failed.until_s if self._failed.waiting else None
            due = [self._pause_until_s, None if self._late else self._deadline_s, votes_s]
        else:
            return None
        return min((time_s for time_s in due if time_s is not None), default=None)

    def handle(self, event: RoundEvent, now_s: float) -> list[RoundCommand]:
        """Take one event and give the commands it leads to, to be carried out in order.

        Raises:
            PeerError: The attempt's machine refuses a frame; nothing changed.
        """
        if self.phase is Phase.OVER:
            return []
        commands: list[RoundCommand] = []
        match event:
            case SiteJoined(site):
                commands = self._joined(site, now_s)
            case SiteLeft(site, reason):
                commands = self._left(site, reason, now_s)
            case SiteReady(site):
                commands = self._ready(site, now_s)
            case SiteNotReady():
                commands = self._not_ready(event, now_s)
            case AttemptOpened():
                commands = self._opened(event, now_s)
            case Exchanged(attempt, inner):
                if self._failed.take(attempt, inner, now_s):
                    return self._free(now_s)
                commands = self._exchange(self._groups.get(attempt), inner, now_s)
            case DeadlinePassed():
                commands = self._deadline(now_s)
        return commands

    # --- gathering --------------------------------------------------------------------------------

    def _gather(self, now_s: float) -> list[RoundCommand]:
        self.phase = Phase.GATHER
        self._groups = {}
        self._cohort = frozenset()
        self._late = False
        self._deadline_s = now_s + self.config.rule.deadline_s
        here = [
            name
            for name, site in self._sites.items()
            if site.state is not SiteState.ABSENT and not site.final
        ]
        # Who was caught in this round sits the rest of it out, unless it cannot go on without.
        trusted = [name for name in here if not self._sites[name].caught]
        chosen = trusted if len(trusted) >= self.config.rule.min_sites else here
        invited = [name for name in chosen if self._sites[name].state is not SiteState.READY]
        for name in invited:
            self._sites[name].state, self._sites[name].why = SiteState.TRAINING, ""
        self._failed.hold_back(invited, here, now_s)
        asked = tuple(name for name in invited if name not in self._failed.waiting)
        return [Train(asked), *self._free(now_s), *self._cut(now_s)]

    def _free(self, now_s: float) -> list[RoundCommand]:
        """Tell who waits for a proof what frees it; when none can come, have it train anew."""
        waiting = self._failed.waiting
        if self.phase is not Phase.GATHER or not waiting:
            return []
        present = [n for n, site in self._sites.items() if site.state is not SiteState.ABSENT]
        over = now_s >= self._failed.until_s or not self._failed.votes_due(present)
        asked = [site for site in sorted(waiting) if over or self._failed.is_freed(site)]
        waiting.difference_update(asked)
        return [command for site in asked for command in self._ask(site, now_s)]

    def _ask(self, site: Fingerprint, now_s: float, *, back: bool = False) -> list[RoundCommand]:
        """Ask a site to train; first it gets what says that it need not."""
        told = self._failed.messages_for(site, now_s, back=back)
        return [*([Tell(site, told)] if told else []), Train((site,))]

    def _joined(self, site: Fingerprint, now_s: float) -> list[RoundCommand]:
        known = self._sites.get(site)
        if known is not None and known.final:
            return []
        if self.phase is not Phase.GATHER and site in self._cohort:
            self._sites[site].state = SiteState.IN_COHORT
            back = SiteBack(site)  # nothing while the attempt is opening
            return self._exchange(self._group_of(site), back, now_s)
        self._sites[site] = _Site(SiteState.TRAINING, caught=known is not None and known.caught)
        return self._ask(site, now_s, back=True)

    def _left(self, site: Fingerprint, reason: Reason, now_s: float) -> list[RoundCommand]:
        self._failed.waiting.discard(site)
        known = self._sites.get(site)
        if known is None:
            return []
        if not known.final:
            known.state, known.why = SiteState.ABSENT, str(reason)
        if self.phase is Phase.EXCHANGE and site in self._cohort:
            return self._exchange(self._group_of(site), SiteLost(site, reason), now_s)
        return self._cut(now_s)

    def _ready(self, site: Fingerprint, now_s: float) -> list[RoundCommand]:
        known = self._sites.get(site)
        in_attempt = self.phase is not Phase.GATHER and site in self._cohort
        if known is None or known.final or in_attempt:
            return []
        if known.state in (SiteState.ABSENT, SiteState.DROPPED):
            return []  # not asked: gone, or caught in this round
        known.state, known.why = SiteState.READY, ""
        self._failed.waiting.discard(site)  # it was not charged, and says so by itself
        return self._cut(now_s)

    def _not_ready(self, event: SiteNotReady, now_s: float) -> list[RoundCommand]:
        known = self._sites.setdefault(event.site, _Site(SiteState.REFUSED))
        known.state, known.why = SiteState.REFUSED, event.why
        known.final = known.final or event.final
        self._last_failure = f"{self._name(event.site)}: {event.why}"
        if self.phase is Phase.EXCHANGE and event.site in self._cohort:
            lost = SiteLost(event.site, Reason.TRAINER_FAILED)
            return self._exchange(self._group_of(event.site), lost, now_s)
        return self._cut(now_s)

    def _cut(self, now_s: float) -> list[RoundCommand]:
        """Open an attempt if the ready sites are a cohort; see that a round cannot hang."""
        if self.phase is not Phase.GATHER:
            return []
        ready, training = self._in(SiteState.READY), self._in(SiteState.TRAINING)
        if may_cut(ready, training, self.config.rule, late=self._late):
            if self._pause_until_s is not None and ready == self._aborted_cohort:
                return []
            return self._open(ready)
        refused = {n for n in self._in(SiteState.REFUSED) if not self._sites[n].final}
        here = len(ready) + len(refused)
        if training or not refused or here < self.config.rule.min_sites:
            return []
        # All that are here have answered, and too many of them failed: ask those once more.
        self._tries += 1
        if self._tries >= self.config.max_tries:
            return self._fail(Reason.TRAINER_FAILED, self._last_failure)
        return self._gather(now_s)

    def _open(self, ready: set[Fingerprint]) -> list[RoundCommand]:
        """Ask for an attempt of the cohort, or one for each group that it is drawn into."""
        self._pause_until_s = None
        late = tuple(sorted(self._failed.waiting))
        self._failed.waiting.clear()
        self.phase = Phase.OPENING
        self._tries += 1
        cohort = choose(ready, self.config.rule, self.config.seed, self._tries)
        self._cohort = frozenset(cohort)
        for site in cohort:
            self._sites[site].state = SiteState.IN_COHORT
        count = self.config.rule.groups.count
        commands: list[RoundCommand] = [Train(late)] if late else []
        drawn = draw_groups(cohort, count, self.config.seed, self._tries)
        for index, sites in enumerate(drawn, start=1):
            self._number += 1
            self._groups[self._number] = GroupAttempt(self._number, frozenset(sites))
            commands.append(OpenAttempt(self._number, sites, index if count > 1 else 0))
        return commands

    # --- exchange ---------------------------------------------------------------------------------

    def _opened(self, event: AttemptOpened, now_s: float) -> list[RoundCommand]:
        """Begin a group's attempt; the exchange of all begins with the last."""
        group = self._groups[event.attempt]
        group.machine = event.machine
        commands = self._step(group, Start(), now_s)
        for site in sorted(group.sites):  # whom it lost while it was made durable
            if self._sites[site].state is not SiteState.IN_COHORT:
                commands += self._step(group, SiteLost(site, Reason.TIMEOUT), now_s)
        if all(other.machine is not None for other in self._groups.values()):
            self.phase = Phase.EXCHANGE
        return commands + self._conclude(now_s)

    def _exchange(
        self, group: GroupAttempt | None, event: ServerEvent, now_s: float
    ) -> list[RoundCommand]:
        """Let a group's attempt work, and see what its end means for the round."""
        if group is None or group.end is not None:
            return []
        return self._step(group, event, now_s) + self._conclude(now_s)

    def _step(self, group: GroupAttempt, event: ServerEvent, now_s: float) -> list[RoundCommand]:
        if group.end is not None:
            return []
        commands: list[RoundCommand] = []
        for command in group.handle(event, now_s):
            if isinstance(command, Blame):
                self._drop(command.site, f"{command.reason}: {command.message}")
                self._sites[command.site].caught = True
            commands.append(Exchange(group.number, command))
        if isinstance(group.end, AbortAttempt):
            self._failed.add(group.number, group.machine)
            commands.append(AttemptOver(group.number, group.end.reason, group.end.message))
        elif group.end is not None:
            for site in group.sites - set(group.end.survivors):
                self._drop(site, self._sites[site].why or "did not answer in time")
            commands.append(group.end)
        return commands

    def _conclude(self, now_s: float) -> list[RoundCommand]:
        """End the round, or this try at it, as soon as it is known how it ends."""
        if self.phase is not Phase.EXCHANGE:
            return []
        ends = [group.end for group in self._groups.values()]
        failed = sum(isinstance(end, AbortAttempt) for end in ends)
        if len(ends) - failed < self.config.rule.groups.least_opened:
            return self._aborted(now_s)
        if None in ends:
            return []
        self.phase = Phase.OVER
        opened = tuple(end for end in ends if isinstance(end, SumOpened))
        return [RoundDone(opened, len(self._cohort))]

    def _aborted(self, now_s: float) -> list[RoundCommand]:
        """Give up all groups: those still at it are not to charge anybody for nothing."""
        groups = list(self._groups.values())
        number, end = next((g.number, g.end) for g in groups if isinstance(g.end, AbortAttempt))
        self._last_failure = f"attempt {number} was aborted: {end.reason}: {end.message}"
        give_up = GiveUp(end.reason, f"too few groups are left: {self._last_failure}")
        commands = [command for group in groups for command in self._step(group, give_up, now_s)]
        commands += [AttemptUnused(g.number) for g in groups if isinstance(g.end, SumOpened)]
        if self._tries >= self.config.max_tries:
            return [*commands, *self._fail(end.reason, self._last_failure)]
        # The same sites would most likely refuse again: leave them, or one that is missing, some
        # time. Another set of sites is tried at once.
        self._aborted_cohort = self._cohort
        pause_s = FIRST_PAUSE_S * 2 ** min(self._tries - 1, _MOST_DOUBLINGS)
        self._pause_until_s = now_s + min(pause_s, self.config.rule.deadline_s)
        return commands + self._gather(now_s)

    def _deadline(self, now_s: float) -> list[RoundCommand]:
        deadline_s = self.next_deadline_s()
        if deadline_s is None or now_s < deadline_s:
            return []
        if self.phase is Phase.EXCHANGE:
            groups = [(group, group.deadline_s) for group in self._groups.values()]
            late = [group for group, due_s in groups if due_s is not None and now_s >= due_s]
            commands = [command for group in late for command in self._step(group, Tick(), now_s)]
            return commands + self._conclude(now_s)
        if self._pause_until_s is not None and now_s >= self._pause_until_s:
            self._pause_until_s = None
        if self._deadline_s is not None and now_s >= self._deadline_s:
            self._late = True
        return [*self._free(now_s), *self._cut(now_s)]

    # --- small things -----------------------------------------------------------------------------

    def _fail(self, reason: Reason, detail: str) -> list[RoundCommand]:
        self.phase = Phase.OVER
        message = (
            f"round {self.config.round} was given up after {self._tries} tries"
            f" ([round] max_attempts); {detail}"
        )
        return [RoundFailed(reason, message)]

    def _drop(self, site: Fingerprint, why: str) -> None:
        known = self._sites[site]
        if known.state is SiteState.IN_COHORT:
            known.state, known.why = SiteState.DROPPED, why

    def _group_of(self, site: Fingerprint) -> GroupAttempt | None:
        return next((group for group in self._groups.values() if site in group.sites), None)

    def _in(self, state: SiteState) -> set[Fingerprint]:
        return {name for name, site in self._sites.items() if site.state is state}

    def _name(self, site: Fingerprint) -> str:
        return self.names.get(site, site.hex()[:16])
