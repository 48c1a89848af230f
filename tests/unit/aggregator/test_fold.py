"""The fold is exact for every bit width and order, and its memory does not depend on the sites."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator import fold as fold_module
from aggregator import unmask as unmask_module
from aggregator.fold import Fold, pick_device, unpack_on_device
from aggregator.unmask import unmask
from privacy import ring
from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg.masking import apply_terms
from privacy.secagg.messages import MaskTerm
from privacy.secagg.prg import add_keystreams

CPU = torch.device("cpu")


class Packed:
    def __init__(self, data):
        self.data = data
        self.largest = 0

    def read_at(self, offset, size):
        self.largest = max(self.largest, size)
        return self.data[offset : offset + size]


def vectors(count, length, bits, seed=0):
    rng = np.random.default_rng(seed)
    return [
        rng.integers(0, 1 << bits, length, dtype=np.uint64).astype(np.uint32) for _ in range(count)
    ]


def exact_sum(values, bits):
    return (np.sum([v.astype(np.uint64) for v in values], axis=0) % (1 << bits)).astype(np.uint32)


@pytest.mark.parametrize("bits", range(ring.MIN_BITS, ring.MAX_BITS + 1))
@pytest.mark.parametrize("length", [1, 63, 1000])
def test_sum_is_exact_for_every_bit_width(bits, length):
    values = vectors(5, length, bits)
    fold = Fold(length, bits, CPU)
    for value in values:
        fold.add(Packed(ring.pack(value, bits)))
    folded = fold.finish()
    np.testing.assert_array_equal(folded.values_d, exact_sum(values, bits))
    assert (folded.updates, folded.bits) == (5, bits)


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(6)), st.integers(8, 32))
def test_order_does_not_matter(order, bits):
    values = vectors(6, 77, bits, seed=3)
    fold = Fold(77, bits, CPU)
    for index in order:
        fold.add(Packed(ring.pack(values[index], bits)))
    np.testing.assert_array_equal(fold.finish().values_d, exact_sum(values, bits))


@pytest.mark.parametrize("bits", range(ring.MIN_BITS, ring.MAX_BITS + 1))
def test_device_kernel_gives_the_bits_of_the_ring(bits):
    (values,) = vectors(1, 1003, bits, seed=bits)
    packed = ring.pack(values, bits)
    unpacked = unpack_on_device(packed, 1003, bits, CPU).numpy().view(np.uint32)
    np.testing.assert_array_equal(unpacked, ring.unpack(packed, 1003, bits))


def test_device_kernel_refuses_what_the_ring_refuses():
    packed = bytearray(ring.pack(np.zeros(3, np.uint32), 9))
    for bad in (bytes(packed[:-1]), bytes(packed) + b"\0"):
        with pytest.raises(PeerError):
            unpack_on_device(bad, 3, 9, CPU)
    packed[-1] |= 0x80
    with pytest.raises(PeerError) as caught:
        unpack_on_device(bytes(packed), 3, 9, CPU)
    assert caught.value.reason is Reason.MALFORMED


def test_uploads_are_read_in_chunks_whatever_their_number(monkeypatch):
    monkeypatch.setattr(fold_module, "CHUNK_VALUES", 64)
    values = vectors(4, 200, 13)
    fold = Fold(200, 13, CPU)
    sources = [Packed(ring.pack(value, 13)) for value in values]
    for source in sources:
        fold.add(source)
    assert max(source.largest for source in sources) == ring.packed_length(64, 13)
    np.testing.assert_array_equal(fold.finish().values_d, exact_sum(values, 13))
    # One accumulator is all that an attempt keeps: nothing else in it grows with the sites.
    held = [value for value in vars(fold).values() if isinstance(value, torch.Tensor)]
    assert [tensor.numel() for tensor in held] == [200]


def test_unmasked_sum_is_exact():
    values = vectors(3, 500, 20)
    keys = [bytes([i]) * 32 for i in range(3)]
    fold = Fold(500, 20, CPU)
    for value, key in zip(values, keys, strict=True):
        masked = value.copy()
        apply_terms(masked, [MaskTerm(key, 1)])
        fold.add(Packed(ring.pack(masked & np.uint32((1 << 20) - 1), 20)))
    opened = unmask(fold.finish(), [MaskTerm(key, -1) for key in keys])
    np.testing.assert_array_equal(opened.values_d, exact_sum(values, 20))
    assert opened.updates == 3


@pytest.mark.parametrize("workers", [None, 1, 2, 7])
def test_a_sum_unmasked_in_slices_on_several_cores_is_exact(monkeypatch, workers):
    monkeypatch.setattr(unmask_module, "LEAST_SLICE", 16)
    values = vectors(3, 16 * 9 + 5, 20, seed=6)
    terms = [MaskTerm(bytes([i]) * 32, 1 if i % 2 else -1) for i in range(4)]
    fold = Fold(values[0].size, 20, CPU)
    for value in values:
        fold.add(Packed(ring.pack(value, 20)))
    whole = fold.finish()
    add_keystreams(whole.values_d, [(term.key, term.sign) for term in terms])
    opened = unmask(whole, [replace(term, sign=-term.sign) for term in terms], workers=workers)
    np.testing.assert_array_equal(opened.values_d, exact_sum(values, 20))


def test_unknown_device_is_named():
    with pytest.raises(UsageError, match="nonsense"):
        pick_device("nonsense")
    assert pick_device("cpu") == CPU
