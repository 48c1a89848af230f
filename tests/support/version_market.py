"""Model versions as an aggregator broadcasts them, for tests, with their contents.

Whatever is made lands in ``contents``, by digest, as bytes to be served.
"""

import collections
import dataclasses

import grpc
import grpc.aio
import numpy as np
from grpc.aio import Metadata
from safetensors.numpy import load

from aggregator.broadcast import VersionContents, first_version, next_version, replayed_version
from aggregator.checkpoints import Checkpoint, CommittedRound
from aggregator.jobs import Job, JobStore
from aggregator.optimiser import Optimiser
from aggregator.secure_rounds import SecureMean
from aggregator.store import Store
from aggregator.version_log import DeltaLog
from edge_node.commands import WantedVersion
from edge_node.rounds.contract import JobAtSite
from privacy.decode import decode_sum
from privacy.planning import encoding_for_version
from tests.support.live_aggregator import app_bundle, job_toml
from tidegate import convert
from tidegate.broadcast import Broadcast, ContentName, VersionLog
from tidegate.checkpoint import CheckpointLayout
from tidegate.refusals import trailer_of
from tidegate.replay import pack_sum
from tidegate.v1 import transfer_pb2

NO_LOG = ContentName(b"l" * 32, 100)


def whole(contents, version, model_D, state=None, announcement=b""):
    """Give the broadcast of a version that comes whole, and serve its chunks."""
    state = state or {}
    view = CheckpointLayout(model_D.size, tuple(state), len(announcement)).view(
        np.asarray(model_D, "<f4"),
        {name: np.asarray(v, "<f4") for name, v in state.items()},
        announcement,
    )
    serve(contents, view)
    announced = ContentName.of(announcement) if announcement else None
    return Broadcast(version, checkpoint=view.name, announcement=announced)


def serve(contents, view):
    """Serve a checkpoint: its chunks, and their list under the root."""
    for digest, chunk in zip(view.digests, view.chunks(), strict=True):
        contents[digest] = bytes(chunk)
    contents.setdefault(view.name.sha256, b"".join(view.digests))


def log_of(contents, before, *broadcasts):
    """Give the name of a log, and serve it."""
    raw = VersionLog(before, broadcasts).to_bytes()
    name = ContentName.of(raw)
    contents[name.sha256] = raw
    return name


class Publisher:
    """An aggregator that publishes version after version of a job, its sums drawn at random.

    The store, the delta log and the server optimiser are the real ones; ``crash`` leaves them as a
    kill would.
    """

    def __init__(self, folder, plan, spec, strategy="FedAvg", options="", seed=0):
        toml = job_toml(strategy=strategy, options=options, rounds=1000)
        self.job = Job("job-1", toml, spec.to_bytes(), plan.to_bytes(), app_bundle())
        self.at_site = JobAtSite("job-1", self.job.file, plan, spec, None, "", None)
        self.folder, self.plan, self.spec = folder, plan, spec
        self.source = np.random.default_rng(seed)
        first_D = self.source.normal(size=spec.length).astype(np.float32)
        self.model = first_version("job-1", first_D.tobytes())
        self.open()
        contents = VersionContents(checkpoint=self.model.whole())
        self.jobs.insert(self.job, self.model, self.log.append(self.model, contents))
        self.optimiser = self.step()

    def open(self):
        self.store = Store(f"sqlite:///{self.folder / 'a.sqlite'}", self.folder)
        self.jobs, self.log = JobStore(self.store), DeltaLog(self.store, "job-1")

    def step(self):
        strategy = self.job.file.strategy
        return Optimiser(strategy.name, strategy.options, self.spec, 2)

    def crash(self):
        """Lose all that is in memory, and start on what is durable."""
        self.store.close()
        self.open()
        checkpoint = self.jobs.load_checkpoint("job-1")
        self.model = checkpoint.model
        self.optimiser = self.step()
        if checkpoint.strategy:
            self.optimiser.restore(checkpoint.strategy)

    def draw(self):
        """Draw an opened sum: whole ring values, metrics and all."""
        limit = 1 << self.plan.bits
        return self.source.integers(0, limit, self.plan.length, dtype=np.uint32)

    def publish(self, count=1):
        for _ in range(count):
            self.advance(self.draw())
        return self

    def advance(self, values_d):
        version = self.model.version
        plan = encoding_for_version(self.plan, version)
        self.mean_D = decode_sum(plan, values_d, self.job.file.divisor(4)).gradient_D
        stepped = self.optimiser.step(version + 1, self.model.vector(), self)
        state = self.optimiser.state()
        opened = pack_sum(plan, values_d), 4
        model, contents = replayed_version(self.model, stepped.values_D, opened, load(state))
        self.commit(model, contents, state)

    def replace_whole(self, values_D):
        """Publish a version that comes whole, as a ServerApp's do."""
        self.commit(next_version(self.model, values_D), VersionContents(), b"")

    def commit(self, model, contents, state):
        done = CommittedRound(
            1, Checkpoint(model, state, model.version), bytes(32), ("a",), (), {}, 1.0, b"{}"
        )
        self.jobs.commit_round("job-1", done, 0.0, self.log.append(model, contents))
        self.model = model

    # What ``Optimiser`` runs its rounds by.

    def wait_for_nodes(self):
        return [1, 2]

    def run_round(self, _nodes, _instruction=None):
        return SecureMean(self.mean_D, {})

    def wanted(self, **changes):
        """Announce the newest version."""
        self.offer = self.log.offer(self.model)
        wanted = WantedVersion(self.model.broadcast, self.model.chain_head, self.offer.log)
        return dataclasses.replace(wanted, **changes)


class FakeLink:
    """Serves what a publisher offers, as ``Link.download`` does; counts, bends and cuts it.

    Attributes:
        fetched: Bytes that came, by digest.
        cuts: How many messages each of the next downloads brings before its stream breaks.
        bend: Changes the bytes of a content on their way.
    """

    def __init__(self, publisher, message_bytes=1 << 20):
        self.publisher = publisher
        self.message_bytes = message_bytes
        self.fetched = collections.Counter()
        self.cuts = []
        self.bend = lambda _digest, data: data

    @property
    def total(self):
        return sum(self.fetched.values())

    async def download(self, request):
        digest, offset = request.sha256, request.offset
        content = self.publisher.offer.contents.get(digest)
        if content is None:
            raise rpc_error(grpc.StatusCode.NOT_FOUND, "unknown-job")
        data = self.bend(digest, bytes(content.read(0, content.size)))
        left = self.cuts.pop(0) if self.cuts else None
        for begin in range(offset, len(data), self.message_bytes):
            if left == 0:
                raise rpc_error(grpc.StatusCode.UNAVAILABLE)
            left = None if left is None else left - 1
            part = data[begin : begin + self.message_bytes]
            self.fetched[digest] += len(part)
            frame = convert.download_chunk_frame(begin, len(data), part)
            yield transfer_pb2.DownloadResponse.FromString(frame)
        if left == 0:
            raise rpc_error(grpc.StatusCode.UNAVAILABLE)


def rpc_error(code, reason=""):
    trailer = Metadata(*(trailer_of(reason) if reason else ()))
    return grpc.aio.AioRpcError(code, Metadata(), trailer, "test")
