"""Rounds in groups over the real wire: a poisoned site, groups that fail, kills, stray frames."""

import asyncio
import dataclasses
import json
import logging
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
from safetensors.numpy import load
from sqlalchemy import select

from aggregator import job_run
from aggregator.cohort import draw_groups
from aggregator.jobs import ATTEMPT_ABORTED, ATTEMPT_OPENED, ATTEMPT_UNUSED, ROUND_COMMITTED
from aggregator.tables import JOURNAL
from privacy.secagg.messages import DealtShares, Roster
from tests.support.live_aggregator import RECORD, SPEC, federation, job_toml
from tests.support.wire_site import WireSite

TRUTH = np.random.default_rng(3).normal(size=SPEC.length) * 0.02
POISON = 100.0  # times the honest update, with the other sign; clipped to the job's norm of 10
SEED = b"s" * 32


def robust(groups=3, combine="median", **more):
    text = f'\n[robust]\ngroups = {groups}\ncombine = "{combine}"\n'
    return job_toml(**{"target": 5 * groups, "rounds": 2, **more}) + text.encode()


def deltas(poisoned=()):
    """Give honest sites nearly the same update, and the poisoned ones its opposite, scaled."""

    def of(index):
        def delta_of(version, length):
            spread = np.random.default_rng(100 * index + version).normal(size=length) * 0.002
            honest = TRUTH + spread
            return -POISON * honest if index in poisoned else honest

        return delta_of

    return of


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 90))


async def model_of(live, job_id):
    tensors = load(await live.export(job_id))
    return np.concatenate([tensors[t.name].ravel() for t in SPEC.tensors])


def journal(live, job_id, *kinds):
    query = select(JOURNAL.c.round, JOURNAL.c.attempt, JOURNAL.c.kind, JOURNAL.c.payload).where(
        JOURNAL.c.job_id == job_id, JOURNAL.c.kind.in_(kinds)
    )
    with live.store.transaction() as connection:
        return [
            (row.round, row.attempt, row.kind, json.loads(bytes(row.payload)))
            for row in connection.execute(query.order_by(JOURNAL.c.seq))
        ]


def draw(live, count, tries=1):
    """Say which sites the aggregator will draw into which group, as its seed is fixed."""
    by_me = {site.me: site for site in live.sites}
    return [[by_me[me] for me in group] for group in draw_groups(by_me, count, SEED, tries)]


@pytest.fixture
def fixed_seed(monkeypatch):
    fixed = SimpleNamespace(token_bytes=lambda size: SEED[:size])
    monkeypatch.setattr(job_run, "secrets", fixed)


def test_one_poisoned_site_ruins_the_mean_and_not_the_median(tmp_path):
    async def scenario():
        async with federation(tmp_path, 15, deltas(poisoned={4})) as live:
            mean_id = await live.submit(job_toml(rounds=2, target=15))
            assert (await live.watch(mean_id)).state == "finished"
            median_id = await live.submit(robust())
            job = await live.watch(median_id)
            assert (job.state, job.groups, job.attempts_aborted) == ("finished", 3, 0)
            assert all(site.rounds_in == 2 for site in job.sites)
            assert sorted(site.group for site in job.sites) == [1] * 5 + [2] * 5 + [3] * 5
            harmed, unharmed = await model_of(live, mean_id), await model_of(live, median_id)
            wanted = 2 * TRUTH
            near = np.linalg.norm(unharmed - wanted) / np.linalg.norm(wanted)
            # Clipped, the poison is still more than all honest sites: the mean goes backwards.
            assert harmed @ wanted < 0
            assert near < 0.1
            records = live.coordinator.history(median_id).rounds
            assert [(r.round, r.groups, r.survivors) for r in records] == [(1, 3, 15), (2, 3, 15)]
            opened = journal(live, median_id, ATTEMPT_OPENED)
            assert [(r, a, facts["group"]) for r, a, _, facts in opened] == [
                (r, a, a) for r in (1, 2) for a in (1, 2, 3)
            ]
            first, second = opened[:3], opened[3:]
            # Drawn anew: the chance that two draws of 15 into 3 times 5 agree is below 1e-5.
            assert [f["cohort"].keys() for *_, f in first] != [
                f["cohort"].keys() for *_, f in second
            ]

    run(scenario())


def test_two_poisoned_sites_in_two_of_five_groups_are_trimmed(tmp_path, fixed_seed):
    async def scenario():
        poisoned = set()
        async with federation(tmp_path, 25, deltas(poisoned)) as live:
            groups = draw(live, 5)
            poisoned |= {live.sites.index(groups[0][0]), live.sites.index(groups[3][0])}
            text = robust(5, "trimmed-mean", rounds=1) + b"trim = 2\n"
            job_id = await live.submit(text)
            assert (await live.watch(job_id)).state == "finished"
            error = np.linalg.norm(await model_of(live, job_id) - TRUTH) / np.linalg.norm(TRUTH)
            assert error < 0.1

    run(scenario())


def test_a_private_robust_job_scales_each_group_by_its_share(tmp_path):
    """Mode record-distributed: a group's sum is divided by its part of the expected batch."""
    privacy = RECORD.replace("noise_multiplier = 1.0", "noise_multiplier = 0.3")
    privacy = privacy.replace("epsilon = 3.0", "epsilon = 100.0")
    one = TRUTH / np.linalg.norm(TRUTH) * 0.4  # a site's one record of that step

    async def scenario():
        async with federation(tmp_path, 15, lambda _: lambda _v, _n: one) as live:
            job = await live.watch(await live.submit(robust(privacy=privacy, rounds=1)))
            assert (job.state, job.detail) == ("finished", "")
            found = (await model_of(live, job.job_id)) @ one / (one @ one)
            # 15 records over the 100 that are expected: 5 over a group's third of them. The noise
            # of a group has a deviation of 0.3 * 0.5 * sqrt(5 / 3) / 33 a coordinate.
            assert abs(found - 0.15) < 6 * (0.15 * (5 / 3) ** 0.5 / 33) / 0.4

    run(scenario())


def test_a_group_that_fails_leaves_the_round_to_the_others(tmp_path, fixed_seed):
    async def scenario():
        async with federation(tmp_path, 20, deltas()) as live:
            lost = draw(live, 4)[1][:2]
            for site in lost:
                site.vanish_on = "ShareDelivery"
            job_id = await live.submit(robust(4, rounds=1))
            job = await live.watch(job_id)
            assert (job.state, job.attempts_aborted) == ("finished", 1)
            ((_, attempt, _, facts),) = journal(live, job_id, ROUND_COMMITTED)
            assert attempt == 4
            assert sorted(facts["groups"]) == ["1", "3", "4"]
            assert len(facts["survivors"]) == 15
            out = {site.site_id for site in job.sites if site.dropped == 1}
            assert out == {site.site_id for site in draw(live, 4)[1]}
            error = np.linalg.norm(await model_of(live, job_id) - TRUTH) / np.linalg.norm(TRUTH)
            assert error < 0.1

    run(scenario())


def test_too_few_groups_give_the_round_up_and_it_is_tried_again_with_new_numbers(
    tmp_path, fixed_seed
):
    async def scenario():
        async with federation(tmp_path, 15, deltas()) as live:
            lost = draw(live, 3)[0][:2]
            for site in lost:
                site.vanish_on = "SurvivorQuorum"  # the upload is in: late enough for the others
            for site in draw(live, 3)[0][2:]:
                site.vanish_on = "SurvivorQuorum"
                lost.append(site)
            job_id = await live.submit(robust(rounds=1))
            await asyncio.gather(*(site.dead.wait() for site in lost))
            for site in lost:
                live.connect(site)
            job = await live.watch(job_id)
            assert (job.state, job.round) == ("finished", 1)
            ends = journal(live, job_id, ATTEMPT_ABORTED, ATTEMPT_UNUSED)
            opened = [a for _, a, _, _ in journal(live, job_id, ATTEMPT_OPENED)]
            assert opened == sorted(set(opened))
            assert opened[:3] == [1, 2, 3]
            assert opened[-3:] == list(range(len(opened) - 2, len(opened) + 1))
            assert all(kind in (ATTEMPT_ABORTED, ATTEMPT_UNUSED) for _, _, kind, _ in ends)
            assert {a for _, a, _, _ in ends} == set(opened[:-3])
            ((_, _, _, facts),) = journal(live, job_id, ROUND_COMMITTED)
            assert sorted(facts["groups"]) == [str(a) for a in opened[-3:]]

    run(scenario())


def test_a_crash_with_groups_in_flight_is_gone_over_under_fresh_numbers(tmp_path):
    async def scenario():
        async with federation(tmp_path, 15, deltas()) as live:
            for site in live.sites[:4]:
                site.vanish_on = "SurvivorSet"
            job_id = await live.submit(robust())
            # Whichever is the first: two of them in one group end the try for the other groups.
            died = [asyncio.ensure_future(site.dead.wait()) for site in live.sites[:4]]
            await asyncio.wait(died, return_when=asyncio.FIRST_COMPLETED)
            for each in died:
                each.cancel()
            await live.restart()
            for site in live.sites:
                site.vanish_on = None
                live.connect(site)
            job = await live.watch(job_id)
            assert (job.state, job.round) == ("finished", 2)
            opened = [(r, a) for r, a, _, _ in journal(live, job_id, ATTEMPT_OPENED)]
            assert opened == sorted(set(opened))
            committed = journal(live, job_id, ROUND_COMMITTED)
            assert [sorted(f["groups"], key=int) for *_, f in committed] == [
                [str(a) for r, a in opened if r == n][-3:] for n in (1, 2)
            ]
            error = np.linalg.norm(await model_of(live, job_id) - 2 * TRUTH)
            assert error / np.linalg.norm(2 * TRUTH) < 0.1

    run(scenario())


class StraySite(WireSite):
    """Says in another group's attempt what it says in its own, and uploads there."""

    others: list = []  # noqa: RUF012 - set by the test: the sites of other groups

    async def on_message(self, message):
        if isinstance(message, Roster):
            self.heard = message.context
        await super().on_message(message)

    async def send(self, message):
        await super().send(message)
        if isinstance(message, DealtShares):
            for number in (1, 2, 3):
                other = dataclasses.replace(self.heard, attempt=number)
                if number != self.heard.attempt:
                    await super().send(dataclasses.replace(message, ctx=other.digest()))

    async def upload(self, attempt, terms):
        for number in (1, 2, 3):
            if number != self.heard.attempt:
                other = dataclasses.replace(self.heard, attempt=number).digest()
                await self.try_upload(other)
        await super().upload(attempt, terms)

    async def try_upload(self, ctx):
        packed = bytes(4 * SPEC.length)
        try:
            await self.upload_bytes(ctx, packed)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the test looks at
            self.upload_refusals.append(dict(error.trailing_metadata())["tidegate-reason"])


def test_a_frame_or_an_upload_of_one_group_is_refused_in_another(tmp_path, caplog):
    caplog.set_level(logging.INFO, "tidegate.aggregator")

    async def scenario():
        def make_site(index, name):
            return (StraySite if index == 7 else WireSite)(name, deltas()(index))

        async with federation(tmp_path, 15, make_site=make_site) as live:
            job_id = await live.submit(robust(rounds=1))
            job = await live.watch(job_id)
            assert (job.state, job.attempts_aborted) == ("finished", 0)
            stray = live.sites[7]
            dropped = "site bank-8: DealtShares dropped: unauthenticated"
            assert sum(dropped in record.getMessage() for record in caplog.records) == 2
            assert len(stray.upload_refusals) == 2
            assert set(stray.upload_refusals) <= {"unauthenticated", "wrong-context", "policy"}
            assert all(site.rounds_in == 1 for site in job.sites)
            error = np.linalg.norm(await model_of(live, job_id) - TRUTH) / np.linalg.norm(TRUTH)
            assert error < 0.1

    run(scenario())


class WrappingSite(WireSite):
    """Adds half the ring to a part of its integers, as no honest site does."""

    def make_update(self, request, data):
        plan, update = super().make_update(request, data)
        shifted = update.vector_D.copy()
        shifted[:100] += 1 << (plan.bits - 1)
        return plan, type(update)(shifted)


def wrapping(index, name):
    return (WrappingSite if index == 3 else WireSite)(name, deltas()(index))


def test_a_sum_that_has_wrapped_is_not_applied_and_the_job_stops_with_what_to_do(tmp_path):
    async def scenario():
        async with federation(tmp_path, 5, make_site=wrapping) as live:
            job_id = await live.submit(job_toml(rounds=2))
            job = await live.watch(job_id)
            assert job.state == "failed"
            for words in ("ring-wrap: the sum has wrapped", "100 coordinates", "range"):
                assert words in job.detail
            assert job.round == 0  # its sum was opened, and no round came of it
            assert not (await model_of(live, job_id)).any()
            assert journal(live, job_id, ROUND_COMMITTED) == []

    run(scenario())


def test_a_group_whose_sum_has_wrapped_is_left_out_of_the_round(tmp_path):
    async def scenario():
        async with federation(tmp_path, 20, make_site=wrapping) as live:
            job_id = await live.submit(robust(4, rounds=1))
            job = await live.watch(job_id)
            assert (job.state, job.attempts_aborted, job.wrap_rate) == ("finished", 0, 0)
            ((_, _, _, facts),) = journal(live, job_id, ROUND_COMMITTED)
            assert len(facts["groups"]) == 3
            assert "bank-4" not in facts["survivors"]
            assert any("its group is left out" in line for line in job.log)
            error = np.linalg.norm(await model_of(live, job_id) - TRUTH) / np.linalg.norm(TRUTH)
            assert error < 0.1

    run(scenario())


def test_a_robust_job_that_the_members_cannot_carry_is_refused_at_submission(tmp_path):
    async def scenario():
        async with federation(tmp_path, 14, deltas()) as live:
            with pytest.raises(grpc.aio.AioRpcError, match="more than the 14 members") as refused:
                await live.submit(robust())
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION

    run(scenario())
