"""An unchanged Flower app at a real edge node, among simulated sites of a real aggregator.

The other four sites send zeros, so a mean over the five is a fifth of what the real one sent.
"""

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.numpy import load

from edge_node.budget import read_entries
from edge_node.flower.data import FlowerData
from edge_node.rounds.contract import RoundRequest
from edge_node.store_schema import connect, read_ledgers
from privacy.delta import Delta
from privacy.encode import encode_delta
from privacy.pipeline import EncodingPlan
from privacy.planning import encoding_for_version
from privacy.spec import TensorSpec, VectorSpec
from tests.support.flower_apps import JOB, PLAIN, SPEC, FlowerPlace, make_job, write_flower_app
from tests.support.live_aggregator import LiveAggregator
from tests.support.live_site import LiveSite
from tests.support.wire_site import WireSite
from tidegate import appbundle
from tidegate.messages import is_evaluation

CREDIT = Path(__file__).parents[2] / "examples" / "credit"
ROUNDS = 3


class SilentSite(WireSite):
    """Sends an update of zeros, and zero for each metric."""

    def make_update(self, request, _data):
        (offer,) = [offer for offer in self.offers if offer.job_id == request.job_id][-1:]
        evaluates = is_evaluation(request.purpose)
        raw = offer.evaluation_encoding if evaluates else offer.encoding
        plan = encoding_for_version(EncodingPlan.from_bytes(raw), request.version)
        zeros_D = np.zeros(plan.gradient_length, np.float32)
        metrics_M = np.zeros(plan.metrics_length, np.float32) if plan.metrics_length else None
        return plan, encode_delta(plan, Delta(zeros_D, plan.spec_digest), metrics_M)


@asynccontextmanager
async def market(folder):
    """Give an aggregator, one real site and four that send zeros."""
    live = LiveAggregator(folder / "aggregator")
    await live.start()
    site = LiveSite(folder, "bank-1")
    try:
        await site.enrol(live)
        for number in range(2, 6):
            await live.add_site(f"bank-{number}", site=SilentSite(f"bank-{number}"))
        silent, live.sites = live.sites, [*live.sites, site]
        await live.seal(min_survivors=5)
        live.sites = silent
        for other in silent:
            live.connect(other)
        site.start()
        yield live, site
    finally:
        await site.stop()
        await live.stop()


def allow_flower(site, bundle):
    toml = site.folder / "site.toml"
    toml.write_text(toml.read_text() + "[datasets.credit.flower]\nreadable = []\n")
    policy = site.folder / "policy.toml"
    digest = appbundle.digest(bundle).hex()
    policy.write_text(policy.read_text().replace('["sha256:', f'["sha256:{digest}", "sha256:', 1))


def trainer_of(site):
    (work,) = site.node._bench.jobs.values()
    return work.trainer.process_id


def test_rounds_go_on_with_the_exact_state_after_kills_of_daemon_and_trainer(tmp_path):
    bundle = appbundle.pack(write_flower_app(tmp_path))
    toml = (JOB % PLAIN).replace("rounds = 10", f"rounds = {ROUNDS}").encode()

    async def scenario():
        async with market(tmp_path) as (live, site):
            await site.stop()
            allow_flower(site, bundle)
            site.reload()
            site.start()
            job_id = await live.submit(toml, SPEC, app=bundle)
            await live.watch(job_id, lambda job: job.round >= 1)
            os.kill(trainer_of(site), signal.SIGKILL)
            await live.watch(job_id, lambda job: job.round >= 2)
            await site.crash()
            site.start()
            job = await live.watch(job_id)
            for _ in range(500):  # the site hears of the end a moment later
                if site.store.jobs.app_state(job_id) is None:
                    break
                await asyncio.sleep(0.02)
            assert site.store.jobs.app_state(job_id) is None
            return job, await live.export(job_id), ledger(site)

    before = {child.pid for child in psutil.Process().children(recursive=True)}
    job, raw, charged = asyncio.run(asyncio.wait_for(scenario(), 120))
    assert (job.state, job.round, job.detail) == ("finished", ROUNDS, "")
    # The app sends how often it has been called to train: no call was counted twice or lost.
    assert job.metrics["loss"] == pytest.approx(ROUNDS / 5, abs=0.01)
    model = load(raw)
    expected = ROUNDS * 0.25 / 5
    assert np.allclose(model["layer.weight"], expected, atol=1e-3)
    # Each training and each evaluation; one that the crash cut off after its charge, once more.
    assert {entry.occasion.round_number for entry in charged} == set(range(1, 2 * ROUNDS + 1))
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


def ledger(site):
    database = connect(site.config.database, read_only=True)
    try:
        (kept,) = read_ledgers(database)
        return read_entries(kept)
    finally:
        database.close()


# --- the credit example, as it stands ------------------------------------------------------------

CREDIT_SPEC = VectorSpec(
    tuple(
        TensorSpec(f"layers.{layer}.{part}", shape)
        for layer, rows, columns in ((0, 128, 22), (2, 20, 128), (4, 1, 20))
        for part, shape in (("weight", (rows, columns)), ("bias", (rows,)))
    )
)
CREDIT_JOB = (
    JOB[: JOB.index("run_config")]
    + """
[flower.run_config]
local-steps = 60
batch-size = 64
[privacy]
mode = "none"
clipping_norm = 100.0
metrics_norm = 1.0
[[metrics]]
name = "loss"
kind = "mean"
upper = 4.0
[[evaluation_metrics]]
name = "auc"
kind = "mean"
upper = 1.0
"""
    + JOB[JOB.index("[strategy]") :]
)
NAMES = (
    "utilisation", "age", "late_30_59", "debt_ratio", "income", "open_lines", "late_90",
    "property_loans", "late_60_89", "dependents",
)  # fmt: skip


def write_shards(folder):
    """Write customers of one bank, whose income tells who defaults."""
    source = np.random.default_rng(1)
    for part in ("train", "test"):
        columns = {name: source.random(400).astype(np.float32) for name in NAMES}
        columns["income"] = np.where(source.random(400) < 0.5, 1e3, 5e4).astype(np.float32)
        columns["default"] = (columns["income"] < 1e4).astype(np.float32)
        columns["default"][:7] = np.nan
        np.savez(folder / f"{part}.npz", **columns)


def test_the_credit_example_trains_and_evaluates_unchanged(tmp_path):
    data = tmp_path / "bank"
    data.mkdir()
    write_shards(data)
    place = FlowerPlace(tmp_path, FlowerData((data,), {"data": str(data)}))
    job = make_job(CREDIT_JOB, CREDIT_SPEC)
    app = tmp_path / "app"
    appbundle.unpack(appbundle.pack(CREDIT), app)

    async def scenario():
        work = place.round(job, app)
        model_D = np.random.default_rng(2).normal(0, 0.1, CREDIT_SPEC.length).astype(np.float32)
        losses, aucs = [], []
        for version in range(3):
            request = RoundRequest(2 * version + 1, version, model_D)
            update = await work.make_update(request)
            values = update.vector_D / job.plan.scale
            losses.append(values[-1] * 4.0)
            model_D = (model_D + values[:-1]).astype(np.float32)
            request = RoundRequest(2 * version + 2, version + 1, model_D, "evaluate")
            update = await work.make_update(request)
            aucs.append(float(update.vector_D[0]) / job.evaluation.plan.scale)
        await work.stop()
        return losses, aucs

    losses, aucs = asyncio.run(asyncio.wait_for(scenario(), 90))
    assert losses[2] < losses[0]
    assert aucs[-1] > 0.95, "income tells who defaults"
