"""A whole federation of SA-1 in memory: both machines, and shells that carry their commands out.

Every random byte derives from a name, so a failure repeats. ``Federation.run`` delivers messages in
a fixed order; a test changes what happens by dropping sites, or by taking the role of the
aggregator itself (``Site.feed`` with any message it likes).
"""

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from privacy.errors import PeerError, Reason
from privacy.noise import NoisedUpdate
from privacy.secagg import commands as c
from privacy.secagg import statements
from privacy.secagg.cohort import Cohort
from privacy.secagg.graph import STANDARD, GraphRule
from privacy.secagg.keys import P256, BundleSecrets, SoftwareSigner, Suite, make_bundle
from privacy.secagg.masking import MaskedUpdate, mask, unmask
from privacy.secagg.messages import (
    AbortSignature,
    AttemptContext,
    BaseVersion,
    CohortPlan,
    GraphReveals,
    Roster,
    ShareDelivery,
    SignedBundle,
    SurvivorQuorum,
    SurvivorSet,
)
from privacy.secagg.rules import CohortPolicy, ExpectedPlan, SiteConfig
from privacy.secagg.server import ServerAttempt, ServerConfig, StepTimeouts
from privacy.secagg.site import SiteAttempt, SiteSecrets

NOW_S = 1_800_000_000.0
NEVER = 9


def seed(*names: object) -> bytes:
    """Derive 32 bytes from names."""
    return hashlib.sha256(repr(names).encode()).digest()


@lru_cache(maxsize=1024)
def signer(suite_name: str, name: str) -> SoftwareSigner:
    """Make a site's pinned key."""
    if suite_name != P256.name:
        return SoftwareSigner(ed25519.Ed25519PrivateKey.from_private_bytes(seed("sign", name)))
    scalar = 1 + int.from_bytes(seed("sign", name)) % (2**255)
    return SoftwareSigner(ec.derive_private_key(scalar, ec.SECP256R1()))


def secrets_of(name: str, serial: int, levels: int = 0) -> SiteSecrets:
    return SiteSecrets(
        BundleSecrets(seed("bundle", name, serial)),
        seed("self", name, serial),
        seed("coefficients", name, serial),
        tuple(seed("surplus", name, serial, level) for level in range(levels)),
    )


@lru_cache(maxsize=4096)
def signed_bundle(suite: Suite, name: str, serial: int, consortium: str = "c") -> SignedBundle:
    key = signer(suite.name, name)
    bundle = make_bundle(
        suite,
        secrets_of(name, serial).bundle,
        key.fingerprint,
        consortium,
        seed("instance", name)[:16],
        serial,
        int(NOW_S) + 3600,
    )
    return SignedBundle(bundle, key.sign(statements.bundle_statement(bundle)))


@dataclass
class Site:
    """An edge node's shell in memory: signs, keeps slots, charges, masks."""

    name: str
    config: SiteConfig
    own: SignedBundle
    secrets: SiteSecrets
    key: SoftwareSigner
    x_D: np.ndarray
    attempt: SiteAttempt = None  # type: ignore[assignment]
    slots: dict[c.Step, bytes] = field(default_factory=dict)
    charges: int = 0
    sent: list[object] = field(default_factory=list)
    upload: MaskedUpdate | None = None
    terms: tuple = ()
    aborted: c.Abort | None = None
    erased: bool = False
    crash_at: tuple[str, int] | None = None
    crashed: bool = False
    budget: int = 10**9
    hold_commits: bool = False

    def __post_init__(self):
        if self.attempt is None:
            self.attempt = SiteAttempt(self.config, self.own, self.secrets)

    @property
    def me(self):
        return self.config.me

    def feed(self, event, now_s: float = NOW_S) -> list:
        """Hand an event in and carry everything out; return what left the site, in order."""
        return self._carry_out(self.attempt.handle(event, now_s), now_s)

    def resume(self, now_s: float = NOW_S) -> list:
        return self._carry_out(self.attempt.resume(), now_s)

    def restart(self, now_s: float = NOW_S, secrets: object = "kept") -> list:
        """Crash, read the slots back, and resume."""
        self.crashed = False
        self.crash_at = None
        kept = None if self.erased else self.secrets
        self.attempt = SiteAttempt.restore(
            self.config, self.own, kept if secrets == "kept" else secrets, self.slots, now_s
        )
        return self.resume(now_s)

    def _carry_out(self, todo: list, now_s: float) -> list:
        out = []
        queue = deque(todo)
        while queue and not self.crashed:
            command = queue.popleft()
            match command:
                case c.Sign():
                    signature = self.key.sign(command.message)
                    queue.extend(self.attempt.handle(c.Signed(command.purpose, signature), now_s))
                case c.Encapsulate():
                    draw = self.config.suite.transport.encapsulate
                    drawn = c.Encapsulated(tuple(map(draw, command.public_keys)))
                    queue.extend(self.attempt.handle(drawn, now_s))
                case c.Commit():
                    queue.extend(self._commit(command, now_s))
                case c.Send():
                    self._note(command.message, out)
                case c.MaskAndUpload():
                    self.terms = command.terms
                    self.upload = mask(
                        NoisedUpdate(self.x_D), command.terms, self.config.plan.ring_bits
                    )
                    self._note(self.upload, out)
                case c.Abort():
                    assert self.aborted is None, "killed twice"
                    self.aborted = command
                case c.Erase():
                    self.erased = True
                    assert not queue, "Erase is the last command"
        return out

    def _note(self, message, out):
        self.sent.append(message)
        out.append(message)

    def _commit(self, command: c.Commit, now_s: float) -> list:
        if self.crash_at == ("before", command.step):
            self.crashed = True
            return []
        assert command.step not in self.slots, "a slot was written twice"
        if command.charge and self.charges >= self.budget:
            from privacy.errors import Reason

            refusal = c.CommitRefused(command.step, Reason.BUDGET_EXHAUSTED, "no budget left")
            return self.attempt.handle(refusal, now_s)
        self.slots[command.step] = command.slot
        self.charges += command.charge
        if self.crash_at == ("after", command.step):
            self.crashed = True
            return []
        if self.hold_commits:
            return []
        return self.attempt.handle(c.Committed(command.step), now_s)


@dataclass
class Outcome:
    """What an attempt ended with."""

    server: ServerAttempt
    total_D: np.ndarray | None = None
    terms: tuple = ()
    surplus_seeds: tuple = ()
    survivors: tuple = ()
    abort: c.AbortAttempt | None = None
    blamed: list = field(default_factory=list)
    accusations: list = field(default_factory=list)
    dropped: list = field(default_factory=list)
    folded: list = field(default_factory=list)


class Federation:
    """n sites and one aggregator for one attempt."""

    def __init__(
        self,
        n: int,
        colluders: int = 1,
        min_survivors: int | None = None,
        *,
        suite: Suite = P256,
        length: int = 8,
        ring_bits: int = 20,
        attempt: int = 1,
        names: list[str] | None = None,
        serial: int = 1,
        data: str = "x",
        timeouts: StepTimeouts | None = None,
        surplus_levels: tuple[int, ...] = (),
        graph_rule: GraphRule = STANDARD,
        dropout_percent: int = 20,
        shared_noise: bool = True,
        **policy,
    ):
        self.surplus_levels = surplus_levels
        self.graph_rule, self.shared_noise = graph_rule, shared_noise
        self.suite, self.n, self.ring_bits, self.length = suite, n, ring_bits, length
        names = names or [f"site-{k}" for k in range(n)]
        keys = {signer(suite.name, name).fingerprint: name for name in names}
        self.names = [keys[f] for f in sorted(keys)]
        self.members = sorted(keys)
        floor = 2 * n // 3 + 1
        n_min = floor if min_survivors is None else min_survivors
        self.context = AttemptContext(suite.name, "c", seed("manifest"), "job-1", 1, 7, attempt)
        self.bundles = tuple(signed_bundle(suite, name, serial) for name in self.names)
        self.plan = CohortPlan(
            b"encoding",
            ring_bits,
            length,
            colluders,
            n_min,
            dropout_percent,
            seed("chain"),
            tuple(BaseVersion(f, 7) for f in self.members),
        )
        self.pinned = {f: signer(suite.name, keys[f]).spki for f in self.members}
        small = n_min - colluders < 3
        self.policy = CohortPolicy(
            colluders,
            n_min,
            dropout_percent,
            **{"min_honest": 2 if small else 3, "small_cohort_consent": small, **policy},
        )
        self.sites = [self._site(name, serial, data) for name in self.names]
        self.timeouts = timeouts or StepTimeouts()
        self.roster = Roster(self.context, self.bundles, self.plan)
        self.out: Callable[[int, object], object] = lambda _, message: message

    def _site(self, name: str, serial: int, data: str) -> Site:
        key = signer(self.suite.name, name)
        config = SiteConfig(
            key.fingerprint,
            self.suite,
            self.context,
            self.pinned,
            self.policy,
            ExpectedPlan(
                b"encoding",
                self.ring_bits,
                self.length,
                seed("chain"),
                7,
                7,
                shared_noise=self.shared_noise,
                surplus_levels=self.surplus_levels,
            ),
            graph_rule=self.graph_rule,
        )
        return Site(
            name,
            config,
            signed_bundle(self.suite, name, serial),
            secrets_of(name, serial, len(self.surplus_levels)),
            key,
            data_of(data, name, self.length),
        )

    @cached_property
    def cohort(self) -> Cohort:
        """The cohort with its graph, as the honest roster and reveals make it."""
        cohort = Cohort.of(self.roster, self.graph_rule)
        if not cohort.is_sparse:
            return cohort
        return cohort.with_seed(statements.graph_seed(cohort.rh, self.reveals().values))

    def reveals(self) -> GraphReveals:
        """Every site's r."""
        values = tuple(site.secrets.bundle.graph_reveal for site in self.sites)
        return GraphReveals(self.context.digest(), values)

    def site(self, index: int) -> Site:
        """Return a site by its 1-based index."""
        return self.sites[index - 1]

    def new_server(self) -> ServerAttempt:
        return ServerAttempt(
            ServerConfig(
                self.suite,
                self.context,
                self.bundles,
                self.plan,
                self.pinned,
                self.timeouts,
                self.surplus_levels,
                self.graph_rule,
            )
        )

    def run(
        self,
        gone_after: dict[int, int] | None = None,
        *,
        silent: bool = False,
        tamper: Callable[[int, object], object] | None = None,
        order: Callable[[list], list] = list,
    ) -> Outcome:
        """Run the attempt with an honest aggregator.

        Args:
            gone_after: By index, the last step whose message the site still sends: -1 none, 0 its r
                in a sparse cohort and else none, 1 deals, 2 uploads, 3 signs, 4 (or absent) all.
            silent: Drop-outs say nothing and run into the deadline; else ``SiteLost``.
            tamper: Changes what a site sends, by its index; None drops it.
            order: Reorders the frames in flight to the aggregator.
        """
        gone_after = gone_after or {}
        server = self.new_server()
        self.outcome = outcome = Outcome(server)
        total = np.zeros(self.length, dtype=np.uint32)
        first = 0 if self.cohort.is_sparse else 1
        lost = {i for i, step in gone_after.items() if step < first}
        clock = NOW_S
        to_server: list = [c.Start()]
        if not silent:
            to_server += [c.SiteLost(self.members[i - 1], Reason.TIMEOUT) for i in sorted(lost)]
        while not server.is_over or to_server:
            if not to_server:
                clock = server.next_deadline_s()
                to_server = [c.Tick()]
            event = to_server.pop(0)
            try:
                todo = server.handle(event, clock)
            except PeerError as error:
                outcome.dropped.append(error.reason)
                continue
            replies = []
            for command in todo:
                if isinstance(command, c.SendTo):
                    index = self.members.index(command.site) + 1
                    if index not in lost:
                        replies += self._ask(index, command.message, clock, tamper)
                else:
                    self._record(command, outcome, total)
            for index, message in order(replies):
                if message is not None:
                    to_server.append(message)
                if gone_after.get(index, NEVER) == _step_of(message) and index not in lost:
                    lost.add(index)
                    if not silent:
                        to_server.append(c.SiteLost(self.members[index - 1], Reason.TIMEOUT))
        return outcome

    def _record(self, command, outcome: Outcome, total_D: np.ndarray) -> None:
        match command:
            case c.FoldUpload():
                outcome.folded.append(command.sender)
                total_D += self.sites[self.members.index(command.sender)].upload.values_d
            case c.UnmaskSum():
                outcome.terms = command.terms
                outcome.surplus_seeds = command.surplus_seeds
                unmask(total_D, command.terms, self.ring_bits)
            case c.Publish():
                outcome.survivors = command.survivors
                outcome.total_D = total_D
            case c.Blame():
                outcome.blamed.append((command.site, command.reason))
            case c.Accusation():
                outcome.accusations.append((command.by, command.against))
            case c.AbortAttempt():
                outcome.abort = command

    def _ask(self, index, message, clock, tamper) -> list:
        site = self.site(index)
        try:
            answers = site.feed(message, clock)
        except PeerError:
            return []
        replies = []
        for answer in answers:
            sent = answer if tamper is None else tamper(index, answer)
            if isinstance(sent, MaskedUpdate):
                digest = hashlib.sha256(sent.values_d.tobytes()).digest()
                sent = c.UploadCompleted(site.me, digest)
            replies.append((index, sent))
        return replies

    def expected_D(self, survivors) -> np.ndarray:
        """Sum the survivors' integers modulo 2^B, in the clear."""
        total = sum(s.x_D for s in self.sites if s.me in set(survivors))
        return np.mod(total, 1 << self.ring_bits).astype(np.uint32)

    # --- the aggregator's role, by hand ----------------------------------------------------------

    def deal_all(self, indices=None) -> dict[int, object]:
        """Give every site the honest roster, and the reveals; return what each dealt."""
        indices = indices or range(1, self.n + 1)
        first = {i: self.site(i).feed(self.roster)[0] for i in indices}
        if not self.cohort.is_sparse:
            return first
        return {i: self.site(i).feed(self.reveals())[0] for i in indices}

    def delivery(self, dealt: dict[int, object], to: int, only=None) -> ShareDelivery:
        from privacy.secagg.server_steps import deliver

        chosen = {i: d for i, d in sorted(dealt.items()) if only is None or i in only}
        cohort = self.cohort
        trees = {
            i: statements.share_tree(cohort.graph.holders(i), d.ciphertexts, d.commitments)
            for i, d in chosen.items()
        }
        return ShareDelivery(self.context.digest(), deliver(cohort, chosen, trees, to))

    def upload_all(self, dealt=None) -> dict[int, object]:
        dealt = dealt or self.deal_all()
        for i in dealt:
            self.site(i).feed(self.delivery(dealt, i))
        return dealt

    def survivor_set(self, dealt, survivors) -> SurvivorSet:
        return SurvivorSet(self.context.digest(), tuple(dealt), tuple(survivors))

    def quorum(self, signatures) -> SurvivorQuorum:
        return SurvivorQuorum(self.context.digest(), tuple(signatures))


def data_of(data: str, name: str, length: int) -> np.ndarray:
    rng = np.random.default_rng(int.from_bytes(seed("data", data, name)[:8]))
    return rng.integers(-(2**40), 2**40, size=length, dtype=np.int64)


def _step_of(message) -> int | None:
    return {
        "GraphReveal": 0,
        "DealtShares": 1,
        "UploadCompleted": 2,
        "SurvivorSignature": 3,
        "UnmaskShares": 4,
    }.get(type(message).__name__)


def with_config(site: Site, **changes) -> Site:
    """Give a site another configuration before its attempt begins."""
    site.config = replace(site.config, **changes)
    site.attempt = SiteAttempt(site.config, site.own, site.secrets)
    return site


def refused(site, message, reason, clause=""):
    """Feed a message that must kill the attempt, and show that no protocol message left for it."""
    before = len(site.sent)
    site.feed(message)
    assert site.aborted is not None, "the attempt must die"
    assert site.aborted.reason is reason, site.aborted.message
    assert clause in site.aborted.message
    assert site.erased
    assert all(isinstance(m, AbortSignature) for m in site.sent[before:])


def signed_sets(federation, dealt=(1, 2, 3, 4, 5), survivors=(1, 2, 3, 4, 5)):
    """Bring every site to slot 3; return the signatures by index."""
    federation.upload_all()
    message = federation.survivor_set(dealt, survivors)
    return {i: federation.site(i).feed(message)[0] for i in survivors}
