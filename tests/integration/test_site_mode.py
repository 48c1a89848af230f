"""Mode site over real sites: whole updates clipped, noised, summed, charged once a round each."""

import numpy as np
import pytest
from safetensors.numpy import load

from aggregator.unmask import unmask
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


def test_noise_that_only_drop_outs_would_need_is_taken_off_again(tmp_path, monkeypatch):
    """Five of five survive, N_min is four: each site lets go of a quarter of its share."""
    opened = []

    def spy(folded, terms, parts):
        opened.append((parts, folded.updates))
        return unmask(folded, terms, parts)

    monkeypatch.setattr("aggregator.opened_sum.unmask", spy)

    async def scenario():
        async with market(tmp_path, prepare=allow, epsilon=30.0) as (live, sites):
            toml = job_toml(privacy=SITE + "\nremove_surplus_noise = true", rounds=ROUNDS) + LOCAL
            job = await live.watch(await live.submit(toml))
            assert (job.state, job.round, job.detail) == ("finished", ROUNDS, "")
            return [charges(site) for site in sites], await live.export(job.job_id)

    ledgers, model = run(scenario())
    assert all(line.charges == ROUNDS for line in ledgers)
    assert len(opened) == ROUNDS
    seeds = set()
    for parts, updates in opened:
        assert updates == len(parts) == 5
        assert len({variance for variance, _ in parts}) == 1
        seeds.update(seed for _, seed in parts)
    assert len(seeds) == 5 * ROUNDS, "each update has seeds of its own"
    assert np.isfinite(SPEC.flatten(load(model))).all()


def test_a_site_that_does_not_allow_the_mode_refuses_it_by_name(tmp_path):
    async def scenario():
        async with market(tmp_path, epsilon=30.0) as (live, _):
            job = await live.watch(await live.submit(job_toml(privacy=SITE) + LOCAL))
            assert job.state == "failed"
            # The job is over with the second refusal: who has answered by then is chance.
            assert any("modes: mode 'site'" in site.detail for site in job.sites)

    run(scenario())
