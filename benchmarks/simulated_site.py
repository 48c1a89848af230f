"""Play many sites in one process, light enough for large models: real protocol, no data.

A simulated site enrols by the real flow, dials with its own certificate, and runs the real
`edge_node.participant` with real SA-1 state machines; only the shell around it is light. It does
not train (its delta is one constant), keeps nothing on disk (so it must never be a real site), and
makes its masked vector chunk by chunk, twice: once for the digest, once for the wire. Memory is
that of a few chunks a site, whatever the length.
"""

import asyncio
import hashlib
import itertools
import math
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edge_node.attempt_terms import SiteIdentity
from edge_node.commands import (
    AcceptedJob,
    AttemptEncapsulated,
    AttemptSigned,
    CommitStep,
    Connected,
    ConsiderJob,
    EncapsulateStep,
    JobJudged,
    ParticipantCommand,
    ParticipantEvent,
    RefillBundles,
    RosterArrived,
    SendMessage,
    SignStep,
    StepCommitted,
    Train,
    Trained,
    UploadUpdate,
)
from edge_node.config import SessionSettings, load_config
from edge_node.download import fetch
from edge_node.enrol import Credentials, enrol
from edge_node.link import Link
from edge_node.participant import Participant
from edge_node.policy import Policy
from edge_node.versions.chunks import list_chunks
from privacy import ring
from privacy.pipeline import EncodingPlan
from privacy.secagg import statements
from privacy.secagg.keys import BundleSecrets, make_bundle, suite_named
from privacy.secagg.masking import apply_terms
from privacy.secagg.messages import MaskTerm, Roster, SignedBundle
from privacy.secagg.site import SiteSecrets
from tidegate import convert
from tidegate.checkpoint import chunk_size
from tidegate.messages import BundleStock, JobEnded
from tidegate.requests import UploadHeader
from tidegate.v1 import federation_pb2

CHUNK_VALUES = 1 << 18
"""A multiple of 8, so that every packed chunk begins at a whole byte."""

BUNDLE_VALID_S = 3600
_POLICY = Policy(modes=("none",), allow_no_dp=True, allow_adjacent_cohorts=True)
_SITE_TOML = """\
[site]
id = "{site}"
folder = "state"

[policy]
file = "policy.toml"
"""


@dataclass(frozen=True)
class MaskedConstant:
    """A masked vector of one integer, made anew whenever it is read.

    Attributes:
        value: The integer in every place, before masks.
        length: Values.
        bits: B.
        terms: The masks.
    """

    value: int
    length: int
    bits: int
    terms: tuple[MaskTerm, ...] = field(repr=False)

    @property
    def size(self) -> int:
        """Return the packed bytes."""
        return ring.packed_length(self.length, self.bits)

    def chunks(self) -> Iterator[bytes]:
        """Yield the packed bytes in order."""
        low = np.uint32((1 << self.bits) - 1)
        for begin in range(0, self.length, CHUNK_VALUES):
            count = min(CHUNK_VALUES, self.length - begin)
            chunk_s = np.full(count, self.value & int(low), np.uint32)
            apply_terms(chunk_s, self.terms, begin)
            chunk_s &= low
            yield ring.pack(chunk_s, self.bits)

    def sha256(self) -> bytes:
        """Return the digest of all bytes."""
        digest = hashlib.sha256()
        for chunk in self.chunks():
            digest.update(chunk)
        return digest.digest()


def constant_delta(clipping_norm: float, length: int) -> float:
    """Give every coordinate of the delta: its norm is half the clipping norm."""
    return clipping_norm / (2 * math.sqrt(length))


def enrol_site(site_id: str, folder: Path, token: str) -> Credentials:
    """Enrol by the real flow; the keys lie in the folder. May be repeated, as a site's may."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    config = folder / "site.toml"
    config.write_text(_SITE_TOML.format(site=site_id))
    return enrol(load_config(config), token)


class SimulatedSite:
    """One site: its session, its participant, and what the participant asks for."""

    def __init__(self, site_id: str, credentials: Credentials) -> None:
        """Take an enrolled identity."""
        self._credentials = credentials
        self._instance_id = secrets.token_bytes(16)
        identity = SiteIdentity(
            site_id=site_id,
            me=credentials.signer.fingerprint,
            node_fingerprint=credentials.node_fingerprint.hex(),
            operator_spki=credentials.operator_spki,
            instance_id=self._instance_id,
            device="cpu",
        )
        self._participant = Participant(identity, _POLICY, None)
        self._stock: dict[int, tuple[SignedBundle, BundleSecrets]] = {}
        self._plans: dict[str, EncodingPlan] = {}
        self._serials = itertools.count(1)
        self._last_accepted = (-1, -1)
        self._outgoing: asyncio.Queue[federation_pb2.SessionRequest] = asyncio.Queue()
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Serve one session until the aggregator ends a job; any failure ends it too."""
        link = Link.dial(self._credentials, SessionSettings())
        try:
            async with asyncio.TaskGroup() as self._tasks:
                await self._serve(link)
        finally:
            await link.channel.close(None)

    async def _serve(self, link: Link) -> None:
        call = link.session(self._requests())
        await self._take(link, Connected())
        async for answer in call:
            message = convert.aggregator_message_from_wire(answer)
            event = self._with_secrets(message) if isinstance(message, Roster) else message
            await self._take(link, event)
            if isinstance(message, JobEnded):
                return

    async def _requests(self) -> AsyncIterator[federation_pb2.SessionRequest]:
        while True:
            yield await self._outgoing.get()

    async def _take(self, link: Link, event: ParticipantEvent) -> None:
        """Feed the participant; carry out its commands, and what they lead to, in order."""
        waiting = deque([event])
        while waiting:
            for command in self._participant.handle(waiting.popleft(), time.time()):
                waiting.extend(self._carry_out(link, command))

    def _carry_out(self, link: Link, command: ParticipantCommand) -> list[ParticipantEvent]:
        match command:
            case SendMessage(message):
                self._outgoing.put_nowait(convert.site_message_to_wire(message))
            case RefillBundles(count):
                stock = BundleStock(tuple(self._new_bundle() for _ in range(count)))
                self._outgoing.put_nowait(convert.site_message_to_wire(stock))
            case ConsiderJob(offer):
                plan = EncodingPlan.from_bytes(offer.encoding)
                self._plans[offer.job_id] = plan
                return [JobJudged(offer.job_id, AcceptedJob(offer.job_id, plan))]
            case SignStep(ctx, purpose, message):
                return [AttemptSigned(ctx, purpose, self._credentials.signer.sign(message))]
            case EncapsulateStep(ctx, suite, public_keys):
                draw = suite_named(suite).transport.encapsulate
                return [AttemptEncapsulated(ctx, tuple(map(draw, public_keys)))]
            case CommitStep():
                self._last_accepted = (command.key.round, command.attempt)
                return [StepCommitted(command.ctx, command.commit.step)]
            case Train():
                self._start(self._train(link, command))
            case UploadUpdate():
                self._start(self._upload(link, command))
            case _:
                pass  # nothing is durable here, and nothing is logged
        return []

    def _with_secrets(self, roster: Roster) -> RosterArrived:
        for signed in roster.bundles:
            if signed.bundle.site == self._credentials.signer.fingerprint:
                own, seed = self._stock.pop(signed.bundle.serial)
                fresh = SiteSecrets(seed, secrets.token_bytes(32), secrets.token_bytes(32))
                return RosterArrived(roster, own, fresh, self._last_accepted)
        return RosterArrived(roster, None, None, self._last_accepted)

    def _new_bundle(self) -> SignedBundle:
        manifest = self._participant.manifest
        if manifest is None:
            raise RuntimeError("bundles were asked for before the manifest was sealed")
        signer, seed = self._credentials.signer, BundleSecrets(secrets.token_bytes(32))
        bundle = make_bundle(
            suite_named(manifest.suite),
            seed,
            signer.fingerprint,
            manifest.consortium_id,
            self._instance_id,
            next(self._serials),
            int(time.time()) + BUNDLE_VALID_S,
        )
        signed = SignedBundle(bundle, signer.sign(statements.bundle_statement(bundle)))
        self._stock[bundle.serial] = (signed, seed)
        return signed

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        if self._tasks is None:
            raise RuntimeError("a site works only while its session is open")
        self._tasks.create_task(work)

    async def _train(self, link: Link, command: Train) -> None:
        """Download the version and let it go: only its digests are looked at."""
        broadcast = command.wanted.broadcast
        name = broadcast.checkpoint
        if broadcast.opened is not None:
            await fetch(link, broadcast.opened.packed.sha256, broadcast.opened.packed.size)
        elif name is not None:
            for index, digest in enumerate(await list_chunks(link, name)):
                await fetch(link, digest, chunk_size(name.size, index))
        await self._take(link, Trained(command.job_id, command.key, 0.0))

    def _value(self, plan: EncodingPlan) -> int:
        """Give the integer in every place of this site's vector, before masks."""
        return round(constant_delta(plan.clip_gradient, plan.gradient_length) * plan.scale)

    async def _upload(self, link: Link, command: UploadUpdate) -> None:
        plan = self._plans[command.job_id]
        masked = MaskedConstant(self._value(plan), plan.length, command.ring_bits, command.terms)
        sha256 = await asyncio.to_thread(masked.sha256)

        async def requests() -> AsyncIterator[bytes]:
            header = UploadHeader(command.ctx, masked.size, sha256)
            yield convert.upload_header_to_wire(header).SerializeToString()
            offset = 0
            for chunk in masked.chunks():
                yield convert.upload_chunk_frame(offset, chunk)
                offset += len(chunk)

        receipt = convert.upload_receipt_from_wire(await link.upload(requests()))
        if (receipt.received, receipt.sha256) != (masked.size, sha256):
            raise RuntimeError("the aggregator's receipt is for other bytes")
