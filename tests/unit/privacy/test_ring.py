"""Ring arithmetic and packing: the corners that vectors and properties do not name."""

import numpy as np
import pytest

from privacy import ring
from privacy.errors import UsageError
from privacy.kernels.packing import CHUNK
from tests.support.ring_values import reduce_to_ring


@pytest.mark.parametrize("bits", [8, 13, 20, 32])
def test_centre_undoes_reduce_over_the_signed_range(bits):
    half = 1 << (bits - 1)
    values = np.array([-half, -half + 1, -1, 0, 1, half - 1], dtype=np.int64)
    assert ring.centre(reduce_to_ring(values, bits), bits).tolist() == values.tolist()


@pytest.mark.parametrize("bits", [8, 13, 20, 32])
def test_reduce_agrees_with_python_far_outside_the_ring(bits):
    values = [-(2**62), -(2**33) - 5, 2**40 + 7, 2**62 + 1]
    reduced = reduce_to_ring(np.array(values, dtype=np.int64), bits)
    assert reduced.tolist() == [value % 2**bits for value in values]


@pytest.mark.parametrize("bits", [7, 33, 0, -1])
def test_bit_widths_outside_the_protocol_are_refused(bits):
    with pytest.raises(UsageError):
        ring.pack(np.zeros(1, np.uint32), bits)


@pytest.mark.parametrize("bits", [9, 17, 20, 24, 31])
def test_packing_across_chunk_borders(bits):
    count = CHUNK + 65
    values = reduce_to_ring(np.arange(count, dtype=np.int64) * 2654435761, bits)
    packed = ring.pack(values, bits)
    assert len(packed) == ring.packed_length(count, bits)
    assert np.array_equal(ring.unpack(packed, count, bits), values)
    # Value CHUNK stands where the format says, whatever the chunks are.
    whole = int.from_bytes(packed, "little")
    assert (whole >> (bits * CHUNK)) % 2**bits == int(values[CHUNK])


def test_packing_drops_upper_bits_instead_of_spilling_them():
    spilled = np.array([0xFFFFFFFF, 0, 0], dtype=np.uint32)
    assert ring.unpack(ring.pack(spilled, 11), 3, 11).tolist() == [2047, 0, 0]
