import json
import struct

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from edge_node.flower.state import StateError, state_from_bytes, state_to_bytes

MOST = 1 << 20

names = st.text(min_size=1, max_size=8)
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats()
metrics = st.dictionaries(
    names, numbers | st.lists(st.floats(), max_size=3) | st.lists(st.integers(), max_size=3)
)
settings = st.dictionaries(
    names,
    st.one_of(
        st.binary(max_size=9),
        st.text(max_size=9),
        st.booleans(),
        st.floats(),
        st.lists(st.binary(max_size=9), max_size=3),
        st.lists(st.text(max_size=9), max_size=3),
    ),
)
arrays = st.dictionaries(
    names,
    st.sampled_from([np.arange(6.0).reshape(2, 3), np.array(3, np.int64), np.zeros((0, 2), "f4")]),
)
records = st.one_of(
    metrics.map(MetricRecord),
    settings.map(ConfigRecord),
    arrays.map(lambda found: ArrayRecord({name: Array(array) for name, array in found.items()})),
)


@given(st.dictionaries(names, records, max_size=4))
def test_a_state_comes_back_exactly(content):
    raw = state_to_bytes(RecordDict(content), MOST)
    found = state_from_bytes(raw)
    assert [*found] == [*content]
    assert state_to_bytes(found, MOST) == raw
    for name, record in content.items():
        assert type(found[name]) is type(record)
        assert repr(found[name]) == repr(record)  # NaN is not equal to itself


def test_an_empty_state_takes_no_bytes():
    assert state_to_bytes(RecordDict(), 0) == b""
    assert not state_from_bytes(b"")


def test_a_state_beyond_the_limit_is_refused_with_both_numbers():
    state = RecordDict({"a": ConfigRecord({"b": bytes(100)})})
    size = len(state_to_bytes(state, MOST))
    assert state_to_bytes(state, size)
    with pytest.raises(StateError, match=f"takes {size} bytes and this site keeps {size - 1}"):
        state_to_bytes(state, size - 1)


def framed(records):
    head = json.dumps(records).encode()
    return struct.pack("<Q", len(head)) + head


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00",
        struct.pack("<Q", 10),
        framed(7),
        framed([["a", "config"]]),
        framed([["a", "config", [["b", {"bytes": 3}]]]]),
        framed([["a", "config", [["b", {"bytes": -3}]]]]),
        framed([["a", "arrays", [["b", "f4", [1], "numpy.ndarray", 4]]]]),
    ],
)
def test_damaged_bytes_are_refused(raw):
    with pytest.raises(StateError, match="damaged"):
        state_from_bytes(raw)
