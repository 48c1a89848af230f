"""Real edge nodes against a real aggregator: enrolment, rounds, crashes, budgets, refusals."""

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import numpy as np
import pytest
from safetensors.numpy import load

from edge_node import enrol
from edge_node.lock import FolderLock
from privacy.errors import PeerError, Reason, UsageError
from privacy.pipeline import EncodingPlan
from tests.support.live_aggregator import RECORD, LiveAggregator, job_toml
from tests.support.live_site import FakeTrainer, LiveSite, budgets, market
from tidegate.v1 import operator_pb2 as pb

JOB = {"privacy": RECORD, "target": 5}


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 90))


@pytest.fixture(autouse=True)
def fake_trainer(monkeypatch):
    monkeypatch.setattr("edge_node.rounds.task_rounds.Trainer", FakeTrainer)
    monkeypatch.setattr(FakeTrainer, "fail_next", 0)


def charges(site):
    (line,) = budgets(site)
    return line


def at_rate(toml, rate):
    text = toml.replace(b"sampling_rate = 0.01", f"sampling_rate = {rate}".encode())
    return text.replace(b"epsilon = 3.0", b"epsilon = 30.0")


def test_a_private_job_runs_and_each_site_is_charged_once_a_round(tmp_path):
    async def scenario():
        async with market(tmp_path) as (live, sites):
            job = await live.watch(await live.submit(job_toml(rounds=3, **JOB)))
            assert (job.state, job.round, job.detail) == ("finished", 3, "")
            assert [site.rounds_in for site in job.sites] == [3] * 5
            assert all(site.epsilon > 0 for site in job.sites)
        for site in sites:
            line = charges(site)
            assert (line.charges, line.by_tier) == (3, {"enforced": 3})
            assert 0 < line.spent_epsilon < line.epsilon
            assert not site.config.apps.exists(), "the unpacked app is gone"

    run(scenario())


def test_a_site_killed_in_the_middle_comes_back_and_its_ledger_holds(tmp_path):
    async def scenario():
        async with market(tmp_path) as (live, sites):
            job_id = await live.submit(job_toml(rounds=12, **JOB))
            await live.watch(job_id, until=lambda job: job.round >= 3)
            await sites[0].crash()
            await live.watch(job_id, until=lambda job: job.round >= 6)
            sites[0].start()
            job = await live.watch(job_id)
            assert (job.state, job.round) == ("finished", 12)
            first = next(site for site in job.sites if site.site_id == "bank-1")
            assert 3 <= first.rounds_in < 12
        line = charges(sites[0])
        assert first.rounds_in <= line.charges <= 13

    run(scenario())


def test_a_restart_does_not_forget_whose_sum_was_the_last_one(tmp_path):
    async def scenario():
        async with market(tmp_path) as (live, sites):
            job_id = await live.submit(job_toml(rounds=30))
            await live.watch(job_id, until=lambda job: job.round >= 3)
            await sites[0].crash()
            sites[0].start()
            known = sites[0].node._participant._jobs
            for _ in range(1000):  # the others may go on before it is taken up again
                if job_id in known:
                    break
                await asyncio.sleep(0.01)
            state = known[job_id]
            everyone = frozenset(site.signer.fingerprint for site in sites)
            assert state.job.previous_survivors == everyone
            assert sites[0].store.last_sum(job_id) == everyone
            await live.api.StopJob(pb.StopJobRequest(job_id=job_id, why="enough"))

    run(scenario())


def test_a_failing_app_costs_a_round_nothing_and_tells_nothing(tmp_path):
    async def scenario():
        async with market(tmp_path) as (live, _):
            FakeTrainer.fail_next = 1
            job = await live.watch(await live.submit(job_toml(rounds=2, deadline=0.5, **JOB)))
            assert (job.state, job.round) == ("finished", 2)
            assert not any("customer" in text for text in (*job.log, job.detail))
            assert not any("customer" in site.detail for site in job.sites)

    run(scenario())


def test_an_exhausted_budget_is_refused_before_anything_is_trained(tmp_path):
    async def scenario():
        async with market(tmp_path, epsilon=4.0) as (live, sites):
            toml = at_rate(job_toml(rounds=100, deadline=0.3, attempts=1, **JOB), 0.1)
            job = await live.watch(await live.submit(toml))
            assert job.state == "failed"
            assert any(
                Reason.BUDGET_EXHAUSTED in site.detail or "budget" in site.detail
                for site in job.sites
            )
        for site in sites:
            line = charges(site)
            assert line.spent_epsilon <= 4.0
            assert line.charges in (job.round, job.round - 1)

    run(scenario())


@pytest.mark.parametrize(("poor", "ends"), [(1, "finished"), (2, "failed")])
def test_a_site_whose_budget_ends_in_the_middle_leaves_and_the_others_go_on(tmp_path, poor, ends):
    """One may go where four make a cohort; with the second the job ends and names both."""

    async def scenario():
        async with market(tmp_path, epsilon=25.0) as (live, sites):
            for site in sites[:poor]:
                await site.stop()
                text = site.config.policy_file.read_text().replace(
                    "epsilon = 25.0", "epsilon = 4.0"
                )
                site.config.policy_file.write_text(text)
                site.start()
            toml = at_rate(job_toml(rounds=40, deadline=2.0, **JOB), 0.1)
            job = await live.watch(await live.submit(toml))
            assert job.state == ends
            for site in (site for site in job.sites if site.site_id in ("bank-1", "bank-2")[:poor]):
                assert 0 < site.rounds_in < 40
                assert any(f"{site.site_id} takes no part" in line for line in job.log)
            if ends == "failed":
                assert job.detail.count("budget-exhausted") >= 2
        for site in sites[:poor]:
            assert charges(site).spent_epsilon <= 4.0

    run(scenario())


def test_a_job_whose_epsilon_its_own_noise_does_not_reach_is_refused_at_once(tmp_path):
    async def scenario():
        async with market(tmp_path) as (live, _):
            toml = job_toml(rounds=3, **JOB).replace(b"epsilon = 3.0", b"epsilon = 0.001")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await live.submit(toml)
            assert "cost epsilon" in caught.value.details()

    run(scenario())


def test_a_job_without_privacy_is_the_plain_mean_where_every_site_consents(tmp_path):
    """Each round's step is 0.1 times the stand-in's gradient of 0.01, at every site."""

    async def scenario():
        async with market(tmp_path) as (live, sites):
            for site in sites:
                await site.stop()
                with site.config.policy_file.open("r+") as file:
                    text = file.read()
                    file.seek(0)
                    file.write(f"allow_adjacent_cohorts = true\n{text}")
                site.start()
            job_id = await live.submit(job_toml(rounds=3))
            job = await live.watch(job_id)
            assert (job.state, job.mode) == ("finished", "none")
            tensors = load(await live.export(job_id))
            flat = np.concatenate([tensor.ravel() for tensor in tensors.values()])
            np.testing.assert_allclose(flat, -3 * 0.1 * 0.01, atol=1e-6)

    run(scenario())


def test_a_job_with_an_app_that_is_not_on_the_list_is_refused_by_rule(tmp_path):
    async def scenario():
        async with market(tmp_path) as (live, sites):
            for site in sites:
                await site.stop()
                lines = site.config.policy_file.read_text().splitlines()
                kept = [line for line in lines if not line.startswith("allowed_apps")]
                site.config.policy_file.write_text("\n".join(kept))
                site.start()
            job_id = await live.submit(job_toml(rounds=2, deadline=0.5, **JOB))
            job = await live.watch(job_id, until=lambda job: any(s.detail for s in job.sites))
            assert any("allowed_apps" in site.detail for site in job.sites)
            assert FakeTrainer.started == before

    before = FakeTrainer.started
    run(scenario())


def test_sites_wait_for_an_aggregator_that_restarts(tmp_path):
    async def scenario():
        async with market(tmp_path) as (live, sites):
            job_id = await live.submit(job_toml(rounds=2, **JOB))
            await live.watch(job_id)
            address = json.loads((live.folder / "addresses.json").read_text())["sites"]
            await live.stop()
            await asyncio.sleep(0.2)
            await live.start()
            moved = json.loads((live.folder / "addresses.json").read_text())["sites"]
            for site in sites:  # free ports: tell the sites, as a relay would
                await site.stop()
                path = site.config.keys / "aggregator.json"
                path.write_text(path.read_text().replace(address, moved))
                site.start()
            job = await live.watch(await live.submit(job_toml(rounds=2, **JOB)))
            assert (job.state, job.round) == ("finished", 2)

    run(scenario())


# --- enrolment -----------------------------------------------------------------------------------


@asynccontextmanager
async def one_site(folder):
    live = LiveAggregator(folder / "aggregator")
    await live.start()
    try:
        yield live, LiveSite(folder, "bank-1")
    finally:
        await live.stop()


def test_enrolment_keeps_keys_private_and_pins_what_the_token_says(tmp_path):
    async def scenario():
        async with one_site(tmp_path) as (live, site):
            credentials = await site.enrol(live)
            assert credentials.operator_spki == (live.folder / "operator.spki").read_bytes()
            for path in site.config.keys.iterdir():
                assert path.stat().st_mode & 0o077 == 0
            with pytest.raises(UsageError, match="enrolled already"):
                await site.redeem()

    run(scenario())


def test_another_operators_key_than_the_tokens_is_refused_and_nothing_is_kept(tmp_path):
    async def scenario():
        async with one_site(tmp_path) as (live, site):
            with pytest.raises(PeerError, match="operator key") as caught:
                await site.enrol(live, operator_fingerprint="ab" * 32)
            assert caught.value.reason is Reason.UNAUTHENTICATED
            with pytest.raises(UsageError, match="not enrolled"):
                enrol.load_credentials(site.config)

    run(scenario())


def test_a_token_of_another_site_another_secret_or_another_ca_is_refused(tmp_path):
    async def scenario():
        async with one_site(tmp_path) as (live, site):
            with pytest.raises(UsageError, match="token is for site 'bank-9'"):
                await site.enrol(live, site_id="bank-9")
            with pytest.raises(PeerError) as caught:
                await site.enrol(live, secret="x" * 43)
            assert caught.value.reason is Reason.TOKEN_UNKNOWN
            other = LiveAggregator(tmp_path / "other")
            with pytest.raises(PeerError) as caught:
                await site.enrol(live, ca_pem=other.authority.certificate_pem().decode())
            assert caught.value.reason is Reason.TIMEOUT
            await site.enrol(live)

    run(scenario())


def test_a_second_daemon_on_the_same_folder_is_refused(tmp_path):
    folder = tmp_path / "state"
    folder.mkdir()
    lock = FolderLock(folder)
    with pytest.raises(UsageError, match="another edge node"):
        FolderLock(folder)
    lock.release()
    FolderLock(folder).release()


def test_gradients_are_turned_into_descent_steps(tmp_path):
    """Every record's gradient is +0.01 in each coordinate: the model must go down."""

    async def scenario():
        async with market(tmp_path) as (live, _):
            toml = at_rate(job_toml(rounds=3, **JOB), 0.5)
            job_id = await live.submit(toml)
            job = await live.watch(job_id)
            assert job.state == "finished"
            tensors = load(await live.export(job_id))
            flat = np.concatenate([tensor.ravel() for tensor in tensors.values()])
            assert flat.mean() < -0.005

    run(scenario())


def test_a_known_job_id_with_another_app_or_a_weaker_plan_is_refused_during_and_after_the_job(
    tmp_path,
):
    async def scenario():
        async with market(tmp_path) as (live, sites):
            job_id = await live.submit(job_toml(rounds=30, **JOB))
            await live.watch(job_id, until=lambda job: job.round >= 2)
            site = sites[0]
            offer = site.store.jobs.find(job_id)
            plan = EncodingPlan.from_bytes(offer.encoding)
            weaker = replace(plan, noise_variance=plan.noise_variance // 4).to_bytes()
            changes = ({"app_sha256": b"x" * 32}, {"encoding": weaker})
            for over in (False, True):
                if over:
                    await live.watch(job_id)
                for change in changes:
                    verdict = await site.node._judge(replace(offer, **change))
                    assert (verdict.accepted, verdict.reason) == (None, Reason.EQUIVOCATION)
            verdict = await site.node._judge(replace(offer, job_id="new-1", encoding=weaker))
            assert (verdict.accepted, verdict.reason) == (None, Reason.POLICY)
            assert "noise_variance" in verdict.detail

    run(scenario())
