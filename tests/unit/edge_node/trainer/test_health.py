"""When a trainer is replaced and when it is given up, on paper."""

import math

import pytest

from edge_node.trainer.health import HealthRules, MemoryWatch, Restarts

RULES = HealthRules(max_restarts=3, backoff_s=1.0, backoff_max_s=5.0, leak_rounds=3, leak_share=0.1)


def test_the_wait_doubles_up_to_its_bound_and_then_the_app_is_given_up():
    restarts = Restarts(RULES)
    assert restarts.wait_s(0.0) == 0.0
    waits = []
    for number in range(3):
        restarts.failed(100.0, f"reason {number}")
        waits.append(restarts.wait_s(100.0))
        assert not restarts.given_up
    assert waits == [1.0, 2.0, 4.0]
    assert restarts.wait_s(101.5) == 2.5
    assert restarts.wait_s(1000.0) == 0.0
    restarts.failed(100.0, "the last one")
    assert restarts.wait_s(100.0) == 5.0
    assert restarts.given_up
    assert restarts.failures == 4
    assert restarts.last_reason == "the last one"


def test_an_answer_forgets_the_failures():
    restarts = Restarts(RULES)
    for _ in range(3):
        restarts.failed(0.0, "")
    restarts.answered()
    assert restarts.wait_s(0.0) == 0.0
    for _ in range(3):
        restarts.failed(0.0, "")
    assert not restarts.given_up


def test_any_number_of_failures_has_a_finite_wait():
    restarts = Restarts(HealthRules(max_restarts=1000))
    for _ in range(1000):
        restarts.failed(0.0, "")
        assert math.isfinite(restarts.wait_s(0.0))


def test_no_restarts_means_none():
    restarts = Restarts(HealthRules(max_restarts=0))
    assert not restarts.given_up
    restarts.failed(0.0, "")
    assert restarts.given_up


def faults(readings, limit_mib=1000.0):
    watch = MemoryWatch(RULES, limit_mib)
    return [watch.fault(reading) for reading in readings]


@pytest.mark.parametrize(
    "readings",
    [
        [200.0] * 10,
        [200.0, 250.0, 290.0, 290.0, 350.0, 400.0, 400.0],  # grows, but not always
        [200.0, 233.0, 266.0, 299.0],  # always, but by less than a tenth of the limit
        [200.0, 260.0, 310.0],  # not for long enough
        [200.0, 900.0, 200.0, 900.0],
    ],
)
def test_memory_that_settles_is_no_leak(readings):
    assert not any(faults(readings))


def test_steady_growth_is_a_leak_once_it_is_seen_for_long_enough():
    found = faults([200.0, 200.0, 240.0, 280.0, 320.0])
    assert found[:4] == [""] * 4
    assert found[4] == "it leaks: 120 MiB more over 3 requests in a row, more than 100 MiB"


def test_more_than_the_limit_is_a_fault_at_once():
    assert faults([1001.0]) == ["it holds 1001 MiB, more than its limit of 1000 MiB"]
