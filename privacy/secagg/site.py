"""One attempt of SA-1 at a site: a state machine without I/O.

Here: the order of steps, one durable slot per step, and death. Not here: what is made of an input
(``site_inputs.py``) and the checks (``cohort.py``, ``site_checks.py``), the arithmetic
(``site_steps.py``), what a slot determines (``site_state.py``).

    Roster ─ (Encapsulate ─) Sign ─ Commit 1 ─ Send ─ ShareDelivery ─ Commit 2 (charge)
           ─ MaskAndUpload ─ SurvivorSet ─ Sign ─ Commit 3 ─ Send
           ─ SurvivorQuorum ─ Commit 4 ─ Send ─ Published

A sparse cohort (``graph``) begins with step 0 and has its graph only from step 1 on:

    Roster ─ Commit 0 ─ Send (r) ─ GraphReveals ─ Sign ─ Commit 1 ─ Send ─ ShareDelivery ...

From anywhere: a different input, a failed check, a timeout or an ``AbortRequest`` kills the
attempt. Where slot 3 is still free the site then signs the abort into it: it can never sign a U3.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg import site_checks, slots, statements
from privacy.secagg.cohort import Cohort, admit
from privacy.secagg.commands import (
    Abort,
    AggregatorMessage,
    Commit,
    CommitRefused,
    Committed,
    Encapsulate,
    Encapsulated,
    Erase,
    Purpose,
    Sign,
    Signed,
    SiteCommand,
    SiteEvent,
    Step,
    Tick,
)
from privacy.secagg.messages import (
    AbortRequest,
    GraphReveals,
    Published,
    Roster,
    SignedBundle,
)
from privacy.secagg.retry import RetryPermit, check_permit
from privacy.secagg.rules import SiteConfig
from privacy.secagg.site_inputs import (
    Dealing,
    Input,
    Pending,
    abort_of,
    digest_of,
    is_due,
    prepare,
    step_of,
)
from privacy.secagg.site_state import SiteState
from privacy.secagg.site_steps import DealerError, SiteSecrets
from privacy.secagg.transport import Encapsulation

__all__ = ["SiteAttempt", "SiteSecrets"]


class SiteAttempt:
    """Take a site through ShareKeys, masked update, consistency and unmask, or to an abort.

    Order of every step: verify, ``Sign`` if it needs a signature, ``Commit`` the slot, and only
    after ``Committed`` the ``Send`` or ``MaskAndUpload``. The identical input again gives the
    identical output; a different one kills the attempt: ``Abort`` (reason EQUIVOCATION), then,
    where slot 3 is free, ``Sign(ABORT)``, ``Commit(3)``, ``Send(AbortSignature)``, and always
    ``Erase`` as the last.
    """

    def __init__(
        self,
        config: SiteConfig,
        own_bundle: SignedBundle,
        secrets: SiteSecrets | None,
        permit: RetryPermit | None = None,
    ) -> None:
        """Begin an attempt that waits for its ``Roster``.

        Args:
            config: See ``SiteConfig``.
            own_bundle: The bundle of the stock that the roster must hold unmodified.
            secrets: What that bundle was made from, and the two fresh seeds. None only in
                ``restore``.
            permit: From ``retry.check_retry``: step 2 is then not charged again.

        Raises:
            UsageError: The permit is for something else than the last attempt of this update.
        """
        if permit is not None:
            check_permit(permit, config)
        self._config = config
        self._own_bundle = own_bundle
        self._charge = permit is None
        self._state = SiteState(config, secrets)
        self._pending: Pending | None = None
        self._drawing: Dealing | None = None
        self._dying = False
        self._over = False
        self._published = False
        self._accused = b""
        self._now_s = 0.0
        self._deadline_s: float | None = None

    @classmethod
    def restore(
        cls,
        config: SiteConfig,
        own_bundle: SignedBundle,
        secrets: SiteSecrets | None,
        stored: Mapping[Step, bytes],
        now_s: float,
        permit: RetryPermit | None = None,
    ) -> "SiteAttempt":
        """Rebuild an attempt from its durable slots after a crash; then call ``resume``.

        Args:
            config: As before the crash.
            own_bundle: As before the crash.
            secrets: As before; None where they are erased or void (new boot key): the attempt is
                then dead, gives its signature of slot 3 again, or signs the abort into it.
            stored: What ``Commit.slot`` was, by step.
            now_s: Unix time.
            permit: As before the crash; ignored once slot 2 exists, for it was charged or not then.

        Raises:
            UsageError: A slot is damaged, or of another attempt.
        """
        attempt = cls(config, own_bundle, secrets, None if Step.MASKED_UPDATE in stored else permit)
        attempt._state.load({step: slots.decode(step, stored[step]) for step in sorted(stored)})
        attempt._dying = attempt._state.is_aborted
        attempt._now_s = now_s
        attempt._extend_deadline()
        return attempt

    @property
    def is_over(self) -> bool:
        """Whether ``Erase`` has been given: no secret is needed any more."""
        return self._over

    @property
    def cohort(self) -> Cohort | None:
        """The admitted cohort, with ctx, rh and mh; None before the roster."""
        return self._state.cohort

    @property
    def durable(self) -> dict[Step, bytes]:
        """The slots that are known to be durable, as they are stored; none of them is a secret."""
        return {step: slot.encode() for step, slot in self._state.slots.items()}

    def next_deadline_s(self) -> float | None:
        """Return when to send ``Tick`` if nothing comes, Unix seconds; None if never."""
        return None if self._over else self._deadline_s

    def handle(self, event: SiteEvent, now_s: float) -> list[SiteCommand]:
        """Take one event at a time (Unix seconds) and give the commands it leads to, in order.

        Raises:
            PeerError: The frame is dropped and nothing changes: WRONG_CONTEXT (another attempt),
                REPLAY (a step that is not due), STOPPED (the attempt is dead or over).
            UsageError: The shell answered what was not asked.
        """
        self._now_s = now_s
        match event:
            case Signed():
                return self._on_signed(event)
            case Encapsulated():
                return self._on_encapsulated(event)
            case Committed():
                return self._on_committed(event)
            case CommitRefused():
                return self._on_refused(event)
            case Tick():
                late = self._deadline_s is not None and now_s >= self._deadline_s
                return self._die(Reason.TIMEOUT, "no progress in time") if late else []
            case _:
                return self._on_message(event)

    def resume(self) -> list[SiteCommand]:
        """Give what the last durable slot determines again (after ``restore`` or a reconnect)."""
        state = self._state
        if self._over or self._pending is not None or self._drawing is not None:
            return state.slot_three()
        if state.is_aborted:
            return self._end()
        if not state.has_secrets:
            return self._die(Reason.STOPPED, "the attempt's secrets are gone: it is void")
        return state.output(max(state.slots)) if state.slots else []

    # --- the four steps --------------------------------------------------------------------------

    def _on_message(self, message: AggregatorMessage) -> list[SiteCommand]:
        ctx = message.context.digest() if isinstance(message, Roster) else message.ctx
        if ctx != self._state.ctx:
            raise PeerError(Reason.WRONG_CONTEXT, "the frame belongs to another attempt")
        match message:
            case AbortRequest():
                return self._on_abort_request(message)
            case Published():
                return self._on_published(message)
            case _:
                return self._on_input(message)

    def _on_input(self, event: Input) -> list[SiteCommand]:
        state, config = self._state, self._config
        step = step_of(state, config, event)
        if not state.has_secrets:
            raise PeerError(Reason.STOPPED, "the attempt is dead or over at this site")
        busy = self._pending is not None or self._drawing is not None
        if step not in state.inputs and (busy or not is_due(state, event, step)):
            raise PeerError(Reason.REPLAY, f"step {int(step)} is not due at this site")
        try:
            digest = digest_of(state, config, event)
            if step in state.inputs:
                return self._again(step, digest)
            if isinstance(event, Roster):
                return self._accept(event, digest)
            if isinstance(event, GraphReveals):
                return self._draw_graph(event, digest)
            pending, message = prepare(state, config, event, digest)
        except DealerError as error:
            self._accused = error.dealer
            return self._die(error.reason, str(error.args[0]))
        except PeerError as error:
            return self._die(error.reason, str(error.args[0]))
        return self._go_on(pending, message)

    def _go_on(self, pending: Pending, message: bytes) -> list[SiteCommand]:
        """Take a verified step on: to its signature where it needs one, else to its slot."""
        self._state.inputs[pending.step] = pending.digest
        self._pending = pending
        self._extend_deadline()
        if pending.purpose is None:
            return self._commit(pending, b"")
        return [Sign(pending.purpose, message)]

    def _again(self, step: Step, digest: bytes) -> list[SiteCommand]:
        """Answer an input of a step that has one: one durable slot per step and ctx."""
        if digest != self._state.inputs[step]:
            raise PeerError(
                Reason.EQUIVOCATION, f"step {int(step)} was asked twice with different inputs"
            )
        return self._state.output(step) if step in self._state.slots else []

    def _accept(self, roster: Roster, digest: bytes) -> list[SiteCommand]:
        """Join a cohort: deal at once, or first bind this site to it and reveal its r."""
        cohort = admit(roster, self._config, self._own_bundle, self._now_s)
        self._state.join(cohort)
        if cohort.is_sparse:
            slot = slots.RevealSlot(digest, roster)
            return self._go_on(Pending(Step.REVEAL, lambda _: slot, digest), b"")
        return self._share_keys(Dealing(digest, partial(slots.SharesSlot, digest, roster)))

    def _draw_graph(self, reveals: GraphReveals, digest: bytes) -> list[SiteCommand]:
        seed = site_checks.draw_graph(self._state.joined, reveals)
        self._state.join(self._state.joined.with_seed(seed))
        return self._share_keys(Dealing(digest, partial(slots.SparseSharesSlot, digest, seed)))

    def _share_keys(self, begun: Dealing) -> list[SiteCommand]:
        """Deal at once, or ask first for what the suite draws."""
        keys = self._state.keys.keys_to_draw_for
        if not keys:
            return self._deal(begun, ())
        self._state.inputs[Step.SHARE_KEYS] = begun.digest
        self._drawing = begun
        self._extend_deadline()
        return [Encapsulate(keys)]

    def _deal(self, begun: Dealing, drawn: tuple[Encapsulation, ...]) -> list[SiteCommand]:
        rh, dealing = self._state.joined.rh, self._state.keys.deal(drawn)
        message = statements.share_statement(rh, dealing.root, dealing.commitments.self_seed)
        finish = partial(begun.slot, dealing.ciphertexts)
        return self._go_on(Pending(Step.SHARE_KEYS, finish, begun.digest, Purpose.SHARE), message)

    # --- the shell's answers ---------------------------------------------------------------------

    def _on_encapsulated(self, event: Encapsulated) -> list[SiteCommand]:
        begun, self._drawing = self._drawing, None
        if begun is None:
            if self._over or self._dying:
                return []  # Asked before the attempt died: the secrets go nowhere.
            raise UsageError("secrets were drawn that nobody asked for")
        try:
            return self._deal(begun, event.drawn)
        except PeerError as error:
            return self._die(error.reason, str(error.args[0]))

    def _on_signed(self, event: Signed) -> list[SiteCommand]:
        pending = self._pending
        if pending is None or pending.purpose is not event.purpose or pending.slot:
            if self._over or self._dying:
                return []  # Asked before the attempt died: the signature goes nowhere.
            raise UsageError(f"a signature for {event.purpose} came that nobody asked for")
        return self._commit(pending, event.signature)

    def _commit(self, pending: Pending, signature: bytes) -> list[SiteCommand]:
        slot = pending.finish(signature)
        self._pending = replace(pending, slot=slot)
        charge = pending.step is Step.MASKED_UPDATE and self._charge
        begins = not self._state.is_begun
        return [Commit(pending.step, pending.digest, slot.encode(), charge, begins)]

    def _on_committed(self, event: Committed) -> list[SiteCommand]:
        pending = self._pending
        if pending is None or pending.slot is None or pending.step is not event.step:
            if self._over or self._dying:
                return []  # Durable, but the attempt died meanwhile: nothing leaves.
            raise UsageError(f"slot {int(event.step)} was committed, yet nobody asked for it")
        self._state.slots[event.step] = pending.slot
        self._pending = None
        self._extend_deadline()
        return self._end() if self._dying else self._state.output(event.step)

    def _on_refused(self, event: CommitRefused) -> list[SiteCommand]:
        pending = self._pending
        if pending is None or pending.step is not event.step:
            return []
        self._pending = None
        if self._dying:
            return self._end()
        return self._die(event.reason, event.message)

    # --- the end ---------------------------------------------------------------------------------

    def _on_abort_request(self, event: AbortRequest) -> list[SiteCommand]:
        state = self._state
        if self._over or state.is_aborted:
            return state.slot_three()
        if self._dying:
            return []
        message = f"the aggregator gave the attempt up: {event.reason}"
        if Step.CONSISTENCY not in state.slots:
            return self._die(Reason.STOPPED, message)
        # Slot 3 holds a U3: that signature is this site's vote for the retry rule, not an abort.
        return [Abort(Reason.STOPPED, message), *state.slot_three(), *self._close()]

    def _on_published(self, event: Published) -> list[SiteCommand]:
        if self._published:
            return []
        if self._over or self._dying:
            raise PeerError(Reason.STOPPED, "the attempt is dead at this site")
        slot = self._state.slots.get(Step.CONSISTENCY)
        if not isinstance(slot, slots.SurvivorSlot):
            raise PeerError(Reason.REPLAY, "a sum was published whose U3 this site never signed")
        cohort = self._state.joined
        expected = statements.transcript_hash(
            cohort.ctx, cohort.rh, cohort.mh, slot.dealt, slot.survivors
        )
        if event.transcript_hash != expected:
            return self._die(Reason.EQUIVOCATION, "the published transcript is another one")
        self._published = True
        return self._close()

    def _die(self, reason: Reason, message: str) -> list[SiteCommand]:
        """Kill the attempt; sign the abort into slot 3 where that is still free."""
        if self._over:
            return []
        if self._dying:
            return self._end()
        state, pending, accused = self._state, self._pending, self._accused
        # A U3 handed to the store may be durable already, whether or not that was heard.
        writing = pending is not None and pending.step is Step.CONSISTENCY and pending.slot
        self._pending = self._drawing = None
        state.forget()
        if writing or Step.CONSISTENCY in state.slots or not state.is_begun:
            return [Abort(reason, message), *self._close()]
        self._dying = True
        self._extend_deadline()
        self._pending, statement = abort_of(state.joined, accused)
        return [Abort(reason, message), Sign(Purpose.ABORT, statement)]

    def _end(self) -> list[SiteCommand]:
        """Close a dead attempt; an abort in slot 3 is still sent."""
        return [*(self._state.slot_three() if self._state.is_aborted else []), *self._close()]

    def _close(self) -> list[SiteCommand]:
        self._state.forget()
        self._over = True
        return [Erase()]

    def _extend_deadline(self) -> None:
        self._deadline_s = self._now_s + self._config.step_timeout_s
