"""What a site's attempt knows: cohort, keys, shares, durable slots, and what those determine.

Everything that is sent is a function of a durable slot and the attempt's secrets (``output``), so
it is the same before and after a crash. Which step may come next is the business of ``site.py``.
"""

from privacy.errors import UsageError
from privacy.secagg import slots
from privacy.secagg.cohort import Cohort
from privacy.secagg.commands import MaskAndUpload, Send, SiteCommand, Step
from privacy.secagg.messages import (
    AbortSignature,
    DealtShares,
    GraphReveal,
    SurvivorSignature,
)
from privacy.secagg.rules import SiteConfig
from privacy.secagg.site_steps import SharePair, SiteCrypto, SiteSecrets, unmask_shares
from privacy.surplus import levels_reached


class SiteState:
    """The memory of one attempt at a site."""

    def __init__(self, config: SiteConfig, secrets: SiteSecrets | None) -> None:
        """Begin with nothing but the secrets; None where they are erased or void."""
        self.config = config
        self.ctx = config.context.digest()
        self.cohort: Cohort | None = None
        self.slots: dict[Step, slots.Slot] = {}
        self.inputs: dict[Step, bytes] = {}
        self._secrets = secrets
        self._crypto: SiteCrypto | None = None
        self._held: dict[int, SharePair] = {}

    @property
    def has_secrets(self) -> bool:
        """Whether the attempt can still take part."""
        return self._secrets is not None

    @property
    def joined(self) -> Cohort:
        """The admitted cohort."""
        if self.cohort is None:
            raise UsageError("this attempt has no roster yet")
        return self.cohort

    @property
    def keys(self) -> SiteCrypto:
        """The keys of the attempt."""
        if self._crypto is None:
            raise UsageError("this attempt's secrets are gone")
        return self._crypto

    @property
    def chosen(self) -> slots.SurvivorSlot:
        """The survivor set in slot 3."""
        slot = self.slots.get(Step.CONSISTENCY)
        if not isinstance(slot, slots.SurvivorSlot):
            raise UsageError("this attempt has signed no U3")
        return slot

    @property
    def is_aborted(self) -> bool:
        """Whether slot 3 holds the abort."""
        return isinstance(self.slots.get(Step.CONSISTENCY), slots.AbortSlot)

    @property
    def held(self) -> tuple[int, ...]:
        """U2_i: whose shares this site holds, itself included, ascending."""
        return tuple(self._held)

    @property
    def is_begun(self) -> bool:
        """Whether the first slot, which holds the roster, is durable."""
        return bool(self.slots)

    def join(self, cohort: Cohort) -> None:
        """Take an admitted cohort, or the same with its graph, and derive the keys."""
        if self._secrets is None:
            raise UsageError("this attempt's secrets are gone")
        if len(self._secrets.surplus_seeds) != len(self.config.plan.surplus_levels):
            raise UsageError("the update was not drawn with one surplus seed a level of the plan")
        self.cohort = cohort
        self._crypto = SiteCrypto(self.config.suite, cohort, self.config.me, self._secrets)

    def hold(self, received: dict[int, SharePair]) -> None:
        """Keep the shares of U2_i, with the pair that this site dealt to itself."""
        me = self.joined.index_of(self.config.me)
        self._held = dict(sorted({**received, me: self.keys.dealing.kept}.items()))

    def load(self, stored: dict[Step, slots.Slot]) -> None:
        """Take the slots back after a crash.

        Raises:
            UsageError: They belong to another attempt, or one in between is missing.
        """
        if not stored:
            return
        first, second = slots.first_of(stored), stored.get(Step.MASKED_UPDATE)
        if first.roster.context != self.config.context:
            raise UsageError("the slots given belong to another attempt")
        self.slots = stored
        self.cohort = Cohort.of(first.roster, self.config.graph_rule)
        dealt = stored.get(Step.SHARE_KEYS)
        if isinstance(dealt, slots.SparseSharesSlot):
            self.cohort = self.cohort.with_seed(dealt.graph_seed)
        if self.is_aborted:
            self.forget()
        elif sorted(stored) != list(Step)[min(stored) :][: len(stored)]:
            raise UsageError("a slot between others is missing: restore the site's database")
        self.inputs = {
            step: slot.input_digest
            for step, slot in stored.items()
            if not isinstance(slot, slots.AbortSlot)
        }
        if self.has_secrets:
            self.join(self.cohort)
            if isinstance(dealt, slots.SharesSlot | slots.SparseSharesSlot):
                self.keys.deal_again(dealt.ciphertexts)
            if isinstance(second, slots.MaskedSlot):
                self.hold(self.keys.reopen(dict(second.ciphertexts)))

    def forget(self) -> None:
        """Drop the secrets that this object holds; the shell drops its own on ``Erase``."""
        self._secrets = None
        self._crypto = None
        self._held = {}

    def output(self, step: Step) -> list[SiteCommand]:
        """Give what a durable slot determines: the same each time."""
        me, slot = self.config.me, self.slots[step]
        match slot:
            case slots.RevealSlot():
                return [Send(GraphReveal(self.ctx, me, self._graph_reveal()))]
            case slots.SharesSlot() | slots.SparseSharesSlot():
                dealing = self.keys.dealing
                ciphertexts, commitments = dealing.ciphertexts, dealing.commitments
                return [Send(DealtShares(self.ctx, me, ciphertexts, commitments, slot.signature))]
            case slots.MaskedSlot():
                return [MaskAndUpload(self.keys.mask_terms(self.held))]
            case slots.SurvivorSlot():
                return [Send(SurvivorSignature(self.ctx, me, slot.signature))]
            case slots.AbortSlot():
                return [Send(AbortSignature(self.ctx, me, slot.signature, slot.accused))]
            case slots.UnmaskSlot():
                chosen = self.chosen
                seeds = self._surplus(chosen)
                return [Send(unmask_shares(self.joined, me, self._held, chosen.survivors, seeds))]

    def _surplus(self, chosen: slots.SurvivorSlot) -> tuple[bytes, ...]:
        """Give the seeds of the noise that this very U3 can do without: no level above |U3|."""
        if self._secrets is None:
            raise UsageError("this attempt's secrets are gone")
        reached = levels_reached(self.config.plan.surplus_levels, len(chosen.survivors))
        return self._secrets.surplus_seeds[:reached]

    def _graph_reveal(self) -> bytes:
        if self._secrets is None:
            raise UsageError("this attempt's secrets are gone")
        return self._secrets.bundle.graph_reveal

    def slot_three(self) -> list[SiteCommand]:
        """Give the vote or the abort of slot 3 again; it needs no secret. Nothing if it is free."""
        return self.output(Step.CONSISTENCY) if Step.CONSISTENCY in self.slots else []
