"""A site's part in attempts of SA-1: from a roster to the end of its `SiteAttempt`.

Kept here: one attempt a job at a time, the older one dead before the newer one begins; an update
goes into one charged attempt only. An uncharged update survives an aborted attempt and is ready
again at once; a charged one is held for the retry rule (`retries.py`), but in record-local, where
it is charged before it is made and is private by itself. Pure, like the participant that it is a
part of.
"""

from collections.abc import Mapping
from dataclasses import replace

from edge_node import retries
from edge_node.attempt_terms import AttemptTerms, SiteIdentity, charged_ahead, mode_of
from edge_node.commands import (
    AttemptEncapsulated,
    AttemptEvent,
    AttemptSigned,
    CommitStep,
    EncapsulateStep,
    EraseAttempt,
    HoldUpdate,
    Note,
    ParticipantCommand,
    RosterArrived,
    SendMessage,
    SettleUpdate,
    SignStep,
    StepCommitted,
    StepRefused,
    StopUpload,
    UploadFailed,
    UploadUpdate,
)
from edge_node.job_state import AttemptFacts, JobState, LiveAttempt, Phase
from edge_node.policy import Policy
from privacy.errors import PeerError, Reason
from privacy.pipeline import Mode
from privacy.secagg import slots
from privacy.secagg.commands import (
    Abort,
    Commit,
    CommitRefused,
    Committed,
    Encapsulate,
    Encapsulated,
    Erase,
    MaskAndUpload,
    Send,
    Sign,
    Signed,
    SiteCommand,
    SiteEvent,
    Step,
    Tick,
)
from privacy.secagg.graph import GraphRule
from privacy.secagg.messages import (
    AbortRequest,
    Fingerprint,
    MaskTerm,
    Published,
    RetryProof,
    SignedBundle,
)
from privacy.secagg.site import SiteAttempt, SiteSecrets
from tidegate.manifest import Manifest
from tidegate.messages import AttemptFailed, AttemptResult

Commands = list[ParticipantCommand]


class Exchange:
    """The attempts that this site is in."""

    def __init__(
        self,
        identity: SiteIdentity,
        policy: Policy,
        jobs: dict[str, JobState],
        graph_rule: GraphRule,
    ) -> None:
        """Begin with none.

        Args:
            identity: See `SiteIdentity`.
            policy: The site's own rules for cohorts.
            jobs: The participant's jobs, shared with it.
            graph_rule: See `GraphRule`.
        """
        self._identity = identity
        self._policy = policy
        self._jobs = jobs
        self._graph_rule = graph_rule
        self._attempts: dict[bytes, LiveAttempt] = {}
        self._terms: AttemptTerms | None = None
        self.online = False

    @property
    def manifest(self) -> Manifest | None:
        """The pinned manifest; None before the first one came."""
        return None if self._terms is None else self._terms.manifest

    def use_manifest(self, manifest: Manifest) -> None:
        """Take the pinned manifest: every attempt is named and judged by it."""
        self._terms = AttemptTerms.of(manifest, self._identity, self._policy, self._graph_rule)

    def restore(
        self,
        names: tuple[str, int, int],
        facts: bytes,
        held: tuple[SignedBundle, SiteSecrets],
        stored: Mapping[Step, bytes],
        now_s: float,
    ) -> bool:
        """Take up an attempt that a crash interrupted, with nothing forgotten.

        Args:
            names: Job id, round, attempt.
            facts: `CommitStep.facts` of its first slot.
            held: Its own bundle and its secrets, as they were.
            stored: Its durable slots.
            now_s: Unix seconds.

        Returns:
            False when its job is not known any more: erase it.
        """
        job_id, number, attempt = names
        state = self._jobs.get(job_id)
        if state is None or self._terms is None:
            return False
        known = AttemptFacts.decode(facts)
        context = self._terms.context(job_id, number, attempt)
        config = self._terms.config(state, context, known)
        machine = SiteAttempt.restore(config, *held, stored, now_s)
        charged = Step.MASKED_UPDATE in stored
        state.ctx = ctx = context.digest()
        slot = stored.get(Step.CONSISTENCY)
        survivors = _survivors(machine, slot) if self._is_plain(job_id, known) else ()
        self._attempts[ctx] = LiveAttempt(
            ctx, machine, job_id, context, known, charged, survivors=survivors
        )
        return True

    def restore_held(
        self, names: tuple[str, int, int], facts: bytes, stored: dict[Step, bytes], now_s: float
    ) -> bool:
        """Take up the held update of an attempt that died before a restart.

        Args:
            names: Job id, round, attempt.
            facts: `CommitStep.facts` of that attempt's first slot.
            stored: Its durable slots.
            now_s: Unix seconds.

        Returns:
            False when its job is not known any more: forget it.
        """
        state = self._jobs.get(names[0])
        if state is None or self._terms is None:
            return False
        context = self._terms.context(*names)
        retries.hold_again(state, context, AttemptFacts.decode(facts), stored, now_s)
        return True

    def next_deadline_s(self) -> float | None:
        """Return when time matters to an attempt, Unix seconds; None if never."""
        deadlines = [live.machine.next_deadline_s() for live in self._attempts.values()]
        deadlines += [retries.deadline_of(state) for state in self._jobs.values()]
        return min((at_s for at_s in deadlines if at_s is not None), default=None)

    def resume(self, now_s: float) -> Commands:
        """Give again what each attempt's last durable slot determines: the session is a new one."""
        commands: Commands = []
        for live in list(self._attempts.values()):
            commands += self._carry(live, live.machine.resume(), now_s)
        return commands

    def pass_time(self, now_s: float) -> Commands:
        """Let the attempts see the time."""
        commands: Commands = []
        for live in list(self._attempts.values()):
            commands += self._feed(live, Tick(), now_s)
        for state in self._jobs.values():
            commands += retries.expire(state, now_s)
        return commands

    def leave(self, state: JobState, why: str, now_s: float) -> Commands:
        """Give up the job's live attempt, if there is one: the aggregator does not want it."""
        live = self._attempts.get(state.ctx or b"")
        return [] if live is None else self._abort(live, why, now_s)

    def drop_job(self, job_id: str) -> Commands:
        """Forget the attempts of a job that is over."""
        commands: Commands = []
        for ctx in [c for c, live in self._attempts.items() if live.job_id == job_id]:
            del self._attempts[ctx]
            commands += [StopUpload(ctx), EraseAttempt(ctx)]
        return commands

    # --- events ----------------------------------------------------------------------------------

    def join(self, event: RosterArrived, now_s: float) -> Commands:
        """Take a roster: a repeated one again, a new one if the job has an update to spend."""
        context = event.roster.context
        ctx = context.digest()
        live = self._attempts.get(ctx)
        if live is not None:
            return self._feed(live, event.roster, now_s)
        try:
            return self._begin(self._jobs.get(context.job_id), event, now_s)
        except PeerError as error:
            why = str(error.args[0])
            note = Note("attempt not joined", {"ctx": ctx, "why": why}, warning=True)
            # The shell had looked its secrets up by then: nothing of a refused roster stays.
            return [EraseAttempt(ctx), note, SendMessage(AttemptFailed(ctx, error.reason, why))]

    def take_proof(self, proof: RetryProof, _now_s: float) -> Commands:
        """Take the proof that frees a held update; what is about anything else is of no use."""
        return retries.take_proof(self._jobs, self._terms, proof)

    def _begin(self, state: JobState | None, event: RosterArrived, now_s: float) -> Commands:
        terms = self._terms
        if state is None or terms is None or state.wanted is None:
            raise PeerError(Reason.UNKNOWN_JOB, "this site takes no part in that job")
        named = event.roster.context
        context = terms.context(state.job.job_id, state.wanted.round, named.attempt)
        if context != named:
            raise PeerError(Reason.WRONG_CONTEXT, "the roster is for another round or manifest")
        if (context.round, context.attempt) <= event.last_accepted:
            raise PeerError(Reason.REPLAY, "the roster is of an attempt that was used up")
        older = self._attempts.get(state.ctx or b"")
        if older is not None:
            # Accepting a+1 kills a: its abort is signed and durable before a+1 begins.
            state.next_roster = event
            return self._abort(older, "a newer attempt was opened", now_s)
        if state.update is None or not state.has_wanted:
            raise PeerError(Reason.REPLAY, "this site has no update that is not used up")
        if event.own_bundle is None or event.secrets is None:
            raise PeerError(Reason.REPLAY, "the roster holds no bundle of this site's stock")
        facts = AttemptFacts.of(state, state.update, event.last_accepted)
        held = state.held
        last_sent = None if held is None else (held.context.round, held.context.attempt)
        config = terms.config(state, context, facts, last_sent)
        permit = retries.permit_of(held, config)
        machine = SiteAttempt(config, event.own_bundle, event.secrets, permit)
        state.ctx = ctx = context.digest()
        state.announced = False
        live = self._attempts[ctx] = LiveAttempt(ctx, machine, state.job.job_id, context, facts)
        live.serves = b"" if held is None or permit is None else held.ctx
        state.stopwatch.enter(Phase.EXCHANGE, now_s)
        return self._feed(live, event.roster, now_s)

    def handle(self, event: AttemptEvent, now_s: float) -> Commands:
        """Hand an attempt what is meant for it; what is for no live attempt is dropped."""
        live = self._attempts.get(event.ctx)
        if live is None:
            return [Note("frame for no live attempt", {"kind": type(event).__name__})]
        match event:
            case StepCommitted():
                return self._on_committed(live, event.step, now_s)
            case AttemptResult():
                return self._on_result(live, event, now_s)
            case UploadFailed(ctx, reason, message):
                note = Note("upload failed", {"ctx": ctx, "why": message}, warning=True)
                return [note, SendMessage(AttemptFailed(ctx, reason, message))]
            case _:
                return self._on_frame(live, event, now_s)

    def _on_frame(self, live: LiveAttempt, event: AttemptEvent, now_s: float) -> Commands:
        inner: SiteEvent
        match event:
            case AttemptSigned(_, purpose, signature):
                inner = Signed(purpose, signature)
            case AttemptEncapsulated(_, drawn):
                inner = Encapsulated(drawn)
            case StepRefused(_, step, reason, message):
                inner = CommitRefused(step, reason, message)
            case StepCommitted() | AttemptResult() | UploadFailed():
                return []
            case _:
                inner = event
        return self._feed(live, inner, now_s)

    def _on_committed(self, live: LiveAttempt, step: Step, now_s: float) -> Commands:
        state = self._jobs.get(live.job_id)
        if step is Step.MASKED_UPDATE:
            live.charged = True
            if state is not None and not charged_ahead(state):
                # Bound to this attempt: what was held before is held no more.
                state.update, state.held = None, None
        elif step is Step.UNMASK and state is not None and live.survivors:
            # The shares leave now, so this sum may be opened: the next one is held against it.
            state.previous_survivors = frozenset(live.survivors)
        return self._feed(live, Committed(step), now_s)

    def _on_result(self, live: LiveAttempt, result: AttemptResult, now_s: float) -> Commands:
        cohort = live.machine.cohort
        if cohort is not None and cohort.index_of(self._identity.me) not in result.survivors:
            return self._abort(live, "the sum was published without this site", now_s)
        settled = [SettleUpdate(live.job_id, live.facts.key)] if live.charged else []
        return [*settled, *self._feed(live, Published(result.ctx, result.transcript_hash), now_s)]

    # --- the machine -----------------------------------------------------------------------------

    def _abort(self, live: LiveAttempt, why: str, now_s: float) -> Commands:
        return self._feed(live, AbortRequest(live.ctx, why), now_s)

    def _feed(self, live: LiveAttempt, event: SiteEvent, now_s: float) -> Commands:
        try:
            commands = live.machine.handle(event, now_s)
        except PeerError as error:
            facts: dict[str, object] = {"kind": type(event).__name__, "why": str(error)}
            return [Note("frame dropped", {"ctx": live.ctx, **facts}, warning=True)]
        # Only now: a frame that the machine dropped leaves no trace but the note.
        live.answers_abort = live.answers_abort or isinstance(event, AbortRequest)
        return self._carry(live, commands, now_s)

    def _carry(self, live: LiveAttempt, commands: list[SiteCommand], now_s: float) -> Commands:
        """Turn the machine's commands into the shell's."""
        ctx = live.ctx
        given: Commands = []
        for command in commands:
            match command:
                case Sign(purpose, message):
                    given.append(SignStep(ctx, purpose, message))
                case Encapsulate(public_keys):
                    given.append(EncapsulateStep(ctx, live.context.suite, public_keys))
                case Commit():
                    given.append(self._commit(ctx, live, command))
                case Send(message):
                    given.append(SendMessage(message))
                case MaskAndUpload(terms):
                    given += self._upload(ctx, live, terms)
                case Abort(reason, message):
                    given += _on_abort(ctx, live, reason, message)
                case Erase():
                    given += self._on_erase(ctx, live, now_s)
        return given

    def _commit(self, ctx: bytes, live: LiveAttempt, commit: Commit) -> CommitStep:
        """Add what is stored with a step: what it was begun with, or whose sum may be opened."""
        step = commit.step
        if step is Step.CONSISTENCY and self._is_plain(live.job_id, live.facts):
            live.survivors = _survivors(live.machine, commit.slot)
        live.releasing = live.releasing or step is Step.UNMASK
        state = self._jobs.get(live.job_id)
        if commit.charge and state is not None and charged_ahead(state):
            commit = replace(commit, charge=False)
        return CommitStep(
            ctx=ctx,
            job_id=live.job_id,
            key=live.facts.key,
            attempt=live.context.attempt,
            commit=commit,
            facts=live.facts.encode() if commit.begins else b"",
            survivors=live.survivors if step is Step.UNMASK else (),
            serves=live.serves if step is Step.MASKED_UPDATE else b"",
        )

    def _is_plain(self, job_id: str, facts: AttemptFacts) -> bool:
        """Whether the rule on adjacent cohorts holds: noise does not hide the job's sums."""
        state = self._jobs.get(job_id)
        return state is not None and mode_of(state, facts) is Mode.NONE

    def _upload(self, ctx: bytes, live: LiveAttempt, terms: tuple[MaskTerm, ...]) -> Commands:
        state = self._jobs.get(live.job_id)
        if state is None:
            return []
        plan = state.job.plan_for(live.facts.key.purpose)
        return [UploadUpdate(ctx, live.job_id, plan.bits, terms)]

    def _on_erase(self, ctx: bytes, live: LiveAttempt, now_s: float) -> Commands:
        """Close an attempt; an uncharged update is ready again, a waiting roster is next."""
        self._attempts.pop(ctx, None)
        state = self._jobs.get(live.job_id)
        held = state is not None and retries.hold(state, live, now_s)
        ending = HoldUpdate(ctx, live.job_id) if held else EraseAttempt(ctx)
        commands: Commands = [StopUpload(ctx), ending]
        if state is None or state.ctx != ctx:
            return commands
        state.ctx = None
        if state.training is None:
            state.stopwatch.enter(Phase.WAIT, now_s)
        roster, state.next_roster = state.next_roster, None
        if roster is not None:
            return commands + self.join(roster, now_s)
        if live.dead and state.may_announce and self.online:
            commands.append(SendMessage(state.ready(now_s)))
        return commands


def _survivors(machine: SiteAttempt, slot: bytes | None) -> tuple[Fingerprint, ...]:
    """Give U3 as the machine accepted it: from slot 3, never from a frame; none in an abort."""
    cohort = machine.cohort
    found = None if slot is None else slots.decode(Step.CONSISTENCY, slot)
    if cohort is None or not isinstance(found, slots.SurvivorSlot):
        return ()
    return tuple(cohort.members[index - 1] for index in found.survivors)


def _on_abort(ctx: bytes, live: LiveAttempt, reason: Reason, why: str) -> Commands:
    live.dead = True
    facts: dict[str, object] = {"ctx": ctx, "reason": reason, "why": why, "charged": live.charged}
    commands: Commands = [
        StopUpload(ctx),
        Note("attempt aborted", facts, warning=not live.answers_abort),
    ]
    if not live.answers_abort:
        commands.append(SendMessage(AttemptFailed(ctx, reason, why)))
    return commands
