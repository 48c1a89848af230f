"""One attempt of SA-1 at a site: a state machine without I/O.

Here: the order of steps, one durable slot per step, and death. Not here: the checks of a roster
(``cohort.py``), the arithmetic (``site_steps.py``), the slots' bytes (``slots.py``).

    Roster ─ Sign ─ Commit 1 ─ Send ─ ShareDelivery ─ Commit 2 (charge) ─ MaskAndUpload
           ─ SurvivorSet ─ Sign ─ Commit 3 ─ Send ─ SurvivorQuorum ─ Commit 4 ─ Send ─ Published

From anywhere: a different input, a failed check, a timeout or an ``AbortRequest`` kills the
attempt. Where slot 3 is still free the site then signs the abort into it: it can never sign a U3.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg import site_checks, slots, statements
from privacy.secagg.cohort import Cohort, admit
from privacy.secagg.commands import (
    Abort,
    AggregatorMessage,
    Commit,
    CommitRefused,
    Committed,
    Erase,
    MaskAndUpload,
    Purpose,
    Send,
    Sign,
    Signed,
    SiteCommand,
    SiteEvent,
    Step,
    Tick,
)
from privacy.secagg.encoding import Label, hash_of
from privacy.secagg.messages import (
    AbortRequest,
    AbortSignature,
    DealtShares,
    Published,
    Roster,
    ShareDelivery,
    SignedBundle,
    SurvivorQuorum,
    SurvivorSet,
    SurvivorSignature,
)
from privacy.secagg.retry import RetryPermit, check_permit
from privacy.secagg.rules import SiteConfig
from privacy.secagg.site_steps import (
    DealerError,
    SharePair,
    SiteCrypto,
    SiteSecrets,
    index_delivery,
    unmask_shares,
)

__all__ = ["SiteAttempt", "SiteSecrets"]

_Input = Roster | ShareDelivery | SurvivorSet | SurvivorQuorum

_STEP_OF: dict[type[_Input], Step] = {
    Roster: Step.SHARE_KEYS,
    ShareDelivery: Step.MASKED_UPDATE,
    SurvivorSet: Step.CONSISTENCY,
    SurvivorQuorum: Step.UNMASK,
}


@dataclass(frozen=True)
class _Pending:
    """A step that is verified but not durable yet; ``finish`` turns the signature into its slot."""

    step: Step
    finish: Callable[[bytes], slots.Slot]
    digest: bytes = b""
    purpose: Purpose | None = None
    committing: bool = False
    slot: slots.Slot | None = None


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
        self._ctx = config.context.digest()
        self._own_bundle = own_bundle
        self._secrets = secrets
        self._charge = permit is None
        self._cohort: Cohort | None = None
        self._crypto: SiteCrypto | None = None
        self._held: dict[int, SharePair] = {}
        self._inputs: dict[Step, bytes] = {}
        self._slots: dict[Step, slots.Slot] = {}
        self._pending: _Pending | None = None
        self._dying = False
        self._over = False
        self._published = False
        self._accused = b""
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
        attempt._load({step: slots.decode(step, stored[step]) for step in sorted(stored)})
        attempt._deadline_s = now_s + config.step_timeout_s
        return attempt

    @property
    def is_over(self) -> bool:
        """Whether ``Erase`` has been given: no secret is needed any more."""
        return self._over

    @property
    def cohort(self) -> Cohort | None:
        """The admitted cohort, with ctx, rh and mh; None before the roster."""
        return self._cohort

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
        match event:
            case Signed():
                return self._on_signed(event)
            case Committed():
                return self._on_committed(event, now_s)
            case CommitRefused():
                return self._on_refused(event)
            case Tick():
                late = self._deadline_s is not None and now_s >= self._deadline_s
                return self._die(Reason.TIMEOUT, "no progress in time") if late else []
            case _:
                return self._on_message(event, now_s)

    def _on_message(self, message: AggregatorMessage, now_s: float) -> list[SiteCommand]:
        ctx = message.context.digest() if isinstance(message, Roster) else message.ctx
        if ctx != self._ctx:
            raise PeerError(Reason.WRONG_CONTEXT, "the frame belongs to another attempt")
        match message:
            case AbortRequest():
                return self._on_abort_request(message)
            case Published():
                return self._on_published(message)
            case _:
                return self._on_input(message, now_s)

    def resume(self) -> list[SiteCommand]:
        """Give what the last durable slot determines again (after ``restore`` or a reconnect)."""
        if self._over or self._pending is not None:
            return self._slot_three()
        if isinstance(self._slots.get(Step.CONSISTENCY), slots.AbortSlot):
            return self._end()
        if self._secrets is None:
            return self._die(Reason.STOPPED, "the attempt's secrets are gone: it is void")
        return self._output(max(self._slots)) if self._slots else []

    # --- the four steps --------------------------------------------------------------------------

    def _on_input(self, event: _Input, now_s: float) -> list[SiteCommand]:
        step = _STEP_OF[type(event)]
        if self._secrets is None:
            raise PeerError(Reason.STOPPED, "the attempt is dead or over at this site")
        if step not in self._inputs and (self._pending or step != len(self._slots) + 1):
            raise PeerError(Reason.REPLAY, f"step {int(step)} is not due at this site")
        try:
            digest = self._digest(event)
            if step in self._inputs:
                return self._again(step, digest)
            pending, message = self._prepare(event, digest, now_s)
        except DealerError as error:
            self._accused = error.dealer
            return self._die(error.reason, str(error.args[0]))
        except PeerError as error:
            return self._die(error.reason, str(error.args[0]))
        self._inputs[step] = digest
        self._pending = pending
        self._deadline_s = now_s + self._config.step_timeout_s
        if pending.purpose is None:
            return self._commit(b"")
        return [Sign(pending.purpose, message)]

    def _again(self, step: Step, digest: bytes) -> list[SiteCommand]:
        """Answer an input of a step that has one: one durable slot per step and ctx."""
        if digest != self._inputs[step]:
            raise PeerError(
                Reason.EQUIVOCATION, f"step {int(step)} was asked twice with different inputs"
            )
        return self._output(step) if step in self._slots else []

    def _digest(self, event: _Input) -> bytes:
        if isinstance(event, Roster):
            return site_checks.roster_digest(event)
        statement = b""
        if isinstance(event, SurvivorQuorum):
            statement = self._chosen.statement(self._joined)
        return site_checks.input_digest(self._joined, self._config.me, event, statement)

    def _prepare(self, event: _Input, digest: bytes, now_s: float) -> tuple[_Pending, bytes]:
        match event:
            case Roster():
                return self._share_keys(event, digest, now_s)
            case ShareDelivery():
                return self._masked_update(event, digest)
            case SurvivorSet():
                return self._consistency(event, digest)
            case SurvivorQuorum():
                return self._unmask(event, digest)

    def _share_keys(self, roster: Roster, digest: bytes, now_s: float) -> tuple[_Pending, bytes]:
        config = self._config
        self._cohort = admit(roster, config, self._own_bundle, now_s)
        self._open_keys()
        dealing = self._keys.dealing
        message = statements.share_statement(
            self._cohort.rh, statements.ciphertexts_hash(dealing.hashes()), dealing.commitments
        )
        pending = _Pending(
            Step.SHARE_KEYS,
            lambda signature: slots.SharesSlot(digest, roster, signature),
            digest,
            Purpose.SHARE,
        )
        return pending, message

    def _masked_update(self, delivery: ShareDelivery, digest: bytes) -> tuple[_Pending, bytes]:
        """Fix U2_i; everything that could stop the round is checked before the charge."""
        cohort, config = self._joined, self._config
        shares = index_delivery(cohort, config.me, delivery)
        site_checks.check_dealt_size(cohort, config.policy, len(shares) + 1)
        self._hold(self._keys.open_delivery(shares, config.pinned))
        received = tuple((j, share.ciphertext) for j, share in shares.items())
        slot = slots.MaskedSlot(digest, received)
        return _Pending(Step.MASKED_UPDATE, lambda _: slot, digest), b""

    def _consistency(self, event: SurvivorSet, digest: bytes) -> tuple[_Pending, bytes]:
        site_checks.check_survivor_set(self._joined, self._config, tuple(self._held), event)

        def finish(signature: bytes) -> slots.SurvivorSlot:
            return slots.SurvivorSlot(digest, event.dealt, event.survivors, signature)

        message = finish(b"").statement(self._joined)
        return _Pending(Step.CONSISTENCY, finish, digest, Purpose.SURVIVORS), message

    def _unmask(self, quorum: SurvivorQuorum, digest: bytes) -> tuple[_Pending, bytes]:
        site_checks.check_quorum(self._joined, self._config, self._chosen, quorum)
        return _Pending(Step.UNMASK, lambda _: slots.UnmaskSlot(digest), digest), b""

    # --- the shell's answers ---------------------------------------------------------------------

    def _on_signed(self, event: Signed) -> list[SiteCommand]:
        pending = self._pending
        if pending is None or pending.purpose is not event.purpose or pending.committing:
            if self._over or self._dying:
                return []  # Asked before the attempt died: the signature goes nowhere.
            raise UsageError(f"a signature for {event.purpose} came that nobody asked for")
        return self._commit(event.signature)

    def _commit(self, signature: bytes) -> list[SiteCommand]:
        pending = self._pending
        if pending is None:
            raise UsageError("there is no step to commit")
        slot = pending.finish(signature)
        self._pending = replace(pending, committing=True, slot=slot)
        charge = pending.step is Step.MASKED_UPDATE and self._charge
        return [Commit(pending.step, pending.digest, slot.encode(), charge)]

    def _on_committed(self, event: Committed, now_s: float) -> list[SiteCommand]:
        pending = self._pending
        if pending is None or not pending.committing or pending.step is not event.step:
            if self._over or self._dying:
                return []  # Durable, but the attempt died meanwhile: nothing leaves.
            raise UsageError(f"slot {int(event.step)} was committed, yet nobody asked for it")
        if pending.slot is None:
            raise UsageError("a step was committed without a slot")
        self._slots[event.step] = pending.slot
        self._pending = None
        self._deadline_s = now_s + self._config.step_timeout_s
        return self._end() if self._dying else self._output(event.step)

    def _on_refused(self, event: CommitRefused) -> list[SiteCommand]:
        pending = self._pending
        if pending is None or pending.step is not event.step:
            return []
        self._pending = None
        if self._dying:
            return self._end()
        return self._die(event.reason, event.message)

    def _output(self, step: Step) -> list[SiteCommand]:
        """Give what a durable slot determines: the same each time."""
        cohort, me = self._joined, self._config.me
        slot = self._slots[step]
        match slot:
            case slots.SharesSlot():
                dealing = self._keys.dealing
                ciphertexts, commitments = dealing.ciphertexts, dealing.commitments
                return [Send(DealtShares(cohort.ctx, me, ciphertexts, commitments, slot.signature))]
            case slots.MaskedSlot():
                return [MaskAndUpload(self._keys.mask_terms(tuple(self._held)))]
            case slots.SurvivorSlot() | slots.AbortSlot():
                return self._slot_three()
            case slots.UnmaskSlot():
                chosen = self._chosen
                return [Send(unmask_shares(cohort, me, self._held, chosen.dealt, chosen.survivors))]

    # --- the end ---------------------------------------------------------------------------------

    def _on_abort_request(self, event: AbortRequest) -> list[SiteCommand]:
        if self._over:
            return self._slot_three()
        if self._dying:
            return []
        message = f"the aggregator gave the attempt up: {event.reason}"
        if Step.CONSISTENCY not in self._slots:
            return self._die(Reason.STOPPED, message)
        # Slot 3 holds a U3: that signature is this site's vote for the retry rule, not an abort.
        self._forget()
        return [Abort(Reason.STOPPED, message), *self._slot_three(), Erase()]

    def _on_published(self, event: Published) -> list[SiteCommand]:
        if self._published:
            return []
        if self._over or self._dying:
            raise PeerError(Reason.STOPPED, "the attempt is dead at this site")
        slot = self._slots.get(Step.CONSISTENCY)
        if not isinstance(slot, slots.SurvivorSlot):
            raise PeerError(Reason.REPLAY, "a sum was published whose U3 this site never signed")
        cohort = self._joined
        expected = statements.transcript_hash(
            cohort.ctx, cohort.rh, cohort.mh, slot.dealt, slot.survivors
        )
        if event.transcript_hash != expected:
            return self._die(Reason.EQUIVOCATION, "the published transcript is another one")
        self._published = True
        self._forget()
        return [Erase()]

    def _die(self, reason: Reason, message: str) -> list[SiteCommand]:
        """Kill the attempt; sign the abort into slot 3 where that is still free."""
        if self._over:
            return []
        if self._dying:
            return self._end()
        pending = self._pending
        taken = Step.CONSISTENCY in self._slots or (
            pending is not None and pending.committing and pending.step is Step.CONSISTENCY
        )
        self._pending = None
        self._forget(over=False)
        if taken or Step.SHARE_KEYS not in self._slots:
            return [Abort(reason, message), *self._end()]
        self._dying = True
        cohort, accused = self._joined, self._accused
        self._pending = _Pending(
            Step.CONSISTENCY,
            lambda signature: slots.AbortSlot(signature, accused),
            hash_of(Label.ABORT_STATEMENT, cohort.ctx, cohort.rh),
            Purpose.ABORT,
        )
        statement = statements.abort_statement(cohort.ctx, cohort.rh)
        return [Abort(reason, message), Sign(Purpose.ABORT, statement)]

    def _end(self) -> list[SiteCommand]:
        """Close a dead attempt; only an abort in slot 3 is still sent."""
        self._forget()
        aborted = isinstance(self._slots.get(Step.CONSISTENCY), slots.AbortSlot)
        return [*(self._slot_three() if aborted else []), Erase()]

    def _slot_three(self) -> list[SiteCommand]:
        slot = self._slots.get(Step.CONSISTENCY)
        ctx, me = self._ctx, self._config.me
        if isinstance(slot, slots.AbortSlot):
            return [Send(AbortSignature(ctx, me, slot.signature, slot.accused))]
        if isinstance(slot, slots.SurvivorSlot):
            return [Send(SurvivorSignature(ctx, me, slot.signature))]
        return []

    def _forget(self, *, over: bool = True) -> None:
        """Drop the secrets that this object holds; the shell drops its own on ``Erase``."""
        self._secrets = None
        self._crypto = None
        self._held = {}
        self._over = over

    # --- state -----------------------------------------------------------------------------------

    def _load(self, stored: dict[Step, slots.Slot]) -> None:
        first = stored.get(Step.SHARE_KEYS)
        if not stored:
            return
        if not isinstance(first, slots.SharesSlot) or first.roster.context != self._config.context:
            raise UsageError("the slots given belong to another attempt")
        self._slots = stored
        self._cohort = Cohort.of(first.roster)
        for step, slot in stored.items():
            if isinstance(slot, slots.AbortSlot):
                self._dying = True
            else:
                self._inputs[step] = slot.input_digest
        if self._dying:
            self._forget(over=False)
        if self._secrets is None:
            return
        self._open_keys()
        second = stored.get(Step.MASKED_UPDATE)
        if isinstance(second, slots.MaskedSlot):
            self._hold(self._keys.reopen(dict(second.ciphertexts)))

    def _open_keys(self) -> None:
        config, secrets = self._config, self._secrets
        if secrets is None:
            raise UsageError("this attempt's secrets are gone")
        self._crypto = SiteCrypto(config.suite, self._joined, config.me, secrets)

    def _hold(self, received: dict[int, SharePair]) -> None:
        me = self._joined.index_of(self._config.me)
        self._held = dict(sorted({**received, me: self._keys.dealing.kept}.items()))

    @property
    def _joined(self) -> Cohort:
        if self._cohort is None:
            raise UsageError("this attempt has no roster yet")
        return self._cohort

    @property
    def _keys(self) -> SiteCrypto:
        if self._crypto is None:
            raise UsageError("this attempt's secrets are gone")
        return self._crypto

    @property
    def _chosen(self) -> slots.SurvivorSlot:
        slot = self._slots.get(Step.CONSISTENCY)
        if not isinstance(slot, slots.SurvivorSlot):
            raise UsageError("this attempt has signed no U3")
        return slot
