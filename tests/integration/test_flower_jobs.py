"""Flower apps over the real wire: by strategy and by their own ServerApp, with crashes between."""

import asyncio
import logging

import numpy as np
import pytest
from flwr.app import ConfigRecord
from flwr.serverapp import strategy as flower
from safetensors.numpy import load

from tests.support.flower_rounds import NODES, SPEC, FlowerGrid
from tests.support.flower_site import FEDADAM, flower_app, flower_job, make_site
from tests.support.live_aggregator import federation
from tidegate import flower_messages
from tidegate.flower_bridge import assume_task_identity

logging.getLogger("flwr").setLevel(logging.ERROR)

SITES = 4  # no cohort can do without one of them
ADAM = {"eta": 0.05, "tau": 1e-2, "beta_1": 0.8}
BY_STRATEGY = {
    "driver": "strategy",
    "rounds": 4,
    "flower": "evaluate_every = 2\n[flower.train_config]\nlr = 0.25",
    "strategy": '[strategy]\nname = "FedAdam"\n[strategy.options]\neta = 0.05\ntau = 1e-2\n'
    "beta_1 = 0.8",
}


JOBS = {"server-app": {}, "strategy": BY_STRATEGY}


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 90))


def flat(raw):
    tensors = load(raw)
    return np.concatenate([tensors[tensor.name].ravel() for tensor in SPEC.tensors])


def by_flower(rounds=4):
    """Give the model of Flower's own engine, over one reply a node."""
    assume_task_identity()
    first = flower_messages.to_record(SPEC.unflatten(np.zeros(SPEC.length, np.float32)))
    settings = ConfigRecord({"lr": 0.25})
    result = flower.FedAdam(**ADAM).start(
        FlowerGrid(NODES[:SITES]), first, rounds, train_config=settings
    )
    return SPEC.flatten(flower_messages.as_float32(result.arrays)), result


async def whole_job(folder, toml, app, restart_at=()):
    """Run a job to its end, with restarts of the aggregator once so many exchanges are done."""
    async with federation(folder, SITES, make_site=make_site) as live:
        job_id = await live.submit(toml, SPEC, app=app)
        for exchanges in restart_at:
            await live.watch(job_id, lambda job, e=exchanges: done(live, job_id) >= e)
            await live.restart()
            for site in live.sites:
                live.connect(site)
        job = await live.watch(job_id)
        assert not [site.complaints for site in live.sites if site.complaints]
        return job, await live.export(job_id), live


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Give the job of a driver that nothing disturbs, run once."""
    ran = {}

    def undisturbed(driver):
        if driver not in ran:
            folder = tmp_path_factory.mktemp(driver)
            toml = flower_job(**JOBS[driver])
            ran[driver] = (*run(whole_job(folder, toml, flower_app())), folder)
        return ran[driver]

    return undisturbed


def done(live, job_id):
    return live.coordinator._jobs.load_checkpoint(job_id).exchange


def test_a_server_app_drives_the_job_to_the_model_of_flowers_engine(undisturbed):
    job, raw, live, folder = undisturbed("server-app")
    assert (job.state, job.round, job.detail) == ("finished", 4, "")
    expected_D, result = by_flower()
    np.testing.assert_allclose(flat(raw), expected_D, atol=2e-6)
    (site, *_) = live.sites
    assert site.settings == [
        (purpose, {"server-round": n, **({"lr": 0.25} if purpose == "train" else {})})
        for n in range(1, 5)
        for purpose in ("train", "evaluate")
    ]
    shown = dict(job.metrics)
    assert shown["loss"] == pytest.approx(result.train_metrics_clientapp[4]["loss"], abs=1e-4)
    assert shown["eval-loss"] == pytest.approx(
        result.evaluate_metrics_clientapp[4]["loss"], abs=1e-4
    )
    assert [path.suffix for path in (folder / "server-apps").iterdir()] == [".log"]


def test_a_strategy_drives_the_job_to_the_model_of_flowers_engine(undisturbed):
    job, raw, live, _ = undisturbed("strategy")
    assert (job.state, job.round, job.detail) == ("finished", 4, "")
    expected_D, result = by_flower()
    np.testing.assert_allclose(flat(raw), expected_D, atol=2e-6)
    (site, *_) = live.sites
    purposes = [purpose for purpose, _ in site.settings]
    assert purposes == ["train", "train", "evaluate"] * 2
    assert job.metrics["eval-loss"] == pytest.approx(
        result.evaluate_metrics_clientapp[4]["loss"], abs=1e-4
    )


@pytest.mark.parametrize(("driver", "crashes"), [("server-app", (3, 6)), ("strategy", (1, 3, 5))])
def test_a_job_goes_on_after_crashes_as_if_nothing_had_happened(
    undisturbed, tmp_path, driver, crashes
):
    _, whole, _, _ = undisturbed(driver)
    toml = flower_job(**JOBS[driver])
    job, crashed, live = run(whole_job(tmp_path, toml, flower_app(), crashes))
    assert (job.state, job.round) == ("finished", 4)
    np.testing.assert_array_equal(flat(whole), flat(crashed))
    assert all(len(site.offers) == 1 for site in live.sites)


DRAWS_LOTS = FEDADAM.replace(
    "    strategy",
    "    arrays['b'] = Array(np.frombuffer(open('/dev/urandom', 'rb').read(3), 'u1')"
    ".astype('f4'))\n    strategy",
    1,
)


def test_a_main_that_is_not_repeatable_ends_with_the_reason(tmp_path):
    job, _, _ = run(whole_job(tmp_path, flower_job(), flower_app(DRAWS_LOTS), (3,)))
    assert job.state == "failed"
    assert "not repeatable" in job.detail
    assert "call 1" in job.detail


@pytest.mark.parametrize(
    ("body", "imports", "says"),
    [
        (
            "    raise ValueError('no such luck')",
            "FedAvg",
            "no such luck (demo/server_app.py, line",
        ),
        ("    Krum().start(grid, arrays, 1)", "Krum", "picks replies by their distances"),
        ("    import os; os._exit(3)", "FedAvg", "ended unexpectedly with status 3"),
    ],
)
def test_a_server_app_that_fails_says_why(tmp_path, body, imports, says):
    job, _, _ = run(whole_job(tmp_path, flower_job(), flower_app(body, imports)))
    assert job.state == "failed"
    assert says in job.detail


def test_a_stopped_job_ends_its_process_and_keeps_no_replies(tmp_path):
    body = "    FedAvg().start(grid, arrays, 1)\n    import time; time.sleep(60)"

    async def scenario():
        async with federation(tmp_path, SITES, make_site=make_site) as live:
            job_id = await live.submit(flower_job(), SPEC, app=flower_app(body, "FedAvg"))
            await live.watch(job_id, lambda job: done(live, job_id) == 2)
            thread = live.coordinator._thread
            assert live.coordinator._calls.load(job_id, 1) is not None
            live.coordinator.stop_job(job_id, "enough")
            await asyncio.to_thread(thread.join, 10)
            assert not thread.is_alive()
            assert live.coordinator._calls.load(job_id, 1) is None

    run(scenario())
