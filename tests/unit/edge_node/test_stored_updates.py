"""What a site keeps of an update is the update: a wrong integer would be sent after a restart."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_node.upload import update_from_bytes, update_to_bytes
from privacy.errors import UsageError
from privacy.noise import NoisedUpdate

EDGES = [edge + by for bits in (7, 15, 31) for edge in (-(1 << bits), 1 << bits) for by in (-1, 0)]
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


@given(st.lists(st.one_of(INT64, st.sampled_from(EDGES), st.integers(-9, 9)), max_size=20))
def test_every_integer_comes_back_as_it_was(values):
    kept = update_from_bytes(update_to_bytes(NoisedUpdate(np.array(values, dtype=np.int64))))
    assert kept.vector_D.dtype == np.int64
    assert kept.vector_D.tolist() == values


@pytest.mark.parametrize(
    ("largest", "width"),
    [(127, 1), (-128, 1), (128, 2), (-32_769, 4), (1 << 30, 4), (1 << 31, 8), (-(1 << 63), 8)],
)
def test_integers_are_kept_as_narrow_as_they_fit(largest, width):
    values_D = np.zeros(1000, dtype=np.int64)
    values_D[3] = largest
    assert len(update_to_bytes(NoisedUpdate(values_D))) == 3 + 1000 * width


@pytest.mark.parametrize("raw", [b"", b"<i", b"<f4" + bytes(8), bytes(16), b">i2" + bytes(8)])
def test_bytes_of_another_kind_are_no_update(raw):
    with pytest.raises(UsageError, match="stored update"):
        update_from_bytes(raw)


def test_half_an_integer_is_no_update():
    with pytest.raises(UsageError, match="stored update"):
        update_from_bytes(b"<i4" + bytes(7))
