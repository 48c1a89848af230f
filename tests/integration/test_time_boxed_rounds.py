"""A time-boxed job over real sites, one of them slow: nobody waits, and all weigh the same."""

import asyncio

import numpy as np
import pytest
from safetensors.numpy import load

from tests.integration.test_edge_node import run
from tests.support.live_aggregator import SPEC, job_toml
from tests.support.live_site import FakeTrainer, market

ROUNDS, CAP, BOX_S = 2, 12, 0.3
LOCAL = f"[local]\nsteps = {CAP}\nbatch_size = 8\nlearning_rate = 0.1\n"
SLOW = "bank-1"
STEP_S = {SLOW: 1.5, "bank-2": 0.05}  # the first one: 18 s for all its steps, past the deadline


class PacedTrainer(FakeTrainer):
    """Each step of a site takes its own time and moves the model by the site's own vector."""

    taken: dict[str, list[int]]

    def __init__(self, job, limits, confinement):
        super().__init__(job, limits, confinement)
        (folder,) = confinement.hidden
        self.site = folder.parent.name if folder.name == "state" else folder.name

    async def local_steps(self, model_D, batches, learning_rate, box=None):
        box.begin()
        taken = 0
        for batch in batches:
            if taken and box.is_over:
                break
            assert len(batch) == 8
            await asyncio.sleep(STEP_S.get(self.site, 0.001))
            model_D = model_D + move_of(self.site)
            taken += 1
        type(self).taken.setdefault(self.site, []).append(taken)
        return model_D, np.zeros((taken, 0), np.float32)


def move_of(site):
    """Give what a step of this site moves the model by, shape (D,)."""
    source = np.random.default_rng(int(site.removeprefix("bank-")))
    return (0.01 * source.normal(size=SPEC.length)).astype(np.float32)


@pytest.mark.slow
def test_a_slow_site_holds_up_nobody_and_weighs_as_much(tmp_path, monkeypatch):
    monkeypatch.setattr("edge_node.rounds.task_rounds.Trainer", PacedTrainer)
    monkeypatch.setattr(PacedTrainer, "taken", {}, raising=False)

    async def scenario():
        async with market(tmp_path) as (live, _):
            toml = job_toml(rounds=ROUNDS, deadline=15.0).decode()
            toml = toml[: toml.index("[local]")] + f"time_box_s = {BOX_S}\n" + LOCAL
            job = await live.watch(await live.submit(toml.encode()))
            return job, load(await live.export(job.job_id))

    job, model = run(scenario())
    assert (job.state, job.round, job.detail) == ("finished", ROUNDS, "")
    # Every site is in every sum: the slow one too, with the one step that it finishes.
    assert [site.rounds_in for site in job.sites] == [ROUNDS] * 5
    taken = PacedTrainer.taken
    assert taken[SLOW] == [1] * ROUNDS
    assert all(1 <= count < CAP for count in taken["bank-2"])
    # Each site's delta counts as CAP of its steps, whatever it took.
    mean_D = np.mean([move_of(site.site_id) for site in job.sites], axis=0)
    np.testing.assert_allclose(SPEC.flatten(model), ROUNDS * CAP * mean_D, atol=1e-3)
    # By the sites' own clocks the slow one trained about a step a round, not all of them.
    (slow,) = (site for site in job.sites if site.site_id == SLOW)
    assert slow.train_s < CAP * STEP_S[SLOW]
