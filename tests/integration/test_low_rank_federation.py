"""Low-rank updates over real sites: exact sums, drop-outs that lose nothing, restarts, each mode.

Aggregator and edge nodes are real, on TLS; only what trains is a stand-in, so that each site's
difference is known.
"""

import asyncio
import hashlib
from dataclasses import dataclass, field

import numpy as np
import pytest

from aggregator.opened_sum import encoding_for_version as derive
from aggregator.unmask import unmask
from edge_node.updates import mask_update, send_update
from privacy.encode import quantise_delta
from privacy.errors import PeerError, Reason
from privacy.pipeline import EncodingPlan
from privacy.ring import reduce_in_place
from privacy.spec import TensorSpec, VectorSpec
from tests.integration.test_edge_node import run
from tests.support.live_aggregator import federation, job_toml
from tests.support.live_site import FakeTrainer, market

SPEC = VectorSpec((TensorSpec("w", (60, 60)), TensorSpec("b", (60,)), TensorSpec("v", (45, 4, 20))))
ROUNDS, SITES = 5, 5
MODES = {
    "none": {"clipping_norm": 1.0},
    "site": {"epsilon": 25.0, "noise_multiplier": 2.0, "clipping_norm": 1.0},
    "record-local": {
        "epsilon": 25.0,
        "noise_multiplier": 1.0,
        "clipping_norm": 1.0,
        "sampling_rate": 0.05,
        "expected_batch_size": 10,
        "max_records": 500,
        "update_norm": 1.0,
    },
    "record-distributed": {
        "epsilon": 25.0,
        "noise_multiplier": 1.0,
        "clipping_norm": 1.0,
        "sampling_rate": 0.05,
        "expected_batch_size": 50,
        "max_records": 500,
    },
}


def toml(mode, compression='map = "low-rank"\nrank = 3\nsmall_keep = 0.5', rounds=ROUNDS):
    values = MODES[mode] | ({} if mode == "none" else {"delta_dp": 1e-5})
    privacy = "\n".join([f'mode = "{mode}"', *(f"{key} = {v}" for key, v in values.items())])
    text = job_toml(privacy=privacy, rounds=rounds, target=SITES).decode()
    text = text.replace('map = "identity"', compression)
    if mode != "record-distributed":
        text += "[local]\nsteps = 2\nlearning_rate = 0.1\n"
    if mode in ("none", "site"):
        text += "batch_size = 8\n"
    return text.encode()


class KnownTrainer(FakeTrainer):
    """Moves each site's model in a direction of its own, close to low rank."""

    count = 0

    def __init__(self, job, limits, confinement):
        super().__init__(job, limits, confinement)
        self.number = KnownTrainer.count
        KnownTrainer.count += 1

    def _delta(self, model_D):
        digest = hashlib.sha256(model_D.tobytes() + bytes([self.number])).digest()
        rng = np.random.default_rng(list(digest))
        common = np.random.default_rng(7).standard_normal(SPEC.length)
        return (0.002 * common + 0.0005 * rng.standard_normal(SPEC.length)).astype(np.float32)

    async def local_steps(self, model_D, batches, learning_rate, _box=None):
        await asyncio.sleep(0)
        metrics_KM = np.zeros((len(batches), self.job.metrics_length), np.float32)
        return model_D + self._delta(model_D), metrics_KM

    async def record_gradients(self, model_D, rows_NC, on_chunk):
        await asyncio.sleep(0)
        gradients = np.tile(-self._delta(model_D), (len(rows_NC), 1))
        on_chunk(gradients, np.zeros((len(rows_NC), 0), np.float32), len(rows_NC))


@dataclass
class Wiretap:
    """What the sites really sent, and what was opened.

    Attributes:
        lose: Number of the upload, from 1, that is lost; 0 for none.
        sent: Updates on their way in the current round, before their masks.
        sums: By round: what was opened, what its updates add up to, and how many they are.
        wanted: What sites meant to say, in order: plan and V.
        versions: Version and announcement of each opened sum.
    """

    lose: int = 0
    uploads: int = 0
    masked: dict = field(default_factory=dict)
    sent: list = field(default_factory=list)
    sums: list = field(default_factory=list)
    wanted: list = field(default_factory=list)
    versions: list = field(default_factory=list)


@pytest.fixture
def tap(monkeypatch):
    found = Wiretap()

    async def mask(update, terms, bits):
        masked = await mask_update(update, terms, bits)
        found.masked[masked.sha256] = update.vector_D
        return masked

    async def send(link, header, masked, *, resume):
        found.uploads += 1
        if found.uploads == found.lose:
            raise PeerError(Reason.TIMEOUT, "the network is gone")
        found.sent.append(found.masked[masked.sha256])
        await send_update(link, header, masked, resume=resume)

    def opened(folded, terms, parts):
        result = unmask(folded, terms, parts)
        total_d = np.asarray(sum(found.sent)).astype(np.uint32)
        found.sums.append((result.values_d.copy(), total_d, len(found.sent)))
        found.sent = []
        return result

    def quantise(plan, delta, metrics_M, seed):
        found.wanted.append((plan, delta.values_D.copy()))
        return quantise_delta(plan, delta, metrics_M, seed)

    def derived(plan, version, announcement=b""):
        found.versions.append((version, announcement))
        return derive(plan, version, announcement)

    monkeypatch.setattr("edge_node.rounds.task_rounds.Trainer", KnownTrainer)
    monkeypatch.setattr(KnownTrainer, "count", 0)
    monkeypatch.setattr("edge_node.updates.mask_update", mask)
    monkeypatch.setattr("edge_node.updates.send_update", send)
    monkeypatch.setattr("edge_node.rounds.site_delta.quantise_delta", quantise)
    monkeypatch.setattr("aggregator.opened_sum.unmask", opened)
    monkeypatch.setattr("aggregator.opened_sum.encoding_for_version", derived)
    return found


def allow(site, _number):
    policy = site.folder / "policy.toml"
    text = policy.read_text().replace(
        '"none"]', '"none", "site", "record-local"]\nallow_adjacent_cohorts = true'
    )
    policy.write_text(text)


def plan_of(live, job_id):
    return live.coordinator.job(job_id).plan


@pytest.mark.parametrize("mode", MODES)
def test_sums_are_those_of_the_survivors_and_a_drop_out_loses_nothing(tmp_path, tap, mode):
    tap.lose = SITES + 3  # one of the second round

    async def scenario():
        async with market(tmp_path, prepare=allow, epsilon=30.0) as (live, _):
            job_id = await live.submit(toml(mode), spec=SPEC)
            job = await live.watch(job_id)
            assert (job.state, job.round, job.detail) == ("finished", ROUNDS, "")
            return plan_of(live, job_id), job

    plan, job = run(scenario())
    assert [count for *_, count in tap.sums] == [SITES, SITES - 1, SITES, SITES, SITES]
    for opened_d, total_d, _ in tap.sums:
        assert np.array_equal(opened_d, reduce_in_place(total_d, plan.bits))
    lengths = [opened_d.size for opened_d, *_ in tap.sums]
    assert lengths[::2] == lengths[:1] * 3
    assert lengths[1::2] == lengths[1:2] * 2
    assert [version for version, _ in tap.versions] == list(range(ROUNDS))
    assert tap.versions[0][1] == b""
    assert len({announced for _, announced in tap.versions}) == ROUNDS, (
        "each has a basis of its own"
    )
    assert sum(site.dropped for site in job.sites) == 1
    assert plan.decay == (0.0 if mode == "record-distributed" else 1.0)
    if plan.decay:
        _check_carried(tap, plan)


def _check_carried(tap, plan):
    """V of the third round: of the site that was dropped, with its whole V of the second."""
    rounds = [tap.wanted[SITES * number : SITES * (number + 1)] for number in range(ROUNDS)]
    assert all(len({p.map_seed for p, _ in one}) == 1 for one in rounds)
    norms = [sorted(float(np.linalg.norm(wanted_D)) for _, wanted_D in one) for one in rounds]
    fresh = norms[0][-1]
    if plan.mode.value == "none":
        # All carry what the map left out; the one that dropped carries all of it.
        whole = [wanted_D for _, wanted_D in rounds[1]]
        third = [wanted_D for _, wanted_D in rounds[2]]
        likeness = [max(_likeness(before_D, after_D) for after_D in third) for before_D in whole]
        assert max(likeness) > sorted(likeness)[-2]
    assert norms[1][-1] > 1.2 * fresh
    assert norms[2][-1] > norms[1][0]


def _likeness(one_D, other_D):
    return float(one_D @ other_D) / float(np.linalg.norm(one_D) * np.linalg.norm(other_D))


def test_a_restarted_aggregator_goes_on_with_what_was_announced(tmp_path, tap):
    def deltas(index):
        rng = np.random.default_rng(index)
        return lambda _version, length: 0.01 * rng.standard_normal(length)

    async def scenario():
        async with federation(tmp_path, delta_of=deltas) as live:
            job_id = await live.submit(toml("none", rounds=6), spec=SPEC)
            await live.watch(job_id, until=lambda job: job.round >= 2)
            await live.stop()
            known = dict(tap.versions)
            await live.start()
            for site in live.sites:
                live.connect(site)
            job = await live.watch(job_id)
            assert (job.state, job.round) == ("finished", 6)
            return known

    known = run(scenario())
    assert len(known) >= 2
    by_version = {}
    for version, announced in tap.versions:
        assert by_version.setdefault(version, announced) == announced
    assert sorted(by_version) == list(range(6))
    assert all(by_version[version] for version in range(1, 6))


def test_a_target_gives_small_uploads_and_the_range_settles(tmp_path, tap):
    async def scenario():
        async with market(tmp_path, prepare=allow, epsilon=30.0) as (live, _):
            job_id = await live.submit(toml("none", 'target = "20x"', rounds=6), spec=SPEC)
            job = await live.watch(job_id)
            assert (job.state, job.round, job.detail) == ("finished", 6, "")
            return plan_of(live, job_id), job

    plan, job = run(scenario())
    mean = np.mean([opened_d.size for opened_d, *_ in tap.sums])
    assert 32 * SPEC.length / (plan.bits * mean) >= 20
    assert isinstance(plan, EncodingPlan)
    half = 2 ** (plan.bits - 1)
    spread = [np.sqrt(np.mean(_centred(opened_d, half) ** 2)) / half for opened_d, *_ in tap.sums]
    assert all(0.1 < share < 0.35 for share in spread[2:]), spread
    assert job.wrap_rate < 1e-3


def _centred(values_d, half):
    return (values_d.astype(np.int64) + half) % (2 * half) - half
