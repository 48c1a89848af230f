"""Sites as the participant knows them, and one aggregator, all in memory and in virtual time.

``SimSite`` is a participant with a shell that carries its commands out on dictionaries; what the
daemon does with files and gRPC, it does with lists. ``SimAggregator`` runs rounds over them with
the real ``ServerAttempt``. Every random byte derives from a name.
"""

import contextlib
import hashlib
from collections import deque
from typing import ClassVar

import numpy as np

from edge_node import commands as ec
from edge_node.attempt_terms import SiteIdentity
from edge_node.participant import Participant
from edge_node.policy import Policy
from privacy.errors import PeerError, Reason
from privacy.noise import NoisedUpdate
from privacy.pipeline import Mode
from privacy.secagg import commands as sc
from privacy.secagg.encoding import hash_of
from privacy.secagg.keys import P256, BundleSecrets, make_bundle
from privacy.secagg.masking import mask, unmask
from privacy.secagg.messages import AttemptContext, BaseVersion, CohortPlan, Roster, SignedBundle
from privacy.secagg.server import ServerAttempt, ServerConfig
from privacy.secagg.site import SiteSecrets
from privacy.secagg.statements import bundle_statement
from tests.support.encoding_plans import make_plan
from tests.support.secagg_harness import seed, signer
from tests.support.version_market import NO_LOG
from tidegate import messages as m
from tidegate.broadcast import Broadcast, ContentName
from tidegate.keys import EcdsaSigner, make_key
from tidegate.manifest import Manifest, make_member, seal

NAMES = [f"bank-{letter}" for letter in "abcde"]
NOW_S = 1_800_000_000.0
PLAN = make_plan(Mode.RECORD_DISTRIBUTED, gradient=5, metrics=0)
OPERATOR = EcdsaSigner(make_key())


def node_fingerprint(name):
    return hashlib.sha256(f"tls {name}".encode()).digest()


def make_manifest(names, colluders=1, min_survivors=4):
    members = tuple(
        make_member(name, node_fingerprint(name), signer(P256.name, name).spki)
        for name in sorted(names)
    )
    manifest = Manifest("market", 1, colluders, min_survivors, members)
    return manifest, seal(manifest, OPERATOR.sign)


def open_policy(**changes):
    rules = {"min_honest": 3, **changes}
    return Policy(modes=("record-distributed",), datasets=("credit",), **rules)


class SimSite:
    """One participant and its shell; ``sent`` holds what went to the aggregator."""

    def __init__(self, name, manifest=None, policy=None, plan=PLAN, evaluation=None):
        self.name = name
        self.plan = plan
        self.evaluation = evaluation
        self.signer = signer(P256.name, name)
        self.me = self.signer.fingerprint
        identity = SiteIdentity(
            name, self.me, node_fingerprint(name).hex(), OPERATOR.spki(), b"i" * 16, "cpu"
        )
        self.policy = policy or open_policy()
        self.identity = identity
        self.participant = Participant(identity, self.policy, manifest)
        self.now_s = NOW_S
        self.sent = deque()
        self.notes = []
        self.stock = {}
        self.slots = {}
        self.begun = {}
        self.charges = []
        self.held = {}
        self.slots_of_dead = {}
        self.served = {}
        self.last_sum = None
        self.ready = {}
        self.charged = {}
        self.pinned = None
        self.trained = 0
        self.train_error = None
        self.refuse_step = None
        self.uploads = {}
        self.last_accepted = {}
        self.hold_training = False
        self.held_training = None

    def accepted(self, job_id):
        return ec.AcceptedJob(
            job_id, self.plan, previous_survivors=self.last_sum, evaluation=self.evaluation
        )

    def feed(self, event):
        events = deque([event])
        while events:
            event = events.popleft()
            if isinstance(event, Roster):
                event = self.with_secrets(event)
            for command in self.participant.handle(event, self.now_s):
                answer = self.carry_out(command)
                if answer is not None:
                    events.append(answer)

    def with_secrets(self, roster):
        last = self.last_accepted.get(roster.context.job_id, (-1, -1))
        for signed in roster.bundles:
            if signed.bundle.site == self.me and signed.bundle.serial in self.stock:
                serial = signed.bundle.serial
                secrets = SiteSecrets(
                    BundleSecrets(seed("bundle", self.name, serial)),
                    seed("self", self.name, serial),
                    seed("coefficients", self.name, serial),
                )
                return ec.RosterArrived(roster, self.stock[serial], secrets, last)
        return ec.RosterArrived(roster, None, None, last)

    def carry_out(self, command):
        match command:
            case ec.SendMessage(message):
                self.sent.append(message)
            case ec.PinManifest():
                self.pinned = command.raw
            case ec.RefillBundles(count):
                self.refill(count)
            case ec.ConsiderJob(offer):
                return ec.JobJudged(offer.job_id, self.accepted(offer.job_id))
            case ec.Train():
                return self.train(command)
            case ec.SignStep(ctx, purpose, message):
                return ec.AttemptSigned(ctx, purpose, self.signer.sign(message))
            case ec.CommitStep():
                return self.commit(command)
            case ec.UploadUpdate(ctx, _, ring_bits, terms):
                update = NoisedUpdate(self.charged[ctx])
                self.uploads[ctx] = mask(update, terms, ring_bits).values_d
            case ec.Note():
                self.notes.append(command)
            case _:
                self.put_away(command)
        return None

    def put_away(self, command):
        match command:
            case ec.DropUpdate(job_id):
                self.ready.pop(job_id, None)
                self.held.pop(job_id, None)
            case ec.HoldUpdate(ctx, job_id):
                self.slots_of_dead[ctx] = self.slots.pop(ctx)
                assert sc.Step.UNMASK not in self.slots_of_dead[ctx]
                self.held[job_id] = (ctx, self.charged.pop(ctx))
            case ec.RecallUpdate(job_id, key):
                self.ready[job_id] = (key, self.held[job_id][1])
            case ec.EraseAttempt(ctx):
                self.slots.pop(ctx, None)
                self.charged.pop(ctx, None)

    def refill(self, count):
        made = []
        for _ in range(count):
            serial = 1 + len(self.stock) + len(self.begun)
            secrets = BundleSecrets(seed("bundle", self.name, serial))
            bundle = make_bundle(P256, secrets, self.me, "market", b"i" * 16, serial, int(2e9))
            signed = SignedBundle(bundle, self.signer.sign(bundle_statement(bundle)))
            self.stock[serial] = signed
            made.append(signed)
        self.sent.append(m.BundleStock(tuple(made)))

    def train(self, command):
        if self.train_error is not None:
            reason, why = self.train_error
            return ec.TrainFailed(command.job_id, command.key, reason, why, 0.5)
        if self.hold_training:
            self.held_training = command
            return None
        return self.finish_training(command)

    def finish_training(self, command):
        self.trained += 1
        value = seed(self.name, command.key.version, self.trained)[0] - 128
        self.ready[command.job_id] = (command.key, np.arange(5, dtype=np.int64) * value)
        return ec.Trained(command.job_id, command.key, 0.25)

    def commit(self, command):
        step = command.commit.step
        if self.refuse_step is step:
            return ec.StepRefused(command.ctx, step, Reason.BUDGET_EXHAUSTED, "nothing left")
        slots = self.slots.setdefault(command.ctx, {})
        assert step not in slots, "a slot is written once"
        slots[step] = command.commit.slot
        if command.commit.begins:
            self.last_accepted[command.job_id] = (command.key.round, command.attempt)
            self.begun[command.ctx] = command
        if step is sc.Step.MASKED_UPDATE:
            key, update = self.ready[command.job_id]
            assert key == command.key
            if self.plan.mode is not Mode.RECORD_LOCAL:
                del self.ready[command.job_id]
            self.charged[command.ctx] = update
            if command.commit.charge:
                self.charges.append(command.ctx)
            elif self.plan.mode is not Mode.RECORD_LOCAL:
                assert self.held[command.job_id][0] == command.serves
                self.served[command.ctx] = command.serves
            self.held.pop(command.job_id, None)
        if command.survivors:
            assert step is sc.Step.UNMASK
            self.last_sum = frozenset(command.survivors)
        return ec.StepCommitted(command.ctx, step)

    def take(self, kind):
        """Remove and give all sent messages of a kind."""
        found = [message for message in self.sent if isinstance(message, kind)]
        self.sent = deque(message for message in self.sent if not isinstance(message, kind))
        return found


class SimAggregator:
    """Rounds over simulated sites; ``lose`` says at which step a site falls silent."""

    def __init__(
        self, names, policies=None, colluders=1, min_survivors=4, plan=PLAN, evaluation=None
    ):
        self.manifest, (self.raw, self.signature) = make_manifest(names, colluders, min_survivors)
        policies = policies or {}
        self.plan = plan
        self.evaluation = evaluation
        self.sites = {
            name: SimSite(name, None, policies.get(name), plan, evaluation) for name in names
        }
        self.by_me = {site.me: site for site in self.sites.values()}
        self.stock = {site.me: deque() for site in self.sites.values()}
        self.delivered = []
        self.failed = []
        self.version = 0
        self.job_id = "job-1"
        self.attempt = 0
        self.round = 1
        self.purpose = m.TRAIN

    @property
    def round_plan(self):
        return self.evaluation if m.is_evaluation(self.purpose) else self.plan

    def welcome(self):
        return m.Welcome(m.PROTOCOL, self.raw, self.signature)

    def connect(self):
        for site in self.sites.values():
            site.feed(ec.Connected())
            assert isinstance(site.sent.popleft(), m.Hello)
            site.feed(self.welcome())
            site.feed(m.BundleRequest(8))
            self.stock[site.me].extend(site.take(m.BundleStock)[0].bundles)

    def offer(self):
        offer = m.JobOffer(self.job_id, b"job", b"a" * 32, 10, b"spec", self.plan.to_bytes())
        for site in self.sites.values():
            site.feed(offer)
            assert site.take(m.JobReply)[0].accepted

    def broadcast(self, version):
        digest = hashlib.sha256(f"model {version}".encode()).digest()
        return Broadcast(version, checkpoint=ContentName(digest, 20))

    def head(self, version):
        before = hash_of("chain", self.job_id) if version == 0 else self.head(version - 1)
        return hash_of("version", before, version, self.broadcast(version).sha256)

    def train_request(self, **changes):
        fields = {
            "job_id": self.job_id,
            "round": self.round,
            "broadcast": self.broadcast(self.version),
            "chain_head": self.head(self.version),
            "log": NO_LOG,
            "purpose": self.purpose,
        }
        return m.TrainRequest(**{**fields, **changes})

    def ask_to_train(self, names=None):
        """Send the train request; returns the names of those who said ready."""
        for name in names or self.sites:
            self.sites[name].feed(self.train_request())
        return [name for name, site in self.sites.items() if site.take(m.Ready)]

    def roster(self, names, **changes):
        self.attempt += 1
        sites = sorted(self.sites[name].me for name in names)
        context = AttemptContext(
            P256.name, "market", self.manifest.hash(), self.job_id, 1, self.round, self.attempt
        )
        plan = CohortPlan(
            encoding=self.round_plan.to_bytes(),
            ring_bits=self.round_plan.bits,
            length=self.round_plan.length,
            colluders=self.manifest.colluders,
            min_survivors=self.manifest.min_survivors,
            dropout_percent=self.manifest.dropout_percent,
            chain_head=self.head(self.version),
            bases=tuple(BaseVersion(me, self.version) for me in sites),
        )
        bundles = tuple(self.stock[me].popleft() for me in sites)
        fields = {"context": context, "bundles": bundles, "plan": plan}
        return Roster(**{**fields, **changes})

    def run_attempt(self, names, lose=None):
        """Run one attempt.

        Args:
            names: The cohort.
            lose: By site name: "shares", "upload", "u3" or "unmask", the step it does not answer.

        Returns:
            ("published", the sum mod 2^B, survivors' names) or ("aborted", reason).
        """
        lose = lose or {}
        roster = self.roster(names)
        attempt = ServerAttempt(
            ServerConfig(P256, roster.context, roster.bundles, roster.plan, self.manifest.pinned())
        )
        outcome = _Run(self, attempt, roster.context.digest(), lose).go()
        if outcome[0] == "aborted":
            self.failed.append(attempt)
        return outcome

    def proof_of(self, attempt, name):
        """Give an aborted attempt's proof for a site; votes that came since are counted too."""
        for site in self.sites.values():
            for vote in site.take((m.AbortSignature, m.SurvivorSignature)):
                for failed in self.failed:
                    with contextlib.suppress(PeerError):
                        failed.handle(vote, NOW_S)
        return attempt.proof_for(self.sites[name].me)

    def free(self, names):
        """Send each of these sites the proof of its last attempt, where there is one."""
        for name in names:
            proof = self.proof_of(self.failed[-1], name)
            if proof is not None:
                self.sites[name].feed(proof)


def updates_of(aggregator):
    """Give each site's update that is ready, by name."""
    return {n: s.ready["job-1"][1].copy() for n, s in aggregator.sites.items() if s.ready}


class _Run:
    """One attempt in progress."""

    KINDS: ClassVar = {
        m.DealtShares: "shares",
        m.SurvivorSignature: "u3",
        m.UnmaskShares: "unmask",
    }

    def __init__(self, aggregator, attempt, ctx, lose):
        self.aggregator, self.attempt, self.ctx, self.lose = aggregator, attempt, ctx, lose
        self.sum_d = np.zeros(PLAN.length, dtype=np.uint32)
        self.survivors = ()
        self.outcome = None
        self.now_s = NOW_S

    def go(self):
        self.server(sc.Start())
        for _ in range(40):
            moved = self.collect()
            if self.outcome is not None:
                return self.outcome
            if not moved:
                self.now_s = self.attempt.next_deadline_s()
                self.server(sc.Tick())
                if self.outcome is not None:
                    return self.outcome
        raise AssertionError("the attempt neither ends nor aborts")

    def collect(self):
        moved = False
        for site in self.aggregator.sites.values():
            uploaded = site.uploads.pop(self.ctx, None)
            if uploaded is not None and self.lose.get(site.name) != "upload":
                moved = True
                digest = hashlib.sha256(uploaded.tobytes()).digest()
                self.folded = uploaded
                self.server(sc.UploadCompleted(site.me, digest))
            while site.sent:
                message = site.sent.popleft()
                if self.lose.get(site.name) == self.KINDS.get(type(message), ""):
                    continue
                if isinstance(message, (*self.KINDS, m.AbortSignature)):
                    moved = True
                    # Late frames are part of a life with drop-outs, as at the real aggregator.
                    with contextlib.suppress(PeerError):
                        self.server(message)
                elif isinstance(message, m.Ready):
                    site.early_ready = True
        return moved

    def server(self, event):
        for command in self.attempt.handle(event, self.now_s):
            match command:
                case sc.SendTo(me, message):
                    self.deliver(me, message)
                case sc.FoldUpload():
                    self.sum_d += self.folded
                case sc.UnmaskSum(terms):
                    unmask(self.sum_d, terms, self.aggregator.round_plan.bits)
                case sc.Publish(_, survivors):
                    self.survivors = survivors
                    names = sorted(self.aggregator.by_me[me].name for me in survivors)
                    self.outcome = ("published", self.sum_d, names)
                case sc.AbortAttempt(reason, message, _):
                    self.outcome = ("aborted", reason, message)

    def deliver(self, me, message):
        if type(message).__name__ == "Published":
            members = self.attempt.cohort.members
            indices = tuple(members.index(s) + 1 for s in sorted(self.survivors))
            message = m.AttemptResult(self.ctx, message.transcript_hash, indices)
        self.aggregator.delivered.append((me, message))
        self.aggregator.by_me[me].feed(message)
