"""A real edge node in this process, against a live aggregator; only the trainer is a stand-in.

The stand-in answers every record with the same gradient, so that sums can be checked; everything
else (enrolment, store, mirror, ledger, session, masks, uploads) is the daemon's own.
"""

import asyncio
from contextlib import asynccontextmanager

import numpy as np

from edge_node import enrol, service
from edge_node.budget import budget_lines
from edge_node.config import load_config
from edge_node.daemon import EdgeNode
from edge_node.lock import FolderLock
from edge_node.policy_file import load_policy
from edge_node.store_schema import connect, read_ledgers
from edge_node.trainer.trainer import TrainerFailure
from privacy.secagg.graph import STANDARD
from tests.support.live_aggregator import LiveAggregator, app_bundle
from tidegate import appbundle, tokens
from tidegate.confine.sandbox import SandboxReport
from tidegate.keys import fingerprint, load_key, spki_der
from tidegate.tokens import EnrolmentToken
from tidegate.v1 import operator_pb2 as pb

SITE_TOML = """
[site]
id = "{site}"
folder = "state"
[store]
mirror_file = "generation"
boot_key_folder = "boot"
[policy]
file = "policy.toml"
[session]
backoff_s = 0.05
backoff_max_s = 0.2
[datasets.credit]
loader = "npz"
path = "rows.npz"
"""
POLICY_TOML = """
modes = ["record-distributed", "none"]
allow_no_dp = true
allowed_apps = ["sha256:{app}"]
datasets = ["credit"]
max_epsilon_per_job = 100.0
max_delta_dp = 1e-5
[budgets.credit]
epsilon = {epsilon}
delta_dp = 1e-5
"""


class FakeTrainer:
    """Gives every record the gradient 0.01 in each coordinate; fails when told to."""

    fail_next = 0
    started = 0

    def __init__(self, job, limits, confinement):
        self.job = job

    async def start(self):
        type(self).started += 1
        return SandboxReport(True, True, True, True, True)

    async def record_gradients(self, model_D, rows_NC, on_chunk):
        await asyncio.sleep(0)
        if type(self).fail_next:
            type(self).fail_next -= 1
            raise TrainerFailure("the app raised an exception", "KeyError with a customer's name")
        gradients = np.full((len(rows_NC), self.job.spec.length), 0.01, np.float32)
        on_chunk(gradients, np.zeros((len(rows_NC), 0), np.float32), len(rows_NC))

    async def local_steps(self, model_D, batches, learning_rate, _box=None):
        await asyncio.sleep(0)
        metrics_KM = np.zeros((len(batches), self.job.metrics_length), np.float32)
        return model_D - np.float32(learning_rate * 0.01), metrics_KM

    async def stop(self):
        pass


class LiveSite:
    """One site's folder and its daemon, which can be started, stopped and killed."""

    def __init__(self, folder, site_id, rows=200, epsilon=25.0, graph_rule=STANDARD):
        self.site_id, self.graph_rule = site_id, graph_rule
        self.folder = folder / site_id
        self.folder.mkdir(mode=0o700)
        app = appbundle.digest(app_bundle()).hex()
        (self.folder / "site.toml").write_text(SITE_TOML.format(site=site_id))
        (self.folder / "policy.toml").write_text(POLICY_TOML.format(app=app, epsilon=epsilon))
        np.savez(self.folder / "rows.npz", a=np.arange(rows, dtype=np.float32))
        self.config = load_config(self.folder / "site.toml")
        self.task = None

    def reload(self):
        """Read site.toml again, after a test has changed it."""
        self.config = load_config(self.folder / "site.toml")

    async def enrol(self, live, **changes):
        grant = await live.api.CreateToken(pb.CreateTokenRequest(site_id=self.site_id, valid_s=60))
        fields = {
            "site_id": self.site_id,
            "secret": grant.secret,
            "enrolment": grant.enrolment_address,
            "sites": grant.site_address,
            "operator_fingerprint": fingerprint(spki_der(live.operator[0])).hex(),
            "ca_pem": grant.ca_pem.decode(),
            "expires_at_s": grant.expires_at_s,
        }
        self.token = tokens.encode(EnrolmentToken(**{**fields, **changes}))
        return await self.redeem()

    async def redeem(self):
        credentials = await asyncio.to_thread(enrol.enrol, self.config, self.token)
        self.tls_key = _TlsKey(credentials)
        self.signer = credentials.signer
        return credentials

    def start(self):
        self.lock = FolderLock(self.config.folder)
        self.store = service.open_store(self.config)
        self.stop_event = asyncio.Event()
        policy = load_policy(self.config.policy_file)
        credentials = enrol.load_credentials(self.config)
        self.node = EdgeNode(self.config, credentials, policy, self.store, self.graph_rule)
        self.task = asyncio.create_task(self.node.run(self.stop_event))

    async def stop(self):
        if self.task is not None:
            self.stop_event.set()
            await self.task
            self._close()

    async def crash(self):
        """End without a clean stop, as far as one process can: the task is cancelled mid-way."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self._close()

    def _close(self):
        self.task = None
        self.store.close()
        self.lock.release()


def budgets(site):
    """Give a site's budgets as its ledger has them: one line for each data set."""
    database = connect(site.config.database, read_only=True)
    try:
        return budget_lines(site.site_id, read_ledgers(database))
    finally:
        database.close()


@asynccontextmanager
async def market(folder, count=5, prepare=None, graph_rule=STANDARD, **options):
    """Run an aggregator and sites around a test.

    Args:
        folder: Where all of them live.
        count: How many sites.
        prepare: Called with each site and its number before it is enrolled, or None.
        graph_rule: Of all of them.
        options: Of `LiveSite`.
    """
    live = LiveAggregator(folder / "aggregator", graph_rule)
    await live.start()
    sites = []
    try:
        for number in range(count):
            site = LiveSite(folder, f"bank-{number + 1}", graph_rule=graph_rule, **options)
            if prepare is not None:
                prepare(site, number)
            await site.enrol(live)
            sites.append(site)
        live.sites = sites
        await live.seal()
        for site in sites:
            site.start()
        yield live, sites
    finally:
        for site in sites:
            await site.stop()
        live.sites = []
        await live.stop()


class _TlsKey:
    """The public half of a site's TLS key, as ``LiveAggregator.seal`` wants it."""

    def __init__(self, credentials):
        self._key = load_key(credentials.tls_key_pem)

    def public_key(self):
        return self._key.public_key()
