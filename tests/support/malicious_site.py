"""A malicious member: a valid TLS identity, a pinned key, and any frame that it likes.

It speaks the real wire to a real aggregator among honest sites (`live_aggregator.py`). By default
it keeps every rule, as `wire_site.WireSite` does; a test bends one message or the upload.
"""

import asyncio
import time
from dataclasses import replace

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from safetensors.numpy import load

from privacy.secagg import statements
from privacy.secagg.encoding import Label
from privacy.secagg.keys import P256, hkdf
from tests.support.live_aggregator import SPEC, job_toml
from tests.support.wire_site import WireSite
from tidegate import convert
from tidegate import messages as m
from tidegate.v1 import federation_pb2

CHEAT = 2
"""The malicious site's place among the five."""

EVERYONE = (0, 1, 2, 3, 4)
HONEST = (0, 1, 3, 4)


class MaliciousSite(WireSite):
    """One site; see the module.

    Attributes:
        bend: By message type: a function of (site, message) that gives what is sent in its place:
            a message, raw bytes, a list of them, or None for silence.
        bend_upload: Takes (ctx, packed bytes) and gives the bytes that are uploaded.
        bent: How often a message was bent.
        once: Bend only the first message.
    """

    def __init__(self, site_id, delta_of=None):
        super().__init__(site_id, delta_of)
        self.bend = {}
        self.bend_upload = None
        self.bent = 0
        self.once = True

    def dial(self, address):
        super().dial(address)
        return self

    def Session(self):
        return self.channel.stream_stream(
            "/tidegate.v1.FederationService/Session",
            response_deserializer=federation_pb2.SessionResponse.FromString,
        )()

    async def send(self, message):
        bend = self.bend.get(type(message))
        if bend is None or (self.once and self.bent):
            await self.send_honestly(message)
            return
        self.bent += 1
        sent = bend(self, message)
        for one in sent if isinstance(sent, list) else [sent]:
            if isinstance(one, bytes):
                await self.send_raw(one)
            elif one is not None:
                await self.send_honestly(one)

    async def send_honestly(self, message):
        await self.send_raw(convert.site_message_to_wire(message).SerializeToString())

    async def send_raw(self, frame):
        """Send bytes as one frame, whatever they are."""
        await self.call.write(frame)

    async def upload_bytes(self, ctx, packed, **options):
        if self.bend_upload is not None and not (self.once and self.bent):
            self.bent += 1
            packed = self.bend_upload(ctx, packed)
        return await super().upload_bytes(ctx, packed, **options)

    async def upload(self, attempt, terms):
        refused = len(self.upload_refusals)
        await super().upload(attempt, terms)
        for reason in self.upload_refusals[refused:]:  # as an edge node says it
            await self.send_honestly(m.AttemptFailed(attempt.cohort.ctx, reason, "refused"))

    # --- what a dealer can do --------------------------------------------------------------------

    def live(self, ctx):
        """Give the machine of an attempt."""
        return self.attempts[ctx]

    def resign(self, dealt):
        """Sign what it made up, with its own key: the signature is good."""
        cohort = self.live(dealt.ctx).cohort
        tree = statements.share_tree(cohort.indices, dealt.ciphertexts, dealt.commitments)
        message = statements.share_statement(cohort.rh, tree.root, dealt.commitments.self_seed)
        return replace(dealt, signature=self.signer.sign(message))

    def seal_again(self, dealt, recipient, plaintext=None, aad=None):
        """Encrypt another pair of shares, or with another AAD, for one recipient; sign it well."""
        attempt = self.live(dealt.ctx)
        cohort, me = attempt.cohort, attempt.cohort.index_of(self.me)
        seed = attempt._state._secrets.bundle.transport_seed
        secret = P256.agree(P256.private_key(seed, Label.TRANSPORT_SCALAR), cohort.c_pk(recipient))
        cipher = AESGCM(hkdf(secret, Label.SHARE_KEY, cohort.rh))
        nonce = statements.share_nonce(me, recipient)
        good = statements.share_aad(cohort.rh, me, recipient)
        old = cipher.decrypt(nonce, dealt.ciphertexts[recipient - 1], good)
        ciphertexts = list(dealt.ciphertexts)
        ciphertexts[recipient - 1] = cipher.encrypt(nonce, plaintext or old, aad or good)
        return self.resign(replace(dealt, ciphertexts=tuple(ciphertexts)))


def with_unknown_field(message):
    """Give a site's frame with a field that no message of ours has."""
    return convert.site_message_to_wire(message).SerializeToString() + b"\xfa\x3f\x03abc"


# --- one among five -------------------------------------------------------------------------------


def deltas(index):
    def delta_of(version, length):
        rng = np.random.default_rng(1000 * index + version)
        return rng.uniform(-0.01, 0.01, length)

    return delta_of


def make_site(bend=None, **changes):
    """Make the third site a malicious one, the others honest."""

    def make(index, name):
        if index != CHEAT:
            return None
        site = MaliciousSite(name, deltas(CHEAT))
        site.bend = bend or {}
        site.__dict__.update(changes)
        return site

    return make


async def everyone_is_there(live):
    """Wait until each living site has a session and a stock of bundles at the aggregator."""
    for site in live.sites:
        while not site.dead.is_set() and not _is_there(live.coordinator, site):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def _is_there(coordinator, site):
    stock = coordinator._stock.count(site.me, time.time())
    return stock and coordinator.sessions.get(site.me) is not None


async def finishes(live, *rounds, toml=None):
    """Run a job; its model must be the exact sum of the means over these sites, round by round."""
    toml = toml or job_toml(rounds=len(rounds), deadline=2.0)
    await everyone_is_there(live)
    job_id = await live.submit(toml)
    job = await live.watch(job_id)
    assert (job.state, job.round) == ("finished", len(rounds)), job
    tensors = load(await live.export(job_id))
    flat = np.concatenate([tensors[t.name].ravel() for t in SPEC.tensors])
    means = [
        np.mean([deltas(i)(version, SPEC.length) for i in sites], axis=0)
        for version, sites in enumerate(rounds)
    ]
    np.testing.assert_allclose(flat, sum(means), atol=1e-6)
    return job
