"""Compiled packing gives numpy's bytes, which give the format's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy import ring
from privacy.errors import PeerError
from privacy.kernels import compiled
from privacy.kernels.packing import CHUNK, pack_into, unpack_into

LOOPS = compiled.loops_for(compiled.COMPILED_FROM)
needs_numba = pytest.mark.skipif(LOOPS is None, reason="numba is not installed")


def packed(values_d, bits, loops):
    packed_b = np.empty(ring.packed_length(values_d.size, bits), dtype=np.uint8)
    pack_into(packed_b, values_d, bits, loops)
    return packed_b


@needs_numba
@pytest.mark.parametrize("bits", range(8, 33))
@settings(deadline=None, max_examples=30)
@given(count=st.integers(0, 700), seed=st.integers(0, 2**32))
def test_loops_pack_and_unpack_as_numpy_does(bits, count, seed):
    values_d = np.random.default_rng(seed).integers(0, 2**32, count, dtype=np.uint32)
    by_numpy = packed(values_d, bits, None)
    by_loops = packed(values_d, bits, LOOPS)
    assert by_loops.tobytes() == by_numpy.tobytes()
    back_d = np.empty_like(values_d)
    unpack_into(back_d, by_loops, bits, LOOPS)
    assert np.array_equal(back_d, values_d & np.uint32((1 << bits) - 1))


@needs_numba
@pytest.mark.parametrize("bits", [9, 16, 17, 24, 31])
@pytest.mark.parametrize("offset", [1, 4])
def test_bytes_at_odd_addresses_are_packed_and_read_too(bits, offset):
    values_d = np.arange(640, dtype=np.uint32)
    length = ring.packed_length(640, bits)
    packed_b = np.empty(length + offset, np.uint8)[offset:]
    pack_into(packed_b, values_d, bits, LOOPS)
    assert packed_b.tobytes() == packed(values_d, bits, None).tobytes()
    back_d = np.empty_like(values_d)
    unpack_into(back_d, packed_b, bits, LOOPS)
    assert np.array_equal(back_d, values_d & np.uint32((1 << bits) - 1))


@pytest.mark.parametrize("bits", [8, 10, 16, 20, 24, 31, 32])
def test_long_vectors_follow_the_format(bits):
    count = compiled.COMPILED_FROM + 67
    values_d = np.random.default_rng(bits).integers(0, 1 << bits, count, dtype=np.uint32)
    whole = ring.pack(values_d, bits)
    number = int.from_bytes(whole, "little")
    for index in (0, 1, 63, 64, CHUNK - 1, CHUNK, count - 66, count - 1):
        assert (number >> (bits * index)) % 2**bits == int(values_d[index])
    assert np.array_equal(ring.unpack(whole, count, bits), values_d)
    total_d = np.full(count, 7, dtype=np.uint32)
    ring.add_packed(total_d, whole, bits)
    assert np.array_equal(total_d, values_d + np.uint32(7))


def test_nothing_is_added_of_a_malformed_vector():
    total_d = np.zeros(1001, dtype=np.uint32)
    whole = bytearray(ring.pack(np.ones(1001, np.uint32), 9))
    whole[-1] |= 0x80
    for bad in (bytes(whole), bytes(whole[:-1]), bytes(whole) + b"\0"):
        with pytest.raises(PeerError):
            ring.add_packed(total_d, bad, 9)
    assert not total_d.any()


def test_without_numba_numpy_does_the_work(monkeypatch):
    values_d = np.arange(compiled.COMPILED_FROM + 1, dtype=np.uint32)
    with_numba = ring.pack(values_d, 19)
    monkeypatch.setattr(compiled, "_load", lambda: None)
    assert ring.pack(values_d, 19) == with_numba
