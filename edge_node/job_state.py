"""What a participant knows of one job, and of one attempt that it is in."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache

from edge_node.commands import AcceptedJob, RosterArrived, UpdateKey
from privacy.errors import PeerError, Reason, UsageError
from privacy.pipeline import EncodingPlan, Mode
from privacy.planning import encoding_for_version
from privacy.ring import MAX_BITS
from privacy.secagg.commands import Step
from privacy.secagg.messages import AttemptContext, Fingerprint
from privacy.secagg.retry import RetryPermit
from privacy.secagg.rules import ExpectedPlan
from privacy.secagg.site import SiteAttempt
from tidegate.messages import Ready, TrainRequest
from tidegate.version_chain import chain_start


class Phase(StrEnum):
    """What a site's time goes into, for the report on utilisation."""

    TRAIN = "train"
    EXCHANGE = "exchange"
    WAIT = "wait"


@dataclass
class Stopwatch:
    """Add up the seconds spent in each phase since the last reading."""

    phase: Phase = Phase.WAIT
    since_s: float | None = None
    spent_s: dict[Phase, float] = field(default_factory=lambda: dict.fromkeys(Phase, 0.0))

    def enter(self, phase: Phase, now_s: float) -> None:
        """Go over to a phase."""
        if self.since_s is not None:
            self.spent_s[self.phase] += max(0.0, now_s - self.since_s)
        self.phase, self.since_s = phase, now_s

    def read(self, now_s: float) -> dict[Phase, float]:
        """Give the seconds by phase, and start again from zero."""
        self.enter(self.phase, now_s)
        spent = self.spent_s
        self.spent_s = dict.fromkeys(Phase, 0.0)
        return spent


@dataclass
class JobState:
    """One accepted job.

    Attributes:
        wanted: The newest train request; None before the first.
        head: Head of the version chain up to ``wanted.version``.
        training: What the shell makes an update for; None when it does not.
        update: What the update that lies ready was made for, uncharged; None without one.
        epsilon_spent: As the shell last said; shown to the operator.
        announced: ``Ready`` was sent for the update, and no roster has come for it since.
        ctx: The live attempt's context.
        next_roster: A roster that waits for the live attempt to die first.
        previous_survivors: Who was in the last sum that this site released its shares for.
        held: A charged update whose attempt died; once it is freed it is ``update`` too.
    """

    job: AcceptedJob
    wanted: TrainRequest | None = None
    head: bytes = b""
    training: UpdateKey | None = None
    update: UpdateKey | None = None
    epsilon_spent: float = 0.0
    announced: bool = False
    ctx: bytes | None = None
    next_roster: RosterArrived | None = None
    previous_survivors: frozenset[Fingerprint] | None = None
    held: "HeldUpdate | None" = None
    stopwatch: Stopwatch = field(default_factory=Stopwatch)

    @property
    def wanted_key(self) -> UpdateKey | None:
        """Return what the newest train request asks an update for."""
        return None if self.wanted is None else key_of(self.wanted)

    @property
    def has_wanted(self) -> bool:
        """Whether an update lies ready that is what the newest train request asks for."""
        if self.update is None or self.update != self.wanted_key:
            return False
        # A restart forgets the chain, and an update that was held outlives it: it is for one model.
        return self.held is None or self.held.facts.chain_head == self.head

    @property
    def may_announce(self) -> bool:
        """Whether an update lies ready that the aggregator has not been told of."""
        return self.update is not None and not self.announced

    def follow(self, request: TrainRequest) -> None:
        """Take a train request if it continues the version chain.

        Where versions are missing in between, or after a restart, the shell holds the chain against
        what it keeps, before an update is made.

        Raises:
            PeerError: EQUIVOCATION: another model for a version that the site knows, or another
                request for a round; REPLAY: an older version or round; POLICY: no such purpose, or
                more exchanges than the epsilon that the site agreed to is counted for; MALFORMED
                or POLICY: what the version announces is nothing for this job's plan.
        """
        plan = self.job.plan_for(request.purpose)
        if request.round > self.job.exchanges:
            raise PeerError(
                Reason.POLICY,
                f"exchange {request.round} was asked for, and the job's epsilon is counted for"
                f" {self.job.exchanges}",
            )
        last = self.wanted
        before = chain_start(self.job.job_id) if request.version == 0 else b""
        if last is not None:
            _check_order(last, request)
            if request.version == last.version + 1:
                before = self.head
        if before and request.chain_head != request.broadcast.head_after(before):
            raise PeerError(
                Reason.EQUIVOCATION,
                f"version {request.version} does not continue the chain that this site knows",
            )
        encoding_of(plan, request.version, request.announced)  # refuses what cannot be announced
        self.wanted, self.head = request, request.chain_head

    def ready(self, now_s: float) -> Ready:
        """Say that the update lies ready."""
        if self.update is None:
            raise UsageError("a site without an update cannot be ready")
        spent_s = self.stopwatch.read(now_s)
        self.announced = True
        return Ready(
            job_id=self.job.job_id,
            round=self.update.round,
            version=self.update.version,
            epsilon_spent=self.epsilon_spent,
            train_s=spent_s[Phase.TRAIN],
            exchange_s=spent_s[Phase.EXCHANGE],
            wait_s=spent_s[Phase.WAIT],
        )


def key_of(request: TrainRequest) -> UpdateKey:
    """Give what a train request asks an update for."""
    return UpdateKey(request.round, request.version, request.purpose)


def _check_order(last: TrainRequest, request: TrainRequest) -> None:
    """Hold a request against the one before: rounds rise, versions never fall, nothing changes."""
    if request.version < last.version or request.round < last.round:
        raise PeerError(
            Reason.REPLAY,
            f"round {request.round} from version {request.version} was asked after round"
            f" {last.round} from version {last.version}",
        )
    model, known = (
        (asked.broadcast, asked.chain_head, asked.announcement) for asked in (request, last)
    )
    if request.version == last.version and model != known:
        raise PeerError(Reason.EQUIVOCATION, f"two different models for version {request.version}")
    if request.round == last.round and request != last:
        raise PeerError(Reason.EQUIVOCATION, f"two different requests for round {request.round}")


@dataclass(frozen=True)
class AttemptFacts:
    """What an attempt was begun with, kept with slot 1 so that a crash does not lose it.

    Attributes:
        key: What its update was made for.
        chain_head: Up to the update's version.
        last_accepted: Round and attempt before it.
        encoding: Canonical bytes of the version's plan, what it announces included.
        length: d of that plan.
    """

    key: UpdateKey
    chain_head: bytes
    last_accepted: tuple[int, int]
    encoding: bytes = field(repr=False)
    length: int

    @classmethod
    def of(cls, state: JobState, key: UpdateKey, last_accepted: tuple[int, int]) -> "AttemptFacts":
        """State what an attempt with a job's ready update begins with."""
        announced = b"" if state.wanted is None else state.wanted.announced
        plan, encoding = encoding_of(state.job.plan_for(key.purpose), key.version, announced)
        return cls(key, state.head, last_accepted, encoding, plan.length)

    def encode(self) -> bytes:
        """Give the bytes that are stored."""
        key = [self.key.round, self.key.version, self.key.purpose]
        plan = [self.encoding.decode(), self.length]
        return json.dumps([key, self.chain_head.hex(), list(self.last_accepted), plan]).encode()

    @classmethod
    def decode(cls, raw: bytes) -> "AttemptFacts":
        """Read them back.

        Raises:
            UsageError: The stored bytes are damaged.
        """
        try:
            (of_round, version, purpose), head, (number, attempt), plan = json.loads(raw)
            key = UpdateKey(int(of_round), int(version), str(purpose))
            accepted = int(number), int(attempt)
            return cls(key, bytes.fromhex(head), accepted, str(plan[0]).encode(), int(plan[1]))
        except (ValueError, TypeError, LookupError) as error:
            raise UsageError("a stored attempt is damaged; run `edge-node reconcile`") from error

    def expected_plan(self, job: AcceptedJob) -> ExpectedPlan:
        """Give what the roster's plan must say: the site's own derivation for this version."""
        version, plan = self.key.version, job.plan_for(self.key.purpose)
        return ExpectedPlan(
            encoding=self.encoding,
            ring_bits=plan.bits,
            length=self.length,
            chain_head=self.chain_head,
            own_version=version,
            newest_version=version,
            noised=plan.mode is not Mode.NONE,
            surplus_levels=plan.surplus_levels,
            shared_noise=plan.mode.shares_noise,
            # B alone may change in a retry, so it stands here as the same for all.
            encoding_core=replace(plan, bits=MAX_BITS).to_bytes(),
        )


@lru_cache(maxsize=4)
def encoding_of(
    plan: EncodingPlan, version: int, announcement: bytes = b""
) -> tuple[EncodingPlan, bytes]:
    """Give a job's encoding for one model version, and its canonical bytes; made once a round.

    Raises:
        PeerError: MALFORMED or POLICY: the announcement is none for this plan.
    """
    derived = encoding_for_version(plan, version, announcement)
    return derived, derived.to_bytes()


@dataclass
class HeldUpdate:
    """A charged update that left in an attempt which died before this site released any share.

    Attributes:
        context: Of the attempt that it was last sent in.
        facts: What that attempt was begun with.
        slots: That attempt's durable slots, which a proof is held against.
        expires_s: When it is forgotten if no proof comes, Unix seconds.
        permit: From the proof that freed it; None before.
    """

    context: AttemptContext
    facts: AttemptFacts
    slots: Mapping[Step, bytes]
    expires_s: float
    permit: RetryPermit | None = None

    @property
    def ctx(self) -> bytes:
        """Name the attempt that it was last sent in."""
        return self.context.digest()


@dataclass
class LiveAttempt:
    """An attempt that this site is in.

    Attributes:
        charged: Slot 2 is durable: the update is used up, whatever comes.
        dead: The machine has given it up.
        answers_abort: The aggregator asked for the abort, so no failure is reported to it.
        survivors: U3 as signed in step 3, for the rule on adjacent cohorts; mode ``none`` only.
        releasing: Slot 4 was handed to the store: it may be durable, heard of or not.
        serves: The attempt whose charge serves this one; empty where it is charged itself.
    """

    ctx: bytes
    machine: SiteAttempt
    job_id: str
    context: AttemptContext
    facts: AttemptFacts
    charged: bool = False
    dead: bool = False
    answers_abort: bool = False
    survivors: tuple[Fingerprint, ...] = ()
    releasing: bool = False
    serves: bytes = b""
