"""A malicious aggregator: it speaks the real wire, over TLS, to a real edge node on loopback.

The edge node is the daemon's own code with its store, ledger, mirror and policy; only the trainer
is a stand-in. What the aggregator says is the test's to choose, frame by frame; what the site says
and uploads is kept. The other members of the cohort and what is told to whom: `hostile_attempt.py`.
"""

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np

from aggregator.admission import admit
from aggregator.config import Limits
from privacy.pipeline import EncodingPlan
from privacy.ring import unpack
from privacy.secagg.keys import P256
from tests.support.hostile_attempt import make_attempt
from tests.support.hostile_consortium import VICTIM, identities, make_manifest, write_credentials
from tests.support.hostile_wire import HostileWire
from tests.support.live_aggregator import RECORD, SPEC, app_bundle, job_toml
from tests.support.live_site import LiveSite, budgets
from tests.support.secagg_harness import signer
from tests.support.version_market import log_of, whole
from tidegate import appbundle
from tidegate import messages as m
from tidegate.manifest import seal
from tidegate.requests import SubmitHeader
from tidegate.version_chain import chain_start

ROUNDS = 20


class HostileAggregator(HostileWire):
    """One hostile aggregator and its one victim; see the module.

    Attributes:
        site: The victim, a `LiveSite`; ``site.stop``, ``site.crash`` and ``site.start`` are its.
        said: Everything that the victim ever said on its sessions, in order.
        uploads: Everything that it ever uploaded whole, in order.
    """

    def __init__(self, folder, sites=5, colluders=1, min_survivors=4, **options):
        """Take what the consortium is.

        Args:
            folder: Where the victim lives.
            sites: Members of the manifest.
            colluders: c.
            min_survivors: N_min.
            options: ``policy`` and ``site_toml`` (lines), ``toml`` and ``spec`` of the job; others
                `LiveSite`'s.
        """
        self.names = [f"bank-{number}" for number in range(1, sites + 1)]
        self.manifest = make_manifest(self.names, colluders, min_survivors)
        self.sealed = seal(self.manifest, identities().operator.sign)
        self.toml = options.pop("toml", None) or job_toml(
            privacy=RECORD, target=sites, rounds=ROUNDS
        )
        self.spec = options.pop("spec", SPEC)
        policy, site_toml = options.pop("policy", ""), options.pop("site_toml", "")
        self.site = LiveSite(folder, VICTIM, **options)
        self.change_policy(lambda text: f"{policy}\n{text}")
        with (self.site.folder / "site.toml").open("a") as file:
            file.write(site_toml)
        self.site.reload()
        super().__init__(signer(P256.name, VICTIM).fingerprint, self.charges)
        self.stock, self.models, self.serials = [], {}, {}
        self.instance_id = b""

    def change_policy(self, change):
        """Rewrite policy.toml; the site reads it when it starts."""
        path = self.site.config.policy_file
        path.write_text(change(path.read_text()))

    # --- life ------------------------------------------------------------------------------------

    async def start(self):
        write_credentials(self.site.config, await self.listen())
        self.site.start()

    async def stop(self):
        await self.site.stop()
        await self.close()

    # --- the wire --------------------------------------------------------------------------------

    async def quiet(self):
        """Give all that the site had said or sent and nobody waited for.

        Frames are handled in order, so the answer to a harmless request comes after them all.
        """
        self.send(m.BundleRequest(1))
        self.stock += (await self.expect(m.BundleStock)).bundles
        said, self.skipped = self.skipped, []
        return said

    async def refused(self, reason, clause=""):
        """Wait until the site says that it leaves the attempt, and why."""
        failed = await self.expect(m.AttemptFailed)
        assert failed.reason == reason, failed
        assert clause in failed.detail, failed
        return failed

    # --- what an honest one does as well ---------------------------------------------------------

    async def greet(self, manifest=None, stock=4):
        """Take a new session: Hello, Welcome, and a stock of bundles."""
        hello = await self.expect(m.Hello)
        if hello.instance_id != self.instance_id:
            self.stock, self.instance_id = [], hello.instance_id
        self.send(m.Welcome(m.PROTOCOL, *(manifest or self.sealed)))
        if stock:
            self.send(m.BundleRequest(stock))
            self.stock += (await self.expect(m.BundleStock)).bundles
        return hello

    def make_job(self, toml=None):
        """Give a job as an honest aggregator would admit it."""
        toml, app, model = toml or self.toml, app_bundle(), bytes(4 * self.spec.length)
        header = SubmitHeader(
            job_toml=toml,
            vector_spec=self.spec.to_bytes(),
            app_size=len(app),
            app_sha256=appbundle.digest(app),
            model_size=len(model),
            model_sha256=appbundle.digest(model),
        )
        job, _ = admit(header, app, model, self.manifest, Limits(), time.time())
        self.content[appbundle.digest(app)] = app
        return m.JobOffer(
            job_id=job.job_id,
            job_toml=job.job_toml,
            app_sha256=appbundle.digest(app),
            app_size=len(app),
            vector_spec=job.vector_spec,
            encoding=job.encoding,
        )

    async def offer(self, offer=None, **changes):
        """Offer a job and give the site's verdict."""
        offer = replace(offer or self.make_job(), **changes)
        self.send(offer)
        reply = await self.expect(m.JobReply)
        if reply.accepted:
            self.job_id, self.encoding = offer.job_id, EncodingPlan.from_bytes(offer.encoding)
            self.heads = [chain_start(offer.job_id)]
        return reply

    def train_request(self, number=1, version=0, model_D=None, announcement=b""):
        """Name a model version, by default the one sent before; its head extends the last ones."""
        if model_D is None:
            model_D = self.models.get(version, np.full(self.spec.length, version, np.float32))
        broadcast = whole(self.content, version, model_D, announcement=announcement)
        head = broadcast.head_after(self.heads[version])
        log = log_of(self.content, self.heads[version], broadcast)
        said = m.TrainRequest(self.job_id, number, broadcast, head, log)
        return replace(said, announcement=announcement)

    async def train(self, number=1, version=0, model_D=None, announcement=b""):
        """Have the site make an update; its version is the newest from now on."""
        request = self.train_request(number, version, model_D, announcement)
        self.send(request)
        self.request = request
        self.heads = [*self.heads[: version + 1], request.chain_head]
        if model_D is not None:
            self.models[version] = model_D
        while True:
            answer = await self.expect((m.Ready, m.NotReady))
            if answer.round == number:
                return answer

    async def attempt(self, number=1, attempt=1, members=None):
        """Cut a cohort from whom it likes; the site must be ready."""
        if not self.stock:
            self.send(m.BundleRequest(4))
            self.stock += (await self.expect(m.BundleStock)).bundles
        return make_attempt(self, number, attempt, members or self.names)

    async def goes_on(self, number):
        """Show that the site was not harmed: a round by the rules opens the exact sum."""
        self.skipped.clear()
        before = self.charges()
        answer = await self.train(number)
        assert isinstance(answer, m.Ready), answer
        attempt = await self.attempt(number)
        await attempt.run_honestly()
        assert self.charges() == before + 1
        return attempt

    # --- what the test knows of the victim -------------------------------------------------------

    def update(self):
        """Give the site's update that lies ready, as integers before masking."""
        return self.site.node._bench.ready[self.job_id][1].vector_D.astype(np.int64)

    async def sent(self, ctx):
        """Wait until the site knows that its upload has come."""
        await asyncio.wait({self.site.node._uploads[ctx]})

    def charges(self):
        """Count the charges in the site's ledger, from its database."""
        return sum(line.charges for line in budgets(self.site))

    def ring(self, data):
        """Read an upload's values."""
        return unpack(data, self.encoding.length_at(self.request.version), self.encoding.bits)

    def bundle(self):
        """Take one of the site's bundles."""
        return self.stock.pop(0)

    def serial(self, name):
        self.serials[name] = self.serials.get(name, 0) + 1
        return self.serials[name]


@asynccontextmanager
async def hostile(folder, *, joined=True, **options):
    """Run a hostile aggregator and its victim around a test.

    Args:
        folder: Where the victim lives.
        joined: The victim has been greeted, took a job, and is ready for round 1.
        options: Of `HostileAggregator`.
    """
    evil = HostileAggregator(folder, **options)
    await evil.start()
    try:
        if joined:
            await evil.greet()
            reply = await evil.offer()
            assert reply.accepted, reply
            assert isinstance(await evil.train(), m.Ready)
        yield evil
    finally:
        await evil.stop()
