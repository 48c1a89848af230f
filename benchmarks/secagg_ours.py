"""Run one exchange of SA-1 in this process and count what it costs each side.

Both machines are the real ones, every message crosses as protobuf and is validated, signatures are
made and checked, slots are encoded. Left out are sockets, TLS and the disk. Every site masks its
first values, whose sum is checked; only ``MEASURED`` sites mask their whole vectors, as the others
would cost the same again, and the aggregator folds one of these for each survivor.

Shapes: d = integers of one vector, h = of its checked head.
"""

import statistics
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from numpy.typing import NDArray

from aggregator.fold import Fold, FoldedSum, pick_device
from aggregator.unmask import unmask
from benchmarks.encode import Bytes, site_plan
from privacy import ring
from privacy.delta import Delta
from privacy.encode import encode_delta
from privacy.errors import Reason
from privacy.noise import NoisedUpdate
from privacy.secagg import commands as c
from privacy.secagg import masking, statements
from privacy.secagg.encoding import hash_of
from privacy.secagg.keys import P256, BundleSecrets, SoftwareSigner, Suite, make_bundle
from privacy.secagg.messages import (
    AttemptContext,
    BaseVersion,
    CohortPlan,
    Published,
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
from privacy.secagg.signatures import SignatureScheme, SigningKey
from privacy.secagg.site import SiteAttempt, SiteSecrets
from tidegate.convert import session
from tidegate.convert.bounds import Limits
from tidegate.v1 import federation_pb2 as pb

MEASURED = 3
HEAD = 1024
COLLUDERS = 1
NOW_S = 1.8e9


@dataclass(frozen=True)
class Cell:
    """One size of the table: sites, integers of a vector, share of sites that drop out."""

    sites: int
    dim: int
    dropped: float

    @property
    def lost(self) -> int:
        """Sites that deal their shares and are gone before their vector is whole: the dear case."""
        return int(self.sites * self.dropped)


@dataclass
class Cost:
    """CPU seconds and bytes of one party."""

    cpu_s: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the CPU time of all threads within."""
        begin_s = time.process_time()
        yield
        self.cpu_s += time.process_time() - begin_s


@dataclass
class Member:
    """A site: its machine, its vector's head, and what it has cost."""

    attempt: SiteAttempt
    signer: SoftwareSigner
    head_h: NDArray[np.int64]
    cost: Cost = field(default_factory=Cost)
    masked_h: NDArray[np.uint32] | None = None
    terms: tuple[Any, ...] = ()

    def feed(self, event: c.SiteEvent) -> list[c.SiteMessage]:
        """Hand a message in and carry out what it leads to; return what leaves."""
        out: list[c.SiteMessage] = []
        todo = deque(self.attempt.handle(event, NOW_S))
        while todo:
            match todo.popleft():
                case c.Sign(purpose, message):
                    answer = c.Signed(purpose, self.signer.sign(message))
                    todo.extend(self.attempt.handle(answer, NOW_S))
                case c.Commit(step):
                    todo.extend(self.attempt.handle(c.Committed(step), NOW_S))
                case c.Send(message):
                    out.append(message)
                case c.MaskAndUpload(terms):
                    self.terms = terms
                case c.Abort(reason, message):
                    raise RuntimeError(f"a site aborted: {reason}: {message}")
        return out


class _Remembering(SignatureScheme):
    """Verify each signature once: what all sites verify alike is measured at a few of them only."""

    def __init__(self, scheme: SignatureScheme) -> None:
        self.key_kind = scheme.key_kind
        self._scheme = scheme
        self._good: set[tuple[bytes, bytes, bytes]] = set()

    def make_key(self) -> SigningKey:
        """Make a key as the scheme does."""
        return self._scheme.make_key()

    def is_canonical(self, spki: bytes) -> bool:
        """Judge as the scheme does."""
        return self._scheme.is_canonical(spki)

    def verify(self, spki: bytes, signature: bytes, message: bytes) -> None:
        """Check what was not found good before."""
        if (spki, signature, message) not in self._good:
            self._scheme.verify(spki, signature, message)
            self._good.add((spki, signature, message))


@dataclass(frozen=True)
class Figures:
    """What one exchange cost: CPU milliseconds (all threads), bytes; a client's are means.

    Of a client's time, ``client_vector_ms`` goes to its whole vector: rounding, masks, packing.
    """

    client_cpu_ms: float
    server_cpu_ms: float
    up_bytes: float
    down_bytes: float
    vector_bytes: int
    client_vector_ms: float | None = None
    mask_gb_per_s: float | None = None


class Exchange:
    """One attempt, from the roster to the checked sum."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._limits = Limits(max_sites=max(cell.sites, 2), max_message_bytes=1 << 30)
        self._plan = site_plan(cell.dim)
        self._server_cost = Cost()
        signers = sorted((_signer(i) for i in range(cell.sites)), key=lambda s: s.fingerprint)
        self._members = {s.fingerprint: s for s in signers}
        self._context = AttemptContext(P256.name, "bench", bytes(32), "job", 1, 1, 1)
        self._least = 2 * cell.sites // 3 + 1
        secrets = {f: _secrets(f) for f in self._members}
        bundles = tuple(_bundle(secrets[f].bundle, s) for f, s in self._members.items())
        plan = CohortPlan(
            b"encoding",
            self._plan.bits,
            cell.dim,
            COLLUDERS,
            self._least,
            DEFAULT_DROPOUT_PERCENT,
            bytes(32),
            tuple(BaseVersion(f, 1) for f in self._members),
        )
        pinned = {f: s.spki for f, s in self._members.items()}
        order = list(self._members)
        self._gone = frozenset(order[len(order) - cell.lost :])
        self._measured = order[:MEASURED]
        quick = replace(P256, signatures=_Remembering(P256.signatures))
        suites = {f: P256 if f in self._measured else quick for f in order}
        draw = np.random.default_rng(0)
        half = 1 << (self._plan.bits - 6)
        self._sites = {
            f: Member(
                SiteAttempt(self._site_config(f, suites[f], pinned), bundle, secrets[f]),
                self._members[f],
                draw.integers(-half, half, min(HEAD, cell.dim), dtype=np.int64),
            )
            for f, bundle in zip(self._members, bundles, strict=True)
        }
        self._server = ServerAttempt(ServerConfig(P256, self._context, bundles, plan, pinned))

    def run(self) -> Figures:
        """Carry the attempt out; the sum of the checked head must be exact.

        Raises:
            RuntimeError: It is not, or the attempt aborted.
        """
        todo: deque[c.ServerEvent] = deque([c.Start()])
        terms, survivors = (), ()
        while todo:
            with self._server_cost.timed():
                given = self._server.handle(todo.popleft(), NOW_S)
            for command in given:
                match command:
                    case c.SendTo(site, message):
                        todo.extend(self._deliver(site, message))
                    case c.UnmaskSum(found):
                        terms = found
                    case c.Publish(_, found):
                        survivors = found
                    case c.AbortAttempt(reason, message):
                        raise RuntimeError(f"the attempt aborted: {reason}: {message}")
        self._check(terms, survivors)
        vector_s, masks_s = self._client_vectors()
        self._server_vectors(terms, len(survivors))
        return self._figures(vector_s, masks_s)

    def _deliver(self, site: bytes, message: c.AggregatorMessage) -> list[c.ServerEvent]:
        """Carry one message to a site, and what it answers back, as bytes both ways."""
        member = self._sites[site]
        if isinstance(message, Published):  # its hash travels in the next version's broadcast
            member.feed(message)
            return []
        with self._server_cost.timed():
            frame = session.aggregator_message_to_wire(message).SerializeToString()
        member.cost.received_bytes += len(frame)
        with member.cost.timed():
            parsed = pb.SessionResponse.FromString(frame)
            known: Any = session.aggregator_message_from_wire(parsed, self._limits)
            out = [session.site_message_to_wire(m) for m in member.feed(known)]
            frames = [answer.SerializeToString() for answer in out]
        events: list[c.ServerEvent] = []
        for answer in frames:
            member.cost.sent_bytes += len(answer)
            with self._server_cost.timed():
                parsed_answer = pb.SessionRequest.FromString(answer)
                back: Any = session.site_message_from_wire(parsed_answer, site, self._limits)
            events.append(back)
        if member.terms and member.masked_h is None:
            if site in self._gone:
                return [c.SiteLost(site, Reason.TIMEOUT)]
            update = NoisedUpdate(member.head_h)
            member.masked_h = masking.mask(update, member.terms, self._plan.bits).values_d
            events.append(c.UploadCompleted(site, hash_of("head", site)))
        return events

    def _check(self, terms: Any, survivors: tuple[bytes, ...]) -> None:
        heads = [self._sites[f] for f in survivors]
        total_h = np.zeros_like(heads[0].masked_h)
        for member in heads:
            total_h += member.masked_h
        masking.unmask(total_h, terms, self._plan.bits)
        expected_h = sum(member.head_h for member in heads) % (1 << self._plan.bits)
        if len(survivors) != self._cell.sites - self._cell.lost or (total_h != expected_h).any():
            raise RuntimeError("the sum is not that of the survivors: nothing to measure")

    def _client_vectors(self) -> tuple[float, float]:
        """Encode, mask and pack whole vectors at the measured sites.

        Returns:
            CPU seconds of one vector, and of that the seconds its masks take.
        """
        draw = np.random.default_rng(1)
        values_D = draw.normal(0, 1e-3, self._cell.dim).astype(np.float32)
        delta = Delta(values_D, self._plan.spec_digest)
        whole, masks = Cost(), Cost()
        encode_delta(self._plan, delta)  # loads the compiled loops: once a process, not a vector
        for site in self._measured:
            with whole.timed():
                update = encode_delta(self._plan, delta)
                with masks.timed():
                    masked = masking.mask(update, self._sites[site].terms, self._plan.bits)
                self._packed = ring.pack(masked.values_d, masked.bits)
        count = len(self._measured)
        return whole.cpu_s / count, masks.cpu_s / count

    def _server_vectors(self, terms: Any, uploads: int) -> None:
        """Fold as many whole vectors as there are survivors, and unmask the sum."""
        packed = Bytes(self._packed)
        with self._server_cost.timed():
            fold = Fold(self._cell.dim, self._plan.bits, pick_device("cpu"))
            for _ in range(uploads):
                fold.add(packed)
            folded: FoldedSum = fold.finish()
            unmask(folded, terms)

    def _figures(self, vector_s: float, masks_s: float) -> Figures:
        costs = [self._sites[site].cost for site in self._measured]
        count, vector = len(costs), len(self._packed)
        masks = statistics.fmean(len(self._sites[site].terms) for site in self._measured)
        return Figures(
            client_cpu_ms=1000 * (sum(cost.cpu_s for cost in costs) / count + vector_s),
            server_cpu_ms=1000 * self._server_cost.cpu_s,
            up_bytes=sum(cost.sent_bytes for cost in costs) / count + vector,
            down_bytes=sum(cost.received_bytes for cost in costs) / count,
            vector_bytes=vector,
            client_vector_ms=1000 * vector_s,
            mask_gb_per_s=4e-9 * self._cell.dim * masks / masks_s,
        )

    def _site_config(self, me: bytes, suite: Suite, pinned: dict[bytes, bytes]) -> SiteConfig:
        policy = CohortPolicy(COLLUDERS, self._least)
        plan = ExpectedPlan(
            b"encoding", self._plan.bits, self._cell.dim, bytes(32), 1, 1, shared_noise=False
        )
        return SiteConfig(me, suite, self._context, pinned, policy, plan)


def _signer(index: int) -> SoftwareSigner:
    return SoftwareSigner(ec.derive_private_key(index + 1, ec.SECP256R1()))


def _secrets(site: bytes) -> SiteSecrets:
    return SiteSecrets(
        BundleSecrets(hash_of("bundle", site)), hash_of("self", site), hash_of("shamir", site)
    )


def _bundle(secrets: BundleSecrets, signer: SoftwareSigner) -> SignedBundle:
    bundle = make_bundle(
        P256, secrets, signer.fingerprint, "bench", bytes(16), 1, int(NOW_S) + 3600
    )
    return SignedBundle(bundle, signer.sign(statements.bundle_statement(bundle)))
