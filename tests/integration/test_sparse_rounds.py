"""A sparse cohort over the real wire: real edge nodes, stores and gRPC, a graph rule of small size.

Sites die right after a step is durable and before anything of it leaves, which is where a crash
hurts most: those that come back must go on from their slots, step 0's and the sparse step 1's
included; those that stay away must cost their own update at most.
"""

import asyncio

import numpy as np
import pytest
from safetensors.numpy import load

from edge_node.commands import CommitStep
from privacy.secagg.commands import Step
from privacy.secagg.messages import GraphReveal
from privacy.secagg.server import ServerAttempt
from tests.support.live_aggregator import job_toml
from tests.support.live_site import FakeTrainer, market
from tests.support.sparse_cohorts import SMALL

SITES = 14
ROUNDS = 2
LIMIT_S = 120
MOVED = ROUNDS * -0.1 * 0.01
"""What the stand-in trainer's gradient makes of a parameter where every sum is right."""


@pytest.fixture(autouse=True)
def fake_trainer(monkeypatch):
    monkeypatch.setattr("edge_node.rounds.task_rounds.Trainer", FakeTrainer)
    monkeypatch.setattr(FakeTrainer, "fail_next", 0)


def allow_neighbouring_sums(site, _number):
    policy = site.config.policy_file
    policy.write_text("allow_adjacent_cohorts = true\n" + policy.read_text())


def sparse_market(folder):
    return market(folder, SITES, prepare=allow_neighbouring_sums, graph_rule=SMALL)


async def finished(live):
    toml = job_toml(rounds=ROUNDS, target=SITES, deadline=LIMIT_S)
    job = await live.watch(await live.submit(toml), timeout_s=LIMIT_S)
    assert (job.state, job.round) == ("finished", ROUNDS), job
    tensors = load(await live.export(job.job_id))
    for values in tensors.values():
        np.testing.assert_allclose(values, MOVED, rtol=1e-3)
    return job, {site.site_id: site.rounds_in for site in job.sites}


def intercept(site, wanted, then):
    """Hand a durable step of ``wanted`` (step, round) to ``then`` instead of to the participant."""
    commit = site.node._do[CommitStep]

    def commit_only(command):
        answer = commit(command)
        key = (command.commit.step, command.key.round)
        return then(key, answer) if key in wanted else answer

    site.node._do[CommitStep] = commit_only


def strike(site, step, number):
    """Kill a site once a step of a round is durable; the event says that it is dead."""
    dead = asyncio.Event()

    def die(_key, _answer):
        site.task.cancel()
        dead.set()

    intercept(site, {(step, number)}, die)
    return dead


def hold(site, gates):
    """Have a site go on after a step of a round when its gate is opened, not before."""
    waiting = set()

    def wait(key, answer):
        waiting.add(asyncio.create_task(go_on(gates[key], answer)))

    async def go_on(gate, answer):
        await gate.wait()
        site.node.dispatch(answer)

    intercept(site, gates, wait)


async def bring_back(live, site, dead, connected):
    """Start a killed site again; ``connected`` is set once its new session is open."""
    await dead.wait()
    sessions, me = live.coordinator.sessions, site.signer.fingerprint
    before = sessions.get(me)
    await site.crash()
    site.start()
    for _ in range(100 * LIMIT_S):
        if sessions.get(me) not in (None, before):
            break
        await asyncio.sleep(0.01)
    connected.set()


async def leave(site, dead):
    await dead.wait()
    await site.crash()


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, LIMIT_S))


KILLED = {
    (Step.REVEAL, 1): 0,
    (Step.SHARE_KEYS, 1): 1,
    (Step.MASKED_UPDATE, 2): 2,
    (Step.CONSISTENCY, 2): 3,
    (Step.UNMASK, 2): 4,
}
"""Which site dies at which step of which round; the last site holds that step open meanwhile."""


def test_sites_killed_at_any_step_of_a_sparse_round_go_on_from_their_slots(tmp_path, monkeypatch):
    """Before the charge the update itself is lost, so the site only deals: the others go on."""
    revealed, handle = asyncio.Event(), ServerAttempt.handle

    async def scenario():
        async with sparse_market(tmp_path) as (live, sites):
            first = sites[0].signer.fingerprint

            def take(self, event, now_s):
                given = handle(self, event, now_s)
                if isinstance(event, GraphReveal) and event.sender == first:
                    revealed.set()
                return given

            monkeypatch.setattr(ServerAttempt, "handle", take)
            gates = {key: asyncio.Event() for key in KILLED}
            hold(sites[-1], gates)
            back = []
            for key, number in KILLED.items():
                # A site that is lost before its r is here burns the attempt: this one dies after.
                dead = revealed if number == 0 else strike(sites[number], *key)
                back.append(bring_back(live, sites[number], dead, gates[key]))
            living = asyncio.gather(*back)
            job, rounds_in = await finished(live)
            await living
        stayed = {f"bank-{number + 1}": ROUNDS for number in range(2, SITES)}
        assert rounds_in == {"bank-1": 1, "bank-2": 1, **stayed}, job.log
        assert job.attempts_aborted == 0

    run(scenario())


def test_sites_that_stay_away_cost_a_sparse_round_their_own_update_at_most(tmp_path):
    async def scenario():
        async with sparse_market(tmp_path) as (live, sites):
            leaving = asyncio.gather(
                # Dealt, and masked by others: its m is reconstructed.
                leave(sites[0], strike(sites[0], Step.MASKED_UPDATE, 1)),
                # In the sum, and answers nothing any more: its b is reconstructed.
                leave(sites[1], strike(sites[1], Step.CONSISTENCY, 1)),
                # Its r is missing: there is no graph, and the attempt is burnt.
                leave(sites[2], strike(sites[2], Step.REVEAL, 2)),
            )
            job, rounds_in = await finished(live)
            await leaving
        stayed = {f"bank-{number + 1}": ROUNDS for number in range(3, SITES)}
        assert rounds_in == {"bank-1": 0, "bank-2": 1, "bank-3": 1, **stayed}
        assert any("step 0" in line for line in job.log), job.log
        assert job.attempts_aborted == 1

    run(scenario())
