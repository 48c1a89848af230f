"""The default case on paper over the wire: n = 5, c = 1, N_min = t = T = 4, m_h = 3, A = 3.

A real aggregator and five sites, one or two of which are lost at a step: what is opened, who pays.
The cases of a hostile aggregator (withheld step 3, U2 equivocation, abort then retry) and of a
crash after the charge are in the other files here; `docs/attacks.md` names them.
"""

import pytest

from tests.support.live_aggregator import federation, job_toml
from tests.support.malicious_site import EVERYONE, deltas, everyone_is_there, finishes
from tests.support.wire_runs import run


def charges(live):
    return [site.charged for site in live.sites]


def test_normal_round(tmp_path):
    async def scenario():
        async with federation(tmp_path, delta_of=deltas) as live:
            job = await finishes(live, EVERYONE)
            assert (charges(live), job.attempts_aborted) == ([1] * 5, 0)

    run(scenario())


@pytest.mark.parametrize("message", ["TrainRequest", "Roster"])
def test_one_loss_before_step_1(tmp_path, message):
    async def scenario():
        async with federation(tmp_path, delta_of=deltas) as live:
            live.sites[2].vanish_on = message
            job = await finishes(live, (0, 1, 3, 4))
            assert (charges(live), job.attempts_aborted) == ([1, 1, 0, 1, 1], 0)

    run(scenario())


def test_one_loss_between_1_and_2(tmp_path):
    """Its m is reconstructed from four shares; it was never charged, for it sent no vector."""

    async def scenario():
        async with federation(tmp_path, delta_of=deltas) as live:
            live.sites[2].vanish_on = "ShareDelivery"
            job = await finishes(live, (0, 1, 3, 4))
            assert (charges(live), job.attempts_aborted) == ([1, 1, 0, 1, 1], 0)

    run(scenario())


@pytest.mark.parametrize(
    "message", ["SurvivorSet", "SurvivorQuorum"], ids=["between 2 and 3", "between 3 and 4"]
)
def test_one_loss_after_its_upload(tmp_path, message):
    """Its vector is in the sum, and four of five votes and answers are enough to open it."""

    async def scenario():
        async with federation(tmp_path, delta_of=deltas) as live:
            live.sites[2].vanish_on = message
            job = await finishes(live, EVERYONE)
            assert (charges(live), job.attempts_aborted) == ([1] * 5, 0)

    run(scenario())


LOSSES = {"Roster": [0, 0, 0, 0, 0], "ShareDelivery": [0, 0, 1, 1, 1], "SurvivorSet": [1] * 5}


@pytest.mark.parametrize("message", LOSSES)
def test_two_losses_open_nothing_and_the_next_attempt_succeeds(tmp_path, message):
    """Three are below T at any step: nobody releases a share; seen before step 2 nobody pays."""

    async def scenario():
        async with federation(tmp_path, delta_of=deltas) as live:
            for site in live.sites[:2]:
                site.vanish_on = message
            await everyone_is_there(live)
            job_id = await live.submit(job_toml(rounds=1, deadline=1.0))
            job = await live.watch(job_id, lambda job: job.attempts_aborted == 1)
            assert job.round == 0
            assert charges(live) == LOSSES[message]
            for site in live.sites[:2]:
                await site.dead.wait()
                live.connect(site)
            job = await live.watch(job_id)
            assert (job.state, job.round) == ("finished", 1)

    run(scenario())
