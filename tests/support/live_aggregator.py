"""A whole aggregator in this process, on free ports and a temporary folder: for tests."""

import asyncio
import hashlib
import json
import time
from contextlib import asynccontextmanager

import grpc
import numpy as np

from aggregator.config import AggregatorConfig
from aggregator.coordinator import Coordinator
from aggregator.listeners import listen
from aggregator.registry import Registry
from aggregator.store import Store
from privacy.secagg.graph import STANDARD
from privacy.secagg.keys import suite_named
from privacy.spec import TensorSpec, VectorSpec
from tests.support.wire_site import OPTIONS, WireSite
from tidegate import appbundle, pki
from tidegate.manifest import Manifest, make_member, seal
from tidegate.v1 import operator_pb2 as pb
from tidegate.v1 import operator_pb2_grpc

CONSORTIUM = "test"
SPEC = VectorSpec((TensorSpec("w", (40, 25)), TensorSpec("b", (25,)), TensorSpec("s", ())))

JOB = """
[job]
name = "credit test"
dataset = "credit"
rounds = {rounds}
[task]
file = "task.py"
[privacy]
{privacy}
[compression]
map = "identity"
[strategy]
name = "{strategy}"
{options}
[round]
target_sites = {target}
deadline_s = {deadline}
max_attempts = {attempts}
"""
NONE = 'mode = "none"\nclipping_norm = 10.0'
RECORD = """mode = "record-distributed"
epsilon = 3.0
delta_dp = 1e-5
sampling_rate = 0.01
clipping_norm = 0.5
expected_batch_size = 100
noise_multiplier = 1.0"""


def job_toml(**values):
    """Fill in a job file; see ``JOB`` for the values."""
    defaults = {
        "rounds": 3,
        "privacy": NONE,
        "strategy": "FedAvg",
        "target": 5,
        "deadline": 30.0,
        "attempts": 5,
        "options": "",
    }
    filled = {**defaults, **values}
    text = JOB.format(**filled)
    if filled["privacy"] == NONE:
        text += "[local]\nsteps = 1\nbatch_size = 8\nlearning_rate = 0.1\n"
    return text.encode()


def make_folder(folder, public_host="127.0.0.1"):
    """Make the aggregator's files as ``tidegate init`` does."""
    folder.mkdir(parents=True, exist_ok=True)
    validity = pki.Validity(time.time())
    authority = pki.make_ca(CONSORTIUM, validity)
    server_key, operator_key, operator_tls = pki.make_key(), pki.make_key(), pki.make_key()
    files = {
        "ca.key": pki.key_pem(authority.key),
        "ca.pem": authority.certificate_pem(),
        "operator.spki": pki.spki_der(operator_key),
        "tls.key": pki.key_pem(server_key),
        "tls.pem": pki.issue_server_cert(
            authority, server_key.public_key(), [public_host], "aggregator", validity
        ),
    }
    for name, data in files.items():
        pki.write_private(folder / name, data)
    operator = (
        operator_key,
        pki.key_pem(operator_tls),
        pki.issue_operator_cert(authority, operator_tls.public_key(), "olga", validity),
    )
    return authority, operator


class LiveAggregator:
    """Coordinator, listeners and an operator's stub; ``restart`` is a crash and a new start."""

    def __init__(self, folder, graph_rule=STANDARD, **changes):
        self.folder, self.graph_rule = folder, graph_rule
        self.authority, self.operator = make_folder(folder)
        database = f"sqlite:///{folder / 'aggregator.sqlite'}"
        self.config = AggregatorConfig(CONSORTIUM, folder, database, **changes)
        self.sites = []
        self.tasks = []

    async def start(self):
        self.store = Store(self.config.database, self.folder)
        spki = (self.folder / "operator.spki").read_bytes()
        signatures = suite_named(self.config.suite).signatures
        registry = Registry(
            self.store, self.authority, spki, self.config.limits.max_sites, signatures
        )
        self.coordinator = Coordinator(self.config, self.store, registry, self.graph_rule)
        self.coordinator.start()
        self.listeners = await listen(self.config, self.coordinator)
        self.addresses = json.loads((self.folder / "addresses.json").read_text())
        self.channel = self.dial_operator(*self.operator[1:])
        self.api = operator_pb2_grpc.OperatorServiceStub(self.channel)

    def dial_operator(self, key_pem, certificate_pem, address=None):
        credentials = grpc.ssl_channel_credentials(
            self.authority.certificate_pem(), key_pem, certificate_pem
        )
        return grpc.aio.secure_channel(address or self.addresses["operator"], credentials, OPTIONS)

    async def stop(self):
        await self.coordinator.close()
        await self.channel.close()
        await self.listeners.stop()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()
        self.store.close()

    async def restart(self):
        await self.stop()
        await self.start()

    async def add_site(self, site_id, delta_of=None, site=None):
        site = site or WireSite(site_id, delta_of)
        token = await self.api.CreateToken(pb.CreateTokenRequest(site_id=site_id, valid_s=60))
        await site.enrol(token.secret, token.enrolment_address, token.ca_pem)
        self.sites.append(site)
        return site

    def connect(self, site):
        site.dead.clear()
        task = asyncio.create_task(site.run(self.addresses["sites"]))
        self.tasks.append(task)
        return task

    async def seal(self, colluders=1, min_survivors=4):
        members = tuple(
            make_member(
                site.site_id,
                pki.fingerprint(pki.spki_der(site.tls_key)),
                site.signer.spki,
            )
            for site in sorted(self.sites, key=lambda site: site.site_id)
        )
        sealed = Manifest(CONSORTIUM, 1, colluders, min_survivors, members)
        raw, signature = seal(sealed, pki.EcdsaSigner(self.operator[0]).sign)
        await self.api.PutManifest(pb.PutManifestRequest(manifest=raw, signature=signature))
        return sealed

    async def submit(self, toml=None, spec=SPEC, model_D=None, app=None, **changes):
        model_D = np.zeros(spec.length, np.float32) if model_D is None else model_D
        model, app = model_D.astype("<f4").tobytes(), app or app_bundle()
        header = {
            "job_toml": toml or job_toml(),
            "vector_spec": spec.to_bytes(),
            "app_size": len(app),
            "app_sha256": hashlib.sha256(app).digest(),
            "model_size": len(model),
            "model_sha256": hashlib.sha256(model).digest(),
        }

        async def requests():
            yield pb.SubmitJobRequest(header=pb.SubmitJobHeader(**{**header, **changes}))
            body = app + model
            for begin in range(0, len(body), 100_000):
                yield pb.SubmitJobRequest(data=body[begin : begin + 100_000])

        return (await self.api.SubmitJob(requests())).job_id

    async def watch(self, job_id, until=lambda job: False, timeout_s=40):
        """Follow a job until it ends, or the condition holds; returns what was last shown."""
        shown = None
        try:
            async with asyncio.timeout(timeout_s):
                call = self.api.WatchJob(pb.WatchJobRequest(job_id=job_id))
                async for update in call:
                    shown = update.job
                    if until(shown):
                        call.cancel()
                        break
        except TimeoutError:
            raise AssertionError(f"waited {timeout_s:g} s for the job: {shown}") from None
        return shown

    async def export(self, job_id):
        parts = [p.data async for p in self.api.ExportModel(pb.ExportModelRequest(job_id=job_id))]
        return b"".join(parts)


def app_bundle():
    return appbundle._join({"task.py": b"def model():\n    raise NotImplementedError\n"})


@asynccontextmanager
async def federation(folder, count=5, delta_of=None, make_site=None, **changes):
    """Give an aggregator with connected sites and a sealed manifest."""
    live = LiveAggregator(folder, **changes)
    await live.start()
    try:
        for index in range(count):
            name = f"bank-{index + 1}"
            site = make_site and make_site(index, name)
            await live.add_site(name, delta_of and delta_of(index), site)
        await live.seal()
        for site in live.sites:
            live.connect(site)
        yield live
    finally:
        await live.stop()
