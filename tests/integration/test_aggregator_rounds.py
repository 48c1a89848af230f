"""Whole rounds over the real wire: mTLS, SA-1, fold, unmask, decode, Flower strategy, journal."""

import asyncio

import numpy as np
import pytest
from safetensors.numpy import load

from tests.support.live_aggregator import NONE, RECORD, SPEC, federation, job_toml


def deltas(index):
    def delta_of(version, length):
        rng = np.random.default_rng(1000 * index + version)
        return rng.uniform(-0.01, 0.01, length)

    return delta_of


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 90))


def mean_of(rounds, sites):
    total = np.zeros(SPEC.length)
    for version in range(rounds):
        every = [deltas(i)(version, SPEC.length).astype(np.float32) for i in sites]
        total += np.mean(every, axis=0)
    return total


def test_a_plain_job_gives_the_mean_of_the_sites_deltas(tmp_path):
    async def scenario():
        async with federation(tmp_path, delta_of=deltas) as live:
            job_id = await live.submit(job_toml(rounds=4))
            job = await live.watch(job_id)
            assert (job.state, job.round, job.detail) == ("finished", 4, "")
            tensors = load(await live.export(job_id))
            flat = np.concatenate([tensors[t.name].ravel() for t in SPEC.tensors])
            np.testing.assert_allclose(flat, mean_of(4, range(5)), atol=1e-6)
            assert all(site.rounds_in == 4 and site.bytes_up > 4000 for site in job.sites)
            await asyncio.sleep(0.05)
            assert all(len(site.ended) == 1 for site in live.sites)

    run(scenario())
