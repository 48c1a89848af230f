"""Whole rounds over the real wire: mTLS, SA-1, fold, unmask, decode, Flower strategy, journal."""

import asyncio

import numpy as np
import pytest
from safetensors.numpy import load

from aggregator.person import state_person_epsilon
from tests.support.live_aggregator import RECORD, SPEC, federation, job_toml


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


@pytest.mark.parametrize(
    "message", ["TrainRequest", "Roster", "ShareDelivery", "SurvivorSet", "SurvivorQuorum"]
)
def test_a_site_that_vanishes_at_any_step_costs_nothing(tmp_path, message):
    async def scenario():
        async with federation(tmp_path, delta_of=deltas) as live:
            live.sites[2].vanish_on = message
            job = await live.watch(await live.submit(job_toml(rounds=2)))
            assert (job.state, job.attempts_aborted) == ("finished", 0)
            by_name = {site.site_id: site for site in job.sites}
            # After the upload an update is in the sum, whether or not its site is still there.
            uploaded = message in ("SurvivorSet", "SurvivorQuorum")
            assert by_name["bank-3"].rounds_in == uploaded
            assert all(by_name[f"bank-{i}"].rounds_in == 2 for i in (1, 2, 4, 5))
            tensors = load(await live.export(job.job_id))
            flat = np.concatenate([tensors[t.name].ravel() for t in SPEC.tensors])
            first = [0, 1, 2, 3, 4] if uploaded else [0, 1, 3, 4]
            expected = np.mean([deltas(i)(0, SPEC.length) for i in first], axis=0)
            expected += np.mean([deltas(i)(1, SPEC.length) for i in [0, 1, 3, 4]], axis=0)
            np.testing.assert_allclose(flat, expected, atol=1e-6)

    run(scenario())


def test_two_losses_abort_and_the_round_goes_on_when_they_are_back(tmp_path):
    async def scenario():
        async with federation(tmp_path, delta_of=deltas) as live:
            lost = live.sites[:2]
            for site in lost:
                site.vanish_on = "ShareDelivery"
            job_id = await live.submit(job_toml(rounds=2))
            job = await live.watch(job_id, lambda job: job.attempts_aborted == 1)
            assert job.round == 0
            for site in lost:
                await site.dead.wait()
            job = await live.watch(job_id, lambda job: "STALLED" in job.detail)
            assert "needs 4 sites" in job.detail
            for site in lost:
                live.connect(site)
            job = await live.watch(job_id)
            assert (job.state, job.round) == ("finished", 2)
            # Three aborted and are here: they were told so before they were asked to train again.
            told = {proof.ctx for site in live.sites[2:] for proof in site.proofs}
            assert len(told) == 1
            assert all(site.proofs for site in live.sites[2:])
            tensors = load(await live.export(job_id))
            flat = np.concatenate([tensors[t.name].ravel() for t in SPEC.tensors])
            # The first to come back makes four: a cohort may be cut before the second one.
            means = [
                [
                    np.mean(
                        [deltas(i)(version, SPEC.length) for i in range(5) if i != away], axis=0
                    )
                    for away in (None, 0, 1)
                ]
                for version in (0, 1)
            ]
            gaps = [np.abs(flat - (a + b)).max() for a in means[0] for b in means[1]]
            assert min(gaps) < 1e-6

    run(scenario())


def test_a_job_goes_on_after_a_crash_as_if_nothing_had_happened(tmp_path):
    """FedAdam with its state: the crashed and resumed job ends in the same bits."""
    options = "[strategy.options]\neta = 0.05\nbeta_1 = 0.8"
    toml = job_toml(rounds=6, strategy="FedAdam", target=4, options=options)

    async def undisturbed():
        async with federation(tmp_path / "a", 4, deltas) as live:
            job_id = await live.submit(toml)
            await live.watch(job_id)
            return await live.export(job_id)

    async def crashed():
        async with federation(tmp_path / "b", 4, deltas) as live:
            job_id = await live.submit(toml)
            await live.watch(job_id, lambda job: job.round >= 2)
            await live.restart()
            for site in live.sites:
                live.connect(site)
            job = await live.watch(job_id)
            assert (job.state, job.round) == ("finished", 6)
            assert all(len(site.offers) == 1 for site in live.sites)
            return await live.export(job_id)

    left, right = load(run(undisturbed())), load(run(crashed()))
    for name, tensor in left.items():
        np.testing.assert_array_equal(tensor, right[name])


def test_a_private_job_runs_and_says_so_in_the_model(tmp_path):
    async def scenario():
        async with federation(tmp_path, delta_of=deltas) as live:
            job_id = await live.submit(job_toml(rounds=2, privacy=RECORD))
            job = await live.watch(job_id)
            assert (job.state, job.mode, job.unit) == ("finished", "record-distributed", "record")
            assert job.delta_dp == 1e-5
            assert all(site.epsilon == 0.5 and site.train_s > 0 for site in job.sites)
            raw = await live.export(job_id)
            header = raw[8 : 8 + int.from_bytes(raw[:8], "little")].decode()
            for text in (job_id, '"epsilon":"0.5"', '"rounds":"2"', '"delta_dp":"1e-05"'):
                assert text in header
            # Beside one site's epsilon stands that of a person in as many as the manifest allows.
            assert job.person_sites == 2
            assert 0 < 2 * job.epsilon_one_site <= job.epsilon_person < 3.0
            assert f'"job_epsilon_person":"{job.epsilon_person:.6g}"' in header
            assert '"person_sites":"2"' in header
            sums = live.coordinator._jobs.recent_metric_sums(job_id, 5)
            assert sums == [[], []]

    run(scenario())


def test_an_attempt_that_a_crash_cut_off_counts_in_what_a_person_is_told(tmp_path):
    async def scenario():
        async with federation(tmp_path, delta_of=deltas) as live:
            lost = live.sites[:2]
            for site in lost:
                site.vanish_on = "ShareDelivery"
            job_id = await live.submit(job_toml(rounds=2, privacy=RECORD))
            planned = (await live.watch(job_id, lambda job: True)).epsilon_person
            aborted = await live.watch(
                job_id, lambda job: job.attempts_aborted and "STALLED" in job.detail
            )
            assert (aborted.round, aborted.attempts_aborted) == (0, 1)
            # No round was committed: the aggregator's own count of aborted attempts is lost.
            await live.restart()
            for site in live.sites:
                live.connect(site)
            job = await live.watch(job_id)
            assert (job.state, job.round, job.attempts_aborted) == ("finished", 2, 0)
            manifest = live.coordinator.registry.sealed.manifest
            known = live.coordinator.job(job_id)
            once_more = state_person_epsilon(known, manifest, 1)
            assert planned == state_person_epsilon(known, manifest, 0).all_sites
            assert planned < job.epsilon_person == once_more.all_sites

    run(scenario())


def test_sites_that_fail_to_train_end_the_job_with_their_reason(tmp_path):
    async def scenario():
        async with federation(tmp_path, delta_of=deltas) as live:
            for site in live.sites:
                site.not_ready = ("trainer-failed", "KeyError: 'income'")
            job = await live.watch(await live.submit(job_toml(attempts=3)))
            assert job.state == "failed"
            assert "KeyError: 'income'" in job.detail
            assert all(len(site.requests) == 3 for site in live.sites)

    run(scenario())


def test_exhausted_budgets_end_the_job_when_too_few_are_left(tmp_path):
    async def scenario():
        async with federation(tmp_path, delta_of=deltas) as live:
            live.sites[0].not_ready = ("budget-exhausted", "3.0 of 3.0 spent")
            job_id = await live.submit(job_toml(rounds=2))
            job = await live.watch(job_id)
            assert job.state == "finished"
            assert len(live.sites[0].requests) == 1
            for site in live.sites[:2]:
                site.not_ready = ("budget-exhausted", "3.0 of 3.0 spent")
            job = await live.watch(await live.submit(job_toml(rounds=2)))
            assert job.state == "failed"
            assert "3.0 of 3.0 spent" in job.detail
            assert "bank-2" in job.detail

    run(scenario())
