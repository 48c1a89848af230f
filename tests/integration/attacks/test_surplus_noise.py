"""Noise that may be taken off a large sum, for an aggregator that would use it elsewhere."""

from dataclasses import replace

import numpy as np
import pytest

from edge_node.rounds import task_rounds
from privacy.noise import skellam_table
from privacy.secagg.messages import UnmaskShares
from tests.support.attacker_knowledge import Knowledge
from tests.support.hostile_aggregator import ROUNDS, hostile
from tests.support.live_aggregator import RECORD, job_toml
from tests.support.live_site import FakeTrainer
from tests.support.secagg_harness import seed, with_config
from tests.support.wire_runs import run


class Silent(FakeTrainer):
    """Every gradient is zero, so that the update is its noise."""

    async def record_gradients(self, model_D, rows_NC, on_chunk):
        gradients = np.zeros((len(rows_NC), self.job.spec.length), np.float32)
        on_chunk(gradients, np.zeros((len(rows_NC), 0), np.float32), len(rows_NC))


def let_peers_draw_levels(attempt, levels):
    for index in attempt.others:
        site = attempt.peers[index]
        drawn = tuple(seed("surplus", index, level) for level in levels)
        site.secrets = replace(site.secrets, surplus_seeds=drawn)
        with_config(site, plan=replace(site.config.plan, surplus_levels=levels))


@pytest.mark.parametrize("lost", [0, 1])
def test_surplus_seeds_leave_for_one_survivor_set_and_leave_noise_enough(
    tmp_path, monkeypatch, lost
):
    """With all five in the sum a seed leaves, with four none; a second story changes neither."""
    monkeypatch.setattr(task_rounds, "Trainer", Silent)
    toml = job_toml(privacy=f"{RECORD}\nremove_surplus_noise = true", target=5, rounds=ROUNDS)

    async def scenario():
        async with hostile(tmp_path, toml=toml) as evil:
            attempt = await evil.attempt()
            let_peers_draw_levels(attempt, evil.encoding.surplus_levels)
            await attempt.deal()
            await attempt.upload()
            friend, target = attempt.others[:2]
            without = tuple(index for index in attempt.all if index != target)
            first, second = (without, attempt.all) if lost else (attempt.all, without)
            await attempt.vote(first)
            await attempt.unmask()
            seeds = attempt.answers[attempt.victim].surplus_seeds
            assert len(seeds) == 1 - lost
            other = attempt.survivor_set(second)
            evil.send(other)
            evil.send(attempt.quorum([attempt.forge_vote(friend, other)]))
            evil.send(attempt.quorum())
            await evil.quiet()
            answers = [said for said in evil.said if isinstance(said, UnmaskShares)]
            assert {answer.surplus_seeds for answer in answers} == {seeds}
            assert Knowledge(attempt, [friend]).opened() == {frozenset(first) - {friend}}
            # What the honest members of the sum have kept is what the ledger was charged with.
            share = evil.encoding.noise_share
            left_D = attempt.x[attempt.victim].copy()
            for variance, drawn in zip(share.increments, seeds, strict=False):
                left_D -= skellam_table(variance).sample(drawn, len(left_D))
            c, n_min = evil.manifest.colluders, evil.manifest.min_survivors
            needed = share.variance * (n_min - c) / (len(first) - c)
            assert 0.7 * needed < left_D.var() < 1.3 * needed
            assert evil.charges() == 1

    run(scenario())
