"""Sum updates by real attempts of SA-1 in memory: every machine, every key, no network.

The state machines are those of the edge node and the aggregator; what is left out is what a shell
does around them (sockets, durable slots, the ledger). A site that drops out does so after it dealt
its shares and before its upload: the case in which the others must give up its masks.

Shapes: d = integers of one vector.
"""

import hashlib
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from numpy.typing import NDArray

from privacy.errors import Reason, UsageError
from privacy.noise import NoisedUpdate, subtract_noise
from privacy.pipeline import EncodingPlan
from privacy.planning import CohortRules
from privacy.secagg import commands as c
from privacy.secagg import statements
from privacy.secagg.keys import P256, BundleSecrets, SoftwareSigner, make_bundle
from privacy.secagg.masking import mask, unmask
from privacy.secagg.messages import (
    AttemptContext,
    BaseVersion,
    CohortPlan,
    SignedBundle,
)
from privacy.secagg.rules import (
    DEFAULT_DROPOUT_PERCENT,
    CohortPolicy,
    ExpectedPlan,
    ServerConfig,
    SiteConfig,
)
from privacy.secagg.server import ServerAttempt
from privacy.secagg.site import SiteAttempt, SiteSecrets

_NOW_S = 1_800_000_000.0
_VALID_S = 3600
_SEED_BYTES = 32
_CONSORTIUM = "dp-audit"
_VERSION = 1


@dataclass(frozen=True)
class OpenedAttempt:
    """What an attempt ended with.

    Attributes:
        total_d: The exact sum mod 2^B of the survivors' updates, uint32, shape (d,).
        survivors: Numbers of the sites in it, increasing.
    """

    total_d: NDArray[np.uint32] = field(repr=False)
    survivors: tuple[int, ...]


class SecureCohort:
    """The sites of one cohort and an honest aggregator; every attempt has keys of its own."""

    def __init__(self, rules: CohortRules) -> None:
        """Make a signing key for each member; its number is its place by fingerprint.

        Args:
            rules: The manifest's.
        """
        self._rules = rules
        keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(rules.members)]
        self._signers = sorted(map(SoftwareSigner, keys), key=lambda signer: signer.fingerprint)
        self._members = [signer.fingerprint for signer in self._signers]
        self._pinned = {signer.fingerprint: signer.spki for signer in self._signers}
        self._chain_head = secrets.token_bytes(_SEED_BYTES)
        self._attempts = 0

    def sum(self, plan: EncodingPlan, updates: Mapping[int, NoisedUpdate]) -> OpenedAttempt:
        """Mask, fold and open updates; members without one drop out after dealing shares.

        Args:
            plan: That the updates were encoded with.
            updates: By the number of the site, from 0.

        Raises:
            UsageError: The attempt did not open: too few updates, or a fault of the protocol.
        """
        self._attempts += 1
        context = AttemptContext(
            P256.name, _CONSORTIUM, bytes(_SEED_BYTES), "dp-audit", 1, 1, self._attempts
        )
        levels = len(plan.surplus_levels)
        stock = [_secrets(updates.get(k), levels) for k in range(len(self._members))]
        bundles = tuple(map(self._bundle, self._signers, stock))
        cohort_plan = self._plan(plan)
        shells = [
            _SiteShell(
                SiteAttempt(self._site_config(k, context, cohort_plan, plan), bundles[k], stock[k]),
                self._signers[k],
                updates.get(k),
                plan.bits,
            )
            for k in range(len(self._members))
        ]
        server = ServerAttempt(
            ServerConfig(
                P256,
                context,
                bundles,
                cohort_plan,
                self._pinned,
                surplus_levels=plan.surplus_levels,
            )
        )
        total_d = np.zeros(plan.length, dtype=np.uint32)
        survivors = self._deliver(server, shells, total_d, plan)
        return OpenedAttempt(total_d, survivors)

    def _deliver(
        self,
        server: ServerAttempt,
        shells: "list[_SiteShell]",
        total_d: NDArray[np.uint32],
        plan: EncodingPlan,
    ) -> tuple[int, ...]:
        """Carry messages until the attempt is over; folds and unmasks into ``total_d``."""
        survivors: tuple[int, ...] | None = None
        waiting: deque[c.ServerEvent] = deque([c.Start()])
        while waiting:
            for command in server.handle(waiting.popleft(), _NOW_S):
                match command:
                    case c.SendTo():
                        site = self._members.index(command.site)
                        waiting.extend(shells[site].feed(command.message))
                    case c.FoldUpload():
                        total_d += shells[self._members.index(command.sender)].masked_d
                    case c.UnmaskSum():
                        unmask(total_d, command.terms, plan.bits)
                        for seeds in command.surplus_seeds:
                            take_off(total_d, seeds, plan)
                    case c.Publish():
                        survivors = tuple(map(self._members.index, command.survivors))
                    case c.AbortAttempt() | c.Blame() | c.Accusation():
                        raise UsageError(f"the audit's secure sum did not open: {command}")
        if survivors is None:
            raise UsageError("the audit's secure sum did not open: a message was never answered")
        return survivors

    def _bundle(self, signer: SoftwareSigner, stock: SiteSecrets) -> SignedBundle:
        bundle = make_bundle(
            P256,
            stock.bundle,
            signer.fingerprint,
            _CONSORTIUM,
            bytes(16),
            self._attempts,
            int(_NOW_S) + _VALID_S,
        )
        return SignedBundle(bundle, signer.sign(statements.bundle_statement(bundle)))

    def _plan(self, plan: EncodingPlan) -> CohortPlan:
        return CohortPlan(
            plan.to_bytes(),
            plan.bits,
            plan.length,
            self._rules.colluders,
            self._rules.min_survivors,
            DEFAULT_DROPOUT_PERCENT,
            self._chain_head,
            tuple(BaseVersion(member, _VERSION) for member in self._members),
        )

    def _site_config(
        self, site: int, context: AttemptContext, plan: CohortPlan, encoding: EncodingPlan
    ) -> SiteConfig:
        expected = ExpectedPlan(
            plan.encoding,
            plan.ring_bits,
            plan.length,
            self._chain_head,
            _VERSION,
            _VERSION,
            surplus_levels=encoding.surplus_levels,
        )
        policy = CohortPolicy(self._rules.colluders, self._rules.min_survivors)
        return SiteConfig(self._members[site], P256, context, self._pinned, policy, expected)


@dataclass
class _SiteShell:
    """One site of one attempt: carries out what its machine asks.

    Attributes:
        attempt: The machine.
        signer: The pinned key.
        update: None drops out when it is to be masked.
        bits: B.
        masked_d: Once uploaded, what left the site.
    """

    attempt: SiteAttempt
    signer: SoftwareSigner
    update: NoisedUpdate | None
    bits: int
    masked_d: NDArray[np.uint32] = field(init=False, repr=False)

    def feed(self, message: c.AggregatorMessage) -> list[c.ServerEvent]:
        """Hand a message in and give what the aggregator gets for it.

        Raises:
            UsageError: The machine aborted.
        """
        answers: list[c.ServerEvent] = []
        todo = deque(self.attempt.handle(message, _NOW_S))
        while todo:
            command = todo.popleft()
            match command:
                case c.Sign():
                    signed = c.Signed(command.purpose, self.signer.sign(command.message))
                    todo.extend(self.attempt.handle(signed, _NOW_S))
                case c.Commit():
                    todo.extend(self.attempt.handle(c.Committed(command.step), _NOW_S))
                case c.Send():
                    answers.append(command.message)
                case c.MaskAndUpload():
                    answers.append(self._upload(command))
                case c.Abort():
                    raise UsageError(f"the audit's site aborted: {command.message}")
                case c.Erase():
                    pass
        return answers

    def _upload(self, command: c.MaskAndUpload) -> c.ServerEvent:
        if self.update is None:
            return c.SiteLost(self.signer.fingerprint, Reason.TIMEOUT)
        self.masked_d = mask(self.update, command.terms, self.bits).values_d
        digest = hashlib.sha256(self.masked_d.tobytes()).digest()
        return c.UploadCompleted(self.signer.fingerprint, digest)


def take_off(
    total_d: NDArray[np.uint32], surplus_seeds: Sequence[bytes], plan: EncodingPlan
) -> None:
    """Take what one site's revealed seeds draw off a sum, in place (`privacy.surplus`)."""
    for variance, seed in zip(plan.noise_share.increments, surplus_seeds, strict=False):
        subtract_noise(total_d, variance, seed, plan.bits)


def _secrets(update: NoisedUpdate | None, levels: int) -> SiteSecrets:
    surplus = tuple(_seed() for _ in range(levels)) if update is None else update.surplus_seeds
    return SiteSecrets(BundleSecrets(_seed()), _seed(), _seed(), surplus)


def _seed() -> bytes:
    return secrets.token_bytes(_SEED_BYTES)
