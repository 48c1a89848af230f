"""A site comes to the aggregator's very bits, however late, interrupted or lied to."""

import asyncio
import dataclasses
import itertools

import numpy as np
import pytest

from edge_node import download
from edge_node.versions.follower import VersionFollower
from edge_node.versions.kept import KeptVersions
from privacy.errors import PeerError, Reason
from privacy.pipeline import Mode
from privacy.spec import TensorSpec, VectorSpec
from tests.support.encoding_plans import make_plan
from tests.support.version_market import FakeLink, Publisher, log_of
from tidegate.broadcast import Broadcast, ContentName
from tidegate.checkpoint import CHUNK_BYTES
from tidegate.outer_step import OuterStep

SMALL = VectorSpec((TensorSpec("w", (5, 7)), TensorSpec("s", ()), TensorSpec("b", (4,))))
LARGE = VectorSpec((TensorSpec("w", (150, 1000)),))
ADAM = "[strategy.options]\neta = 0.05\nbeta_1 = 0.5\ntau = 0.01"


def publisher(folder, spec=SMALL, strategy="FedAdam", options=ADAM, seed=0):
    plan = make_plan(Mode.NONE, gradient=spec.length, metrics=3, bits=12)
    return Publisher(folder, plan, spec, strategy, options, seed)


class Site:
    """A follower over a folder; ``restart`` is one after a clean stop."""

    def __init__(self, folder, published):
        self.folder, self.published = folder / "models", published
        self.link = FakeLink(published)
        self.start()

    def start(self):
        self.follower = VersionFollower(self.link, KeptVersions(self.folder))

    restart = start

    def come(self, **changes):
        """Come to the newest version; what is on its way to the disk arrives there."""

        async def come():
            try:
                wanted = self.published.wanted(**changes)
                return await self.follower.come_to(wanted, self.published.at_site)
            finally:
                await self.follower.close()

        before = self.link.total
        replica = asyncio.run(come())
        self.cost = self.link.total - before
        return replica

    def check(self):
        replica, model = self.come(), self.published.model
        assert replica.model_D.tobytes() == model.data
        assert (replica.version, replica.head) == (model.version, model.chain_head)
        for name, held in self.published.optimiser._outer.state().items():
            assert replica.step.state()[name].tobytes() == held.tobytes()
        return replica

    def refuses(self, reason, **changes):
        with pytest.raises(PeerError) as caught:
            self.come(**changes)
        assert caught.value.reason is reason


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path, publisher(tmp_path))
    site.check()
    return site


@pytest.fixture(autouse=True)
def _without_waiting(monkeypatch):
    monkeypatch.setattr(download, "_RETRY_S", 0.0)


@pytest.mark.parametrize("behind", [1, 2, 32, 63, 64, 65, 200])
def test_a_late_site_comes_to_the_same_bits(site, behind):
    site.published.publish(behind)
    site.check()
    sums = site.published.model.broadcast.opened.packed.size
    checkpoint = 3 * 4 * SMALL.length + 256
    assert site.cost <= checkpoint + 32 * sums + 20_000
    site.published.publish()
    site.check()
    assert site.cost == sums, "and from then on a sum a version, nothing else"


def test_at_a_root_nothing_is_fetched_by_a_site_that_holds_the_same(site):
    for _ in range(33):
        site.published.publish()
        site.check()
        assert site.cost == site.published.model.broadcast.opened.packed.size
    assert site.follower.repaired == 0


def test_a_restarted_site_downloads_nothing_that_it_held(site):
    site.published.publish(3)
    site.check()
    site.restart()
    site.check()
    assert site.cost == 0
    site.published.publish()
    site.restart()
    site.check()
    assert site.cost == site.published.model.broadcast.opened.packed.size


def test_a_half_written_version_is_passed_over(site):
    site.published.publish(2)
    site.check()
    (kept,) = (site.folder / "job-1").iterdir()
    (kept.parent / f".{kept.name}.99.new").write_bytes(b"half")
    kept.rename(kept.with_name(kept.name.replace("2-", "1-", 1)))
    site.restart()
    site.refuses(Reason.EQUIVOCATION)  # the name says version 1, the head is that of version 2
    assert [file.name[0] for file in kept.parent.iterdir()] == ["1"]


def test_a_restarted_aggregator_offers_the_same(site):
    site.published.publish(40)
    before = site.published.wanted()
    offered = site.published.offer.contents.keys()
    site.published.crash()
    assert site.published.wanted() == before
    assert site.published.offer.contents.keys() == offered
    site.check()
    site.published.publish(30)
    site.check()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_flipped_bit_is_found_at_the_root_and_one_chunk_repaired(tmp_path, restarted):
    site = Site(tmp_path, publisher(tmp_path, LARGE))
    site.published.publish(30)
    site.check()
    (kept,) = (site.folder / "job-1").iterdir()
    raw = bytearray(kept.read_bytes())
    raw[300_000] ^= 1  # the lowest bits of a weight
    kept.write_bytes(raw)
    site.restart()
    assert site.come().model_D.tobytes() != site.published.model.data
    site.published.publish()
    if restarted:
        site.come()
        site.restart()
    assert site.come().model_D.tobytes() != site.published.model.data, "nobody knows yet"
    site.published.publish()
    site.check()
    assert site.follower.repaired in (1, 2), "the model's chunk, and that of v_t it moved"
    site.published.publish(32)
    site.check()
    assert site.follower.repaired in (1, 2)


def test_a_kept_model_that_is_not_finite_is_fetched_anew(site):
    site.published.publish(2)
    site.check()
    (kept,) = (site.folder / "job-1").iterdir()
    raw = bytearray(kept.read_bytes())
    raw[-4:] = np.float32(np.nan).tobytes()
    kept.write_bytes(raw)
    site.restart()
    site.check()


# --- what is sent wrongly -------------------------------------------------------------------------


BENDS = {
    "other bytes": (lambda data: bytes([data[0] ^ 1]) + data[1:], Reason.WRONG_DIGEST),
    "cut off": (lambda data: data[:-1], Reason.MALFORMED),
    "too long": (lambda data: data + b"x", Reason.MALFORMED),
}


@pytest.mark.parametrize("case", BENDS)
@pytest.mark.parametrize("content", ["sum", "log", "checkpoint"])
def test_what_is_not_the_announced_content_is_refused(site, case, content):
    site.published.publish({"sum": 1, "log": 2, "checkpoint": 66}[content])
    wanted = site.published.wanted()
    named = {
        "sum": lambda: wanted.broadcast.opened.packed.sha256,
        "log": lambda: wanted.log.sha256,
        "checkpoint": lambda: next(iter(site.published.log._kept[-3].chunks)),
    }[content]()
    bend, reason = BENDS[case]
    site.link.bend = lambda digest, data: bend(data) if digest == named else data
    site.refuses(reason)
    site.link.bend = lambda _digest, data: data
    site.check()


def other_base(broadcast):
    return dataclasses.replace(
        broadcast, opened=dataclasses.replace(broadcast.opened, encoded_at=0)
    )


def other_count(broadcast):
    return dataclasses.replace(broadcast, opened=dataclasses.replace(broadcast.opened, updates=5))


@pytest.mark.parametrize("change", [other_base, other_count])
def test_a_changed_broadcast_is_another_chain(site, change):
    site.published.publish(2)
    site.check()
    site.published.publish()
    site.refuses(Reason.EQUIVOCATION, broadcast=change(site.published.model.broadcast))
    site.check()


@pytest.mark.parametrize("size", [1, 59, 62, 1 << 30])
def test_a_sum_of_another_size_is_refused_before_it_is_fetched(site, size):
    site.published.publish()
    before = site.link.total
    broadcast = site.published.model.broadcast
    opened = dataclasses.replace(broadcast.opened, packed=ContentName(b"x" * 32, size))
    site.refuses(Reason.WRONG_SHAPE, broadcast=dataclasses.replace(broadcast, opened=opened))
    whole = Broadcast(1, checkpoint=ContentName(b"x" * 32, size))
    site.refuses(Reason.WRONG_SHAPE, broadcast=whole)
    assert site.link.total == before
    site.check()


def test_another_sum_for_one_site_gives_it_another_chain(tmp_path, site):
    """Two sites that are told of different sums never sign one plan: its head is theirs alone."""
    (tmp_path / "b").mkdir()
    other = publisher(tmp_path / "b")
    assert other.model.chain_head == site.published.model.chain_head
    other.source.bytes(1)  # from here on it opens other sums
    other.publish()
    site.published.publish()
    assert other.model.chain_head != site.published.model.chain_head
    site.check()
    # Once it has followed one of them, nothing leads it over to the other.
    told = other.publish().wanted()
    site.published.publish()
    site.refuses(Reason.EQUIVOCATION, broadcast=told.broadcast, head=told.head, log=told.log)
    site.check()


def test_a_log_that_leads_elsewhere_is_refused(site):
    site.published.publish(3)
    wanted = site.published.wanted()
    forged = [kept.broadcast for kept in site.published.log._kept]
    forged[1] = other_count(forged[1])
    log = log_of(served := {}, site.published.log._before, *forged)
    real = site.published.wanted

    def with_forged(**changes):
        announced = real(**changes)
        for digest, data in served.items():
            site.published.offer.contents[digest] = Held(data)
        return announced

    site.published.wanted = with_forged
    site.refuses(Reason.EQUIVOCATION, log=log)
    site.published.wanted = real
    assert site.published.wanted() == wanted
    site.check()


class Held:
    def __init__(self, data):
        self.data, self.size = data, len(data)

    def read(self, offset, size):
        return self.data[offset : offset + size]


def test_an_older_version_is_a_replay(site):
    before = site.published.model
    site.published.publish(2)
    site.check()
    newest, site.published.model = site.published.model, before
    site.refuses(Reason.REPLAY, broadcast=before.broadcast, head=before.chain_head)
    site.published.model = newest
    site.check()


def test_a_step_that_fails_half_way_leaves_what_is_on_the_disk(site, monkeypatch):
    site.published.publish(2)
    site.check()
    site.published.publish(2)
    real, calls = OuterStep.replay, []

    def fail_late(self, *arguments):
        stepped = real(self, *arguments)
        calls.append(1)
        if len(calls) == 2:
            raise PeerError(Reason.NOT_FINITE, "the step left the finite numbers")
        return stepped

    monkeypatch.setattr(OuterStep, "replay", fail_late)
    site.refuses(Reason.NOT_FINITE)
    site.check()


# --- broken connections ---------------------------------------------------------------------------


@pytest.mark.parametrize("message_bytes", [CHUNK_BYTES, 300_000])
def test_a_download_that_breaks_anywhere_goes_on_where_it_was(tmp_path, message_bytes):
    published = publisher(tmp_path, LARGE).publish(33)
    for cuts in itertools.product([0, 1, 3], [0, 2]):
        site = Site(tmp_path / f"{message_bytes}-{cuts}", published)
        site.link.message_bytes = message_bytes
        site.link.cuts = [1, *cuts, *cuts]
        site.check()
        assert site.cost < published.model.broadcast.opened.packed.size + 13 * LARGE.length


def test_a_site_that_dies_while_it_joins_keeps_the_chunks_it_has(tmp_path):
    site = Site(tmp_path, publisher(tmp_path, LARGE).publish(32))
    chunks = list(site.published.log._kept[-1].chunks)
    site.published.wanted()
    gone = chunks[-2]
    real = site.link.publisher.log.offer

    def without_one(model):
        offer = real(model)
        return dataclasses.replace(
            offer, contents={d: c for d, c in offer.contents.items() if d != gone}
        )

    site.published.log.offer = without_one
    site.refuses(Reason.UNKNOWN_JOB)
    del site.published.log.offer
    site.restart()
    fetched = site.link.fetched[gone]
    before = site.link.total
    site.check()
    assert site.link.fetched[gone] - fetched == CHUNK_BYTES or site.link.fetched[gone]
    assert site.link.total - before < 2 * CHUNK_BYTES + 20_000
    assert not list((site.folder / "job-1").glob("*.part"))


# --- versions that come whole ---------------------------------------------------------------------


def test_of_whole_versions_only_chunks_that_differ_are_fetched(tmp_path):
    spec = VectorSpec((TensorSpec("w", (1000, 1000)),))
    site = Site(tmp_path, publisher(tmp_path, spec, strategy="FedAvg", options=""))
    site.check()
    values_D = site.published.model.vector().copy()
    values_D[-10:] += 1
    site.published.replace_whole(values_D)
    site.check()
    assert site.cost < CHUNK_BYTES + 1000
    site.restart()
    values_D = values_D.copy()
    values_D[:10] += 1
    site.published.replace_whole(values_D)
    site.published.replace_whole(values_D + np.float32(0))
    site.check()
    assert site.cost < CHUNK_BYTES + 3000


def test_a_job_that_ends_leaves_nothing(site):
    asyncio.run(site.follower.forget("job-1"))
    assert not (site.folder / "job-1").exists()
