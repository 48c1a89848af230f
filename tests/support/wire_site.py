"""A site in a few lines that speaks the real wire to a real aggregator, for tests.

It enrols, keeps no store, trains nothing: its update is a given delta. Faults are switched on by
name: ``vanish_on`` ends the connection when a message of that type comes.
"""

import asyncio
import hashlib
import os
import time

import grpc
import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from privacy import ring
from privacy.delta import Delta
from privacy.encode import encode_delta
from privacy.pipeline import EncodingPlan, Mode
from privacy.planning import encoding_for_version
from privacy.secagg import commands as c
from privacy.secagg import masking
from privacy.secagg.keys import BundleSecrets, SoftwareSigner, make_bundle, suite_named
from privacy.secagg.messages import Roster, SignedBundle
from privacy.secagg.rules import CohortPolicy, ExpectedPlan, SiteConfig
from privacy.secagg.site import SiteAttempt, SiteSecrets
from privacy.secagg.statements import bundle_statement
from tests.support.encoding_plans import encode_records
from tidegate import convert, manifest, pki
from tidegate import messages as m
from tidegate.broadcast import ContentName
from tidegate.checkpoint import chunk_count, read_digests
from tidegate.requests import DownloadRequest, EnrolmentRequest, UploadHeader
from tidegate.tokens import hash_secret
from tidegate.v1 import federation_pb2_grpc, transfer_pb2, transfer_pb2_grpc

OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", 1 << 26)]


class WireSite:
    """One site; ``delta_of(version, D)`` gives its update in mode none."""

    def __init__(self, site_id, delta_of=None):
        self.site_id = site_id
        self.delta_of = delta_of or (lambda version, length: np.zeros(length, np.float32))
        self.tls_key, signing = pki.make_key(), pki.make_key()
        self.signer = SoftwareSigner(signing)
        self.me = self.signer.fingerprint
        self.instance_id = os.urandom(16)
        self.manifest = None
        self.jobs = {}
        self.offers = []
        self.results = []
        self.ended = []
        self.proofs = []
        self.refused = []
        self.requests = []
        self.aborts = 0
        self.upload_refusals = []
        self.serial = 0
        self.secrets = {}
        self.attempts = {}
        self.charged = 0
        self.vanish_on = None
        self.not_ready = None
        self.answer_offer = None
        self.dead = asyncio.Event()
        self.channel = None

    # --- enrolment -------------------------------------------------------------------------------

    async def enrol(self, secret, address, ca_pem, **changes):
        csr = pki.make_csr(self.tls_key, self.site_id)
        proof = _sign(self.signer, secret, csr)
        fields = {
            "secret": secret,
            "csr_der": csr,
            "signing_spki": self.signer.spki,
            "signing_proof": proof,
        }
        request = EnrolmentRequest(**{**fields, **changes})
        credentials = grpc.ssl_channel_credentials(ca_pem)
        async with grpc.aio.secure_channel(address, credentials, OPTIONS) as channel:
            stub = federation_pb2_grpc.EnrolmentServiceStub(channel)
            answer = await stub.Enrol(convert.enrolment_request_to_wire(request))
        self.grant = convert.enrolment_grant_from_wire(answer)
        self.ca_pem = ca_pem
        return self.grant

    def dial(self, address):
        self.address = address
        credentials = grpc.ssl_channel_credentials(
            self.ca_pem, pki.key_pem(self.tls_key), self.grant.certificate_pem
        )
        self.channel = grpc.aio.secure_channel(address, credentials, OPTIONS)
        self.transfer = transfer_pb2_grpc.TransferServiceStub(self.channel)
        return federation_pb2_grpc.FederationServiceStub(self.channel)

    # --- session ---------------------------------------------------------------------------------

    async def run(self, address):
        """Serve one session until it ends; returns the status."""
        stub = self.dial(address)
        self.call = stub.Session()
        try:
            await self.send(m.Hello(m.PROTOCOL, self.instance_id, "cpu", tuple(self.jobs)))
            async for frame in self.call:
                message = convert.aggregator_message_from_wire(frame)
                if self.vanish_on == type(message).__name__:
                    self.vanish_on = None
                    return None
                await self.on_message(message)
            return await self.call.code()
        except grpc.aio.AioRpcError as error:
            return error.code()
        finally:
            self.call.cancel()
            await self.channel.close()
            self.dead.set()

    async def send(self, message):
        await self.call.write(convert.site_message_to_wire(message))

    async def on_message(self, message):  # noqa: PLR0912 - one branch a message
        match message:
            case m.Welcome():
                if message.manifest and self.manifest is None:
                    self.manifest = manifest.parse(message.manifest)
            case m.BundleRequest(count):
                await self.send(m.BundleStock(tuple(self.make_bundle() for _ in range(count))))
            case m.JobOffer():
                self.offers.append(message)
                if self.answer_offer is not None:
                    await self.send(self.answer_offer(message))
                    return
                self.jobs[message.job_id] = EncodingPlan.from_bytes(message.encoding)
                await self.send(m.JobReply(message.job_id, True, "", ""))
            case m.TrainRequest():
                await self.train(message)
            case Roster():
                await self.join(message)
            case m.AttemptResult():
                self.results.append(message)
                self.attempts.pop(message.ctx, None)
            case m.JobEnded():
                self.ended.append(message)
            case m.RetryProof():
                self.proofs.append(message)  # it keeps no update, and makes a new one
            case m.Refused():
                self.refused.append(message)
            case _:
                if type(message).__name__ == "AbortRequest":
                    self.aborts += 1
                attempt = self.attempts.get(message.ctx)
                if attempt is not None:
                    await self.carry_out(attempt, attempt.handle(message, time.time()))

    def make_bundle(self):
        self.serial += 1
        suite = suite_named(self.manifest.suite)
        secrets = SiteSecrets(BundleSecrets(os.urandom(32)), os.urandom(32), os.urandom(32))
        bundle = make_bundle(
            suite,
            secrets.bundle,
            self.me,
            self.manifest.consortium_id,
            self.instance_id,
            self.serial,
            int(time.time()) + 86_400,
        )
        signed = SignedBundle(bundle, self.signer.sign(bundle_statement(bundle)))
        self.secrets[self.serial] = (signed, secrets)
        return signed

    async def download(self, sha256, offset=0):
        request = convert.download_request_to_wire(DownloadRequest(sha256, offset))
        return b"".join([chunk.data async for chunk in self.transfer.Download(request)])

    async def model(self, broadcast):
        """Fetch what a version is broadcast as: its sum, or its model's bytes."""
        if broadcast.opened is not None:
            name = broadcast.opened.packed
            data = await self.download(name.sha256)
            assert ContentName.of(data) == name
            return data
        name, digests = broadcast.checkpoint, (broadcast.checkpoint.sha256,)
        if chunk_count(name.size) > 1:
            digests = read_digests(await self.download(name.sha256), name)
        chunks = [await self.download(digest) for digest in digests]
        assert tuple(hashlib.sha256(chunk).digest() for chunk in chunks) == digests
        file = b"".join(chunks)
        return file[8 + int.from_bytes(file[:8], "little") :]

    async def train(self, request):
        self.requests.append(request)
        if self.not_ready is not None:
            answer = self.not_ready
            await self.send(m.NotReady(request.job_id, request.round, *answer, 0.0))
            return
        try:
            data = await self.model(request.broadcast)
        except grpc.aio.AioRpcError as error:  # the job may have been stopped meanwhile
            gone = ("unknown-job", str(error.details()))
            await self.send(m.NotReady(request.job_id, request.round, *gone, 0.0))
            return
        self.plan, self.update = self.make_update(request, data)
        self.request = request
        await self.send(
            m.Ready(request.job_id, request.round, request.version, 0.5, 0.01, 0.02, 0.03)
        )

    def make_update(self, request, data):
        plan = encoding_for_version(self.jobs[request.job_id], request.version, request.announced)
        length = plan.gradient_length
        values_D = self.delta_of(request.version, length).astype(np.float32)
        if plan.mode is Mode.NONE:
            metrics_M = np.zeros(plan.metrics_length, np.float32) if plan.metrics_length else None
            seed = os.urandom(32) if plan.announces_scale else None
            return plan, encode_delta(plan, Delta(values_D, plan.spec_digest), metrics_M, seed)
        metrics_NM = np.zeros((1, plan.metrics_length), np.float32)
        return plan, encode_records(plan, values_D[None], metrics_NM, os.urandom(32))

    async def join(self, roster):
        own = next(b for b in roster.bundles if b.bundle.site == self.me)
        signed, secrets = self.secrets.pop(own.bundle.serial)
        plan, request = self.plan, self.request
        config = SiteConfig(
            me=self.me,
            suite=suite_named(self.manifest.suite),
            context=roster.context,
            pinned=self.manifest.pinned(),
            policy=CohortPolicy(self.manifest.colluders, self.manifest.min_survivors),
            plan=ExpectedPlan(
                encoding=plan.to_bytes(),
                ring_bits=plan.bits,
                length=plan.length,
                chain_head=request.chain_head,
                own_version=request.version,
                newest_version=request.version,
            ),
        )
        attempt = SiteAttempt(config, signed, secrets)
        self.attempts[roster.context.digest()] = attempt
        await self.carry_out(attempt, attempt.handle(roster, time.time()))

    async def carry_out(self, attempt, todo):
        queue = list(todo)
        while queue:
            command = queue.pop(0)
            match command:
                case c.Sign():
                    signature = self.signer.sign(command.message)
                    queue += attempt.handle(c.Signed(command.purpose, signature), time.time())
                case c.Commit():
                    self.charged += command.charge
                    queue += attempt.handle(c.Committed(command.step), time.time())
                case c.Send():
                    await self.send(command.message)
                case c.MaskAndUpload():
                    await self.upload(attempt, command.terms)
                case _:
                    pass

    async def upload(self, attempt, terms):
        bits = self.plan.bits
        masked = masking.mask(self.update, terms, bits)
        packed = ring.pack(masked.values_d, bits)
        try:
            await self.upload_bytes(attempt.cohort.ctx, packed)
        except grpc.aio.AioRpcError as error:
            self.upload_refusals.append(dict(error.trailing_metadata())["tidegate-reason"])

    async def upload_bytes(self, ctx, packed, chunk=1 << 20, sha256=None, begin=0, end=None):
        digest = sha256 or hashlib.sha256(packed).digest()

        async def frames():
            yield convert.upload_header_to_wire(UploadHeader(ctx, len(packed), digest))
            for offset in range(begin, end if end is not None else len(packed), chunk):
                frame = convert.upload_chunk_frame(offset, packed[offset : offset + chunk])
                yield transfer_pb2.UploadRequest.FromString(frame)

        return await self.transfer.Upload(frames())


def _sign(signer, secret, csr):
    message = pki.enrolment_message(hash_secret(secret), csr)
    return signer._key.sign(message, ec.ECDSA(hashes.SHA256()))
