"""Events: strict, canonical, and nothing unknown is ever priced."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.accounting.accountant import Accountant
from privacy.accounting.events import (
    DEFAULT_SAMPLER_TV,
    GaussianRecordEvent,
    NoDpEvent,
    SkellamRecordEvent,
    event_from_dict,
    event_to_dict,
)
from privacy.errors import UsageError

SKELLAM = SkellamRecordEvent(q=0.01, V=4e6, D1=3e4, D2=2e3, d=1000, n_sites=5, steps=3)


@given(
    q=st.floats(1e-9, 1.0),
    V=st.floats(1e-3, 1e30),
    D2=st.floats(1.0, 1e9),
    d=st.integers(1, 2**40),
    steps=st.integers(1, 2**40),
    unit=st.sampled_from(["record", "user"]),
)
def test_json_round_trip_is_the_identity(q, V, D2, d, steps, unit):
    event = SkellamRecordEvent(q, V, D2 * 1.5, D2, d, 5, steps, unit=unit)
    again = event_from_dict(json.loads(json.dumps(event_to_dict(event))))
    assert again == event
    assert hash(again) == hash(event)


@pytest.mark.parametrize("event", [SKELLAM, GaussianRecordEvent(0.1, 2.0, 5), NoDpEvent(2)])
def test_every_kind_round_trips(event):
    assert event_from_dict(event_to_dict(event)) == event


def test_whole_numbers_become_floats_so_that_equal_events_have_equal_bytes():
    whole = SkellamRecordEvent(1, 4, 3, 2, 10, 5)
    assert json.dumps(event_to_dict(whole)) == json.dumps(
        event_to_dict(SkellamRecordEvent(1.0, 4.0, 3.0, 2.0, 10, 5))
    )


BAD_VALUES = {
    "q": [0, 0.0, -0.1, 1.0000001, math.nan, math.inf, True, "0.1", None, 10**400],
    "V": [0.0, -1.0, math.nan, math.inf, 1e300, True],
    "D1": [0.0, math.nan, math.inf, 1.0],
    "D2": [0.0, 0.99, math.nan, -3.0, 1e300],
    "d": [0, -1, 1.0, True, 2**41],
    "n_sites": [0, 1.5, True, 2**21],
    "steps": [0, -1, 1.0, True, 2**41, "1"],
    "sampler_tv": [-1e-30, 1.5, math.nan, True],
    "unit": ["site", "silo", "", None, 1],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD_VALUES.items() for value in values]
)
def test_a_bad_value_is_refused_by_name(name, value):
    with pytest.raises(UsageError, match=name):
        replace(SKELLAM, **{name: value})
    with pytest.raises(UsageError, match=name):
        event_from_dict({**event_to_dict(SKELLAM), name: value})


@pytest.mark.parametrize(
    "bad",
    [
        {"q": 0},
        {"z": 0},
        {"z": math.inf},
        {"steps": 0},
        {"d": 0},
        {"sampler_tv": -1.0},
        {"unit": "site"},
        {"unit": "silo"},
    ],
)
def test_gaussian_events_are_validated(bad):
    with pytest.raises(UsageError):
        replace(GaussianRecordEvent(0.1, 1.0), **bad)


def test_real_units_passed_for_grid_units_are_refused():
    with pytest.raises(UsageError, match="grid units"):
        SkellamRecordEvent(q=0.01, V=1.0, D1=0.5, D2=0.5, d=100, n_sites=5)


@pytest.mark.parametrize("kind", ["gdp", "laplace", "", None, 7, ["no-dp"], {"a": 1}])
def test_an_unknown_kind_is_refused(kind):
    with pytest.raises(UsageError, match="unknown privacy event kind"):
        event_from_dict({"kind": kind, "steps": 1})


def test_unknown_and_missing_keys_are_refused_by_name():
    data = event_to_dict(SKELLAM)
    with pytest.raises(UsageError, match="sigma"):
        event_from_dict({**data, "sigma": 1.0})
    for key in data:
        without = {name: value for name, value in data.items() if name != key}
        with pytest.raises(UsageError, match=key if key != "kind" else "kind None"):
            event_from_dict(without)


@pytest.mark.parametrize("data", [None, [], "no-dp", 3])
def test_what_is_no_object_is_refused(data):
    with pytest.raises(UsageError, match="must be an object"):
        event_from_dict(data)


class _LooksLikeAnEvent(NoDpEvent):
    """A subclass could change the price: only the exact kinds are known."""


@pytest.mark.parametrize("event", [None, "no-dp", 3.0, [], _LooksLikeAnEvent()])
def test_an_unknown_event_raises_wherever_it_is_priced(event):
    with pytest.raises(UsageError, match="unknown privacy event"):
        event_to_dict(event)
    with pytest.raises(UsageError, match="unknown privacy event"):
        Accountant().compose(event)


def test_the_default_sampler_tv_covers_the_table_of_a_large_variance():
    # A standard deviation of 2^26 with +-13 deviations needs less than 2^31 entries.
    assert DEFAULT_SAMPLER_TV > 2**31 * 2.0**-128
