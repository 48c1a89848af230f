"""The attacker of these tests is real: without the defence it opens what it should not.

A test that shows "noise" proves nothing if the attacker could not open anything anyway.
"""

import numpy as np

from tests.support.attacker_knowledge import Knowledge, is_noise, looks_uniform
from tests.support.hostile_aggregator import hostile
from tests.support.wire_runs import run


def test_by_the_rules_only_the_sum_of_all_honest_sites_is_opened(tmp_path):
    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            await attempt.deal()
            await attempt.upload()
            await attempt.vote()
            await attempt.unmask()
            friend = attempt.others[0]
            honest = frozenset(attempt.all) - {friend}
            knowledge = Knowledge(attempt, [friend])
            assert knowledge.opened() == {honest}
            victim = attempt.victim
            assert is_noise(knowledge.rest(victim), attempt.x[victim], attempt.bits)
            assert evil.charges() == 1
            await evil.goes_on(2)

    run(scenario())


def test_with_more_friends_than_c_the_attacker_opens_the_victim_alone(tmp_path):
    """The control: all other sites collude, which no protocol can bear."""

    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            await attempt.deal()
            await attempt.upload()
            await attempt.vote()
            await attempt.unmask()
            knowledge = Knowledge(attempt, attempt.others)
            assert knowledge.opened() == {frozenset({attempt.victim})}
            x_D = attempt.x[attempt.victim]
            opened_D = knowledge.rest(attempt.victim)
            np.testing.assert_array_equal(opened_D, np.mod(x_D, 1 << attempt.bits))
            assert not is_noise(opened_D, x_D, attempt.bits)

    run(scenario())


def test_the_test_for_noise_sees_a_small_and_a_biased_remainder():
    rng = np.random.default_rng(1)
    x_D = rng.integers(-1000, 1000, 1026)
    uniform_D = rng.integers(0, 1 << 20, 1026)
    assert is_noise(uniform_D, x_D, 20)
    assert not is_noise(np.mod(x_D + rng.integers(-50, 50, 1026), 1 << 20), x_D, 20)
    assert not looks_uniform(uniform_D & ~1, 20)
