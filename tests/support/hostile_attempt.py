"""One attempt as a hostile aggregator runs it: what each site was told, what each gave away.

The victim is a real edge node behind the wire. The other members are SA-1's own site machines in
memory: honest ones, which keep every rule, and colluders, whose keys the attacker holds
(`attacker_knowledge.py`).
"""

import hashlib
import time
from collections import deque
from dataclasses import replace

import numpy as np

from privacy.pipeline import Mode
from privacy.planning import encoding_for_version
from privacy.secagg import commands as c
from privacy.secagg.cohort import Cohort
from privacy.secagg.keys import P256, BundleSecrets, make_bundle
from privacy.secagg.masking import MaskedUpdate, unmask
from privacy.secagg.messages import (
    AbortSignature,
    AttemptContext,
    BaseVersion,
    CohortPlan,
    DealtShares,
    Published,
    Roster,
    ShareDelivery,
    SignedBundle,
    SurvivorQuorum,
    SurvivorSet,
    SurvivorSignature,
    UnmaskShares,
)
from privacy.secagg.rules import CohortPolicy, ExpectedPlan, SiteConfig
from privacy.secagg.server import ServerAttempt, ServerConfig
from privacy.secagg.server_steps import deliver
from privacy.secagg.site import SiteSecrets
from privacy.secagg.statements import bundle_statement, share_tree, survivor_statement
from tests.support.hostile_wire import Uploaded
from tests.support.secagg_harness import Site, seed, signer
from tidegate import messages as m

BUNDLE_VALID_S = 86_400


def signed(name, secrets, serial, consortium, **changes):
    """Make and sign a bundle of a member."""
    key = signer(P256.name, name)
    bundle = make_bundle(
        P256,
        secrets.bundle,
        key.fingerprint,
        consortium,
        seed("instance", name)[:16],
        serial,
        int(time.time()) + BUNDLE_VALID_S,
    )
    bundle = replace(bundle, **changes)
    return SignedBundle(bundle, key.sign(bundle_statement(bundle)))


def peer_secrets(name, serial):
    return SiteSecrets(
        BundleSecrets(seed("hostile bundle", name, serial)),
        seed("hostile self", name, serial),
        seed("hostile coefficients", name, serial),
    )


def make_attempt(evil, number, attempt, names):
    """Cut a cohort for the newest train request of a hostile aggregator."""
    manifest, request = evil.manifest, evil.request
    plan = encoding_for_version(evil.encoding, request.version, request.announced)
    context = AttemptContext(
        P256.name,
        manifest.consortium_id,
        manifest.hash(),
        evil.job_id,
        manifest.roster_epoch,
        number,
        attempt,
    )
    expected = ExpectedPlan(
        plan.to_bytes(),
        plan.bits,
        plan.length,
        request.chain_head,
        request.version,
        request.version,
        noised=plan.mode is not Mode.NONE,
    )
    policy = CohortPolicy(
        manifest.colluders, manifest.min_survivors, min_honest=2, small_cohort_consent=True
    )
    bundles, peers = [], {}
    for name in names:
        me = signer(P256.name, name).fingerprint
        if me == evil.me:
            bundles.append(evil.bundle())
            continue
        serial = evil.serial(name)
        secrets = peer_secrets(name, serial)
        own = signed(name, secrets, serial, manifest.consortium_id)
        bundles.append(own)
        config = SiteConfig(me, P256, context, manifest.pinned(), policy, expected)
        rng = np.random.default_rng(int.from_bytes(seed("hostile x", name, number, attempt)[:8]))
        x_D = rng.integers(-1000, 1000, plan.length, dtype=np.int64)
        peers[me] = Site(name, config, own, secrets, signer(P256.name, name), x_D)
    bundles.sort(key=lambda entry: entry.bundle.site)
    sites = [entry.bundle.site for entry in bundles]
    frozen = CohortPlan(
        encoding=plan.to_bytes(),
        ring_bits=plan.bits,
        length=plan.length,
        colluders=manifest.colluders,
        min_survivors=manifest.min_survivors,
        dropout_percent=manifest.dropout_percent,
        chain_head=request.chain_head,
        bases=tuple(BaseVersion(site, request.version) for site in sites),
    )
    return Attempt(evil, Roster(context, tuple(bundles), frozen), peers)


class Attempt:
    """See the module. Sites go by their index in the roster, from 1.

    Attributes:
        victim: The edge node's index.
        peers: The other members' machines.
        told: The roster that each was given.
        dealt: What each dealt.
        received: U2_i of each site that was sent shares, itself included.
        uploads: The masked vectors, uint32.
        x: The vectors behind them, which no attacker has.
        votes: Signatures on survivor sets.
        answers: Shares that were released.
    """

    def __init__(self, evil, roster, peers):
        self.evil, self.roster = evil, roster
        self.ctx = roster.context.digest()
        self.bits = roster.plan.ring_bits
        self.members = tuple(entry.bundle.site for entry in roster.bundles)
        self.all = tuple(range(1, len(self.members) + 1))
        self.peers = {self.members.index(me) + 1: site for me, site in peers.items()}
        self.victim = self.members.index(evil.me) + 1 if evil.me in self.members else 0
        self.told = dict.fromkeys(self.all, roster)
        self.dealt, self.received, self.uploads = {}, {}, {}
        self.votes, self.answers = {}, {}
        self.x = {index: site.x_D for index, site in self.peers.items()}
        if self.victim:
            self.x[self.victim] = evil.update()

    @property
    def others(self):
        """The indices of the peers, ascending."""
        return tuple(sorted(self.peers))

    def with_bundle(self, index, entry):
        """Give the roster with another bundle of one member, or with a stranger in its place."""
        kept = [b for i, b in enumerate(self.roster.bundles, 1) if i != index]
        bundles = sorted([*kept, entry], key=lambda one: one.bundle.site)
        version = self.roster.plan.bases[0].version
        bases = tuple(BaseVersion(one.bundle.site, version) for one in bundles)
        plan = replace(self.roster.plan, bases=bases)
        return replace(self.roster, bundles=tuple(bundles), plan=plan)

    def bundle_of_friend(self, index, **changes):
        """Make a bundle that a colluding member signs, whatever stands in it."""
        site = self.peers[index]
        serial = self.roster.bundles[index - 1].bundle.serial
        consortium = self.roster.context.consortium_id
        return signed(site.name, site.secrets, serial, consortium, **changes)

    def peer_expects(self, index, roster, **plan):
        """Let a peer follow another roster: it was told another story from the beginning."""
        site = self.peers[index]
        site.config = replace(
            site.config, context=roster.context, plan=replace(site.config.plan, **plan)
        )
        site.__post_init__()
        site.attempt._config = site.config
        site.attempt._state.config = site.config
        self.told[index] = roster

    # --- step by step, as the attacker likes -----------------------------------------------------

    def feed(self, index, message):
        """Give a peer a message; an honest machine's answers come back."""
        return self.peers[index].feed(message, time.time())

    async def deal(self, roster=None):
        """Step 1: send the rosters; everybody deals."""
        self.evil.send(roster or self.told[self.victim])
        for index in self.others:
            (self.dealt[index],) = self.feed(index, self.told[index])
        self.dealt[self.victim] = await self.evil.expect(DealtShares)
        self.dealt = dict(sorted(self.dealt.items()))

    def delivery(self, to, only=None, dealt=None):
        """Cut what was dealt down to one recipient, from all or only some of the dealers."""
        chosen = {i: d for i, d in (dealt or self.dealt).items() if only is None or i in only}
        return ShareDelivery(
            self.told[to].context.digest(), deliver_to(Cohort.of(self.told[to]), chosen, to)
        )

    async def upload(self, only=None):
        """Step 2: deliver the shares; ``only`` names the dealers by recipient."""
        only = only or {}
        await self.upload_of_victim(only.get(self.victim))
        for index in self.others:
            self.upload_of_peer(index, only.get(index))

    async def upload_of_victim(self, only=None):
        self.evil.send(self.delivery(self.victim, only))
        found = await self.evil.expect(Uploaded)
        self.received[self.victim] = tuple(only or self.dealt)
        self.uploads[self.victim] = self.evil.ring(found.data)
        return found

    def upload_of_peer(self, index, only=None):
        (masked,) = self.feed(index, self.delivery(index, only))
        self.received[index] = tuple(only or self.dealt)
        self.uploads[index] = masked.values_d

    def survivor_set(self, survivors, dealt=None):
        return SurvivorSet(self.ctx, tuple(dealt or self.dealt), tuple(survivors))

    async def vote(self, survivors=None, dealt=None):
        """Step 3: everybody is asked to sign one set."""
        message = self.survivor_set(survivors or self.all, dealt)
        for index in self.others:
            if index in message.survivors:
                (self.votes[index],) = self.feed(index, message)
        if self.victim in message.survivors:
            self.evil.send(message)
            self.votes[self.victim] = await self.evil.expect(SurvivorSignature)

    def forge_vote(self, friend, message):
        """Sign any set with a friend's key, which the attacker holds."""
        site = self.peers[friend]
        cohort = site.attempt.cohort
        statement = survivor_statement(cohort.rh, cohort.mh, message.dealt, message.survivors)
        return SurvivorSignature(self.ctx, site.me, site.key.sign(statement))

    def quorum(self, votes=None):
        return SurvivorQuorum(self.ctx, tuple(self.votes.values() if votes is None else votes))

    async def unmask(self):
        """Step 4: everybody that voted is shown the votes, and answers."""
        for index in self.others:
            if index in self.votes:
                (self.answers[index],) = self.feed(index, self.quorum())
        self.evil.send(self.quorum())
        self.answers[self.victim] = await self.evil.expect(UnmaskShares)

    # --- by the rules ----------------------------------------------------------------------------

    async def run_honestly(self, silent=()):
        """Run the attempt with the real aggregator's machine; the opened sum must be exact.

        Args:
            silent: Peers that do not answer the roster.

        Returns:
            The indices in the sum.
        """
        server = ServerAttempt(
            ServerConfig(
                P256,
                self.roster.context,
                self.roster.bundles,
                self.roster.plan,
                self.evil.manifest.pinned(),
            )
        )
        total_D = np.zeros(self.roster.plan.length, np.uint32)
        todo, survivors = deque(server.handle(c.Start(), time.time())), ()
        for index in silent:
            todo.extend(server.handle(c.SiteLost(self.members[index - 1], "timeout"), time.time()))
        while todo or not server.is_over:
            if not todo:
                todo.extend(server.handle(await self._from_victim(), time.time()))
                continue
            match todo.popleft():
                case c.SendTo(site, message):
                    for event in self._deliver(self.members.index(site) + 1, message, silent):
                        todo.extend(server.handle(event, time.time()))
                case c.FoldUpload(sender):
                    total_D += self.uploads[self.members.index(sender) + 1]
                case c.UnmaskSum(terms):
                    unmask(total_D, terms, self.bits)
                case c.Publish(transcript, survivors):
                    survivors = tuple(self.members.index(site) + 1 for site in survivors)
                    self.evil.send(m.AttemptResult(self.ctx, transcript, survivors))
                case c.AbortAttempt() as abort:
                    raise AssertionError(f"the honest attempt aborted: {abort}")
        expected_D = np.mod(sum(self.x[index] for index in survivors), 1 << self.bits)
        np.testing.assert_array_equal(total_D, expected_D)
        return survivors

    def _deliver(self, index, message, silent):
        if isinstance(message, Published):
            return
        if index == self.victim:
            self.evil.send(message)
            return
        if index in silent:
            return
        for answer in self.feed(index, message):
            if isinstance(answer, MaskedUpdate):
                self.uploads[index] = answer.values_d
                digest = hashlib.sha256(answer.values_d.tobytes()).digest()
                yield c.UploadCompleted(self.members[index - 1], digest)
            else:
                yield answer

    async def _from_victim(self):
        kinds = (DealtShares, SurvivorSignature, UnmaskShares, AbortSignature, m.AttemptFailed)
        answer = await self.evil.expect((*kinds, Uploaded))
        if isinstance(answer, Uploaded):
            assert answer.ctx == self.ctx
            self.uploads[self.victim] = self.evil.ring(answer.data)
            return c.UploadCompleted(self.evil.me, hashlib.sha256(answer.data).digest())
        assert not isinstance(answer, m.AttemptFailed), f"the victim left: {answer}"
        return answer


def deliver_to(cohort, dealt, recipient):
    """Cut what sites dealt down to one recipient."""
    trees = {
        i: share_tree(cohort.graph.holders(i), one.ciphertexts, one.commitments)
        for i, one in dealt.items()
    }
    return deliver(cohort, dealt, trees, recipient)
