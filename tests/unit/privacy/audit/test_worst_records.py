"""Records built for the worst rounding reach D2 to within a step, and float32 holds them."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.accounting.sensitivity import (
    choose_scale,
    record_rounding_sensitivity,
    sum_rounding_sensitivity,
)
from privacy.audit.worst_records import nudge, over_the_edge, rounded_up, spread
from privacy.errors import UsageError


def norm(values):
    return math.sqrt(math.fsum(values**2))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(length=st.integers(1, 500), data=st.data(), clip=st.floats(0.1, 8.0))
def test_a_record_keeps_the_norm_and_rounds_to_nearly_d2(length, data, clip):
    scale = choose_scale(clip, length)
    used = data.draw(st.integers(max(1, length // 8), length))
    record = rounded_up(clip * scale, length, used)
    assert norm(record) <= clip * scale * (1 + 1e-12)
    assert np.array_equal(record.astype(np.float32).astype(float), record)
    D2 = record_rounding_sensitivity(clip, scale, length).D2
    assert norm(np.rint(record)) <= D2
    assert np.count_nonzero(record) == used


def test_the_bound_of_each_record_is_reached():
    scale, length = choose_scale(1.0, 400), 400
    reached = norm(np.rint(rounded_up(scale, length, length)))
    D2 = record_rounding_sensitivity(1.0, scale, length).D2
    assert D2 - 0.2 < reached <= D2
    assert reached > scale + 9, "without sqrt(d)/2 = 10 the bound would be wrong"


def test_the_bound_of_a_sum_is_reached():
    scale, length = choose_scale(1.0, 400), 400
    base, record = over_the_edge(scale, length, length)
    assert norm(record) <= scale
    reached = norm(np.rint(base + record) - np.rint(base))
    D2 = sum_rounding_sensitivity(1.0, scale, length, 100).D2
    assert D2 - 0.5 < reached <= D2
    assert reached > record_rounding_sensitivity(1.0, scale, length).D2, "one rounding is not half"


@pytest.mark.parametrize(("size", "used"), [(1e3, 1), (1e6, 1), (1e6, 64), (3e3, 3000)])
def test_the_nudge_is_the_least_that_float32_keeps(size, used):
    step = nudge(size, used)
    value = math.floor(size / math.sqrt(used)) + 1.5
    assert float(np.float32(value + step)) == value + step
    assert step == 2.0**-10 or float(np.float32(value + step / 16)) != value + step / 16


def test_what_cannot_be_built_is_refused():
    with pytest.raises(UsageError, match="too fine"):
        nudge(1e9, 1)
    with pytest.raises(UsageError, match="too small"):
        spread(1.0, 100, 100, 0.0)
    for used in (0, 5):
        with pytest.raises(UsageError, match="cannot be used"):
            spread(10.0, 4, used, 0.0)
