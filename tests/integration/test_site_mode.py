"""Mode site over real sites: whole updates clipped, noised, summed, charged once a round each."""

import numpy as np
import pytest
from safetensors.numpy import load

from tests.integration.test_edge_node import charges, run
from tests.support.live_aggregator import SPEC, job_toml
from tests.support.live_site import FakeTrainer, market

ROUNDS = 2
SITE = 'mode = "site"\nepsilon = 12.0\ndelta_dp = 1e-5\nnoise_multiplier = 1.5\nclipping_norm = 1.0'
LOCAL = b"[local]\nsteps = 2\nbatch_size = 8\nlearning_rate = 0.1\n"


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    monkeypatch.setattr("edge_node.rounds.task_rounds.Trainer", FakeTrainer)
    monkeypatch.setattr(FakeTrainer, "fail_next", 0)


def allow(site, _number):
    policy = site.folder / "policy.toml"
    text = policy.read_text().replace('"none"]', '"none", "site"]')
    policy.write_text(text)


def test_a_site_job_trains_with_noise_and_is_charged_once_a_round(tmp_path):
    async def scenario():
        async with market(tmp_path, prepare=allow, epsilon=30.0) as (live, sites):
            toml = job_toml(privacy=SITE, rounds=ROUNDS) + LOCAL
            job = await live.watch(await live.submit(toml))
            assert (job.state, job.round, job.detail) == ("finished", ROUNDS, "")
            assert (job.mode, job.unit, job.tier) == ("site", "site", "enforced")
            model = load(await live.export(job.job_id))
            return job, model, [charges(site) for site in sites]

    job, model, ledgers = run(scenario())
    for line in ledgers:
        assert (line.charges, line.by_tier) == (ROUNDS, {"enforced": ROUNDS})
    moved_D = SPEC.flatten(model)
    # Every coordinate of every update is -0.001 a step: the noise is far above it, and no more.
    assert np.isfinite(moved_D).all()
    assert 0.001 < moved_D.std() < 2.0
    assert all(site.epsilon > 0 for site in job.sites)


def test_a_site_that_does_not_allow_the_mode_refuses_it_by_name(tmp_path):
    async def scenario():
        async with market(tmp_path, epsilon=30.0) as (live, _):
            job = await live.watch(await live.submit(job_toml(privacy=SITE) + LOCAL))
            assert job.state == "failed"
            assert "modes: mode 'site'" in job.sites[0].detail

    run(scenario())
