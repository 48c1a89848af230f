"""Compiled rotation and rounding give numpy's bits, and the staged pipeline's integers."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.encode import site_plan
from privacy import encode
from privacy.compress import LinearMap, MapKind, rotate_blocks
from privacy.delta import Delta
from privacy.dense import is_dense, l2_norm, round_delta
from privacy.errors import PeerError, Reason, UsageError
from privacy.kernels import compiled
from privacy.keystream import Keystream, Label
from tests.support.hadamard_naive import butterflies

LOOPS = compiled.loops_for(compiled.COMPILED_FROM)
pytestmark = pytest.mark.skipif(LOOPS is None, reason="numba is not installed")
LENGTH = compiled.COMPILED_FROM + 77
SEED = bytes(range(32))
COINS = bytes(range(1, 33))


def linear_map(kind, length=LENGTH):
    return LinearMap(kind, length, 0, 0, SEED)


def normal(length, seed=0):
    return np.random.default_rng(seed).normal(0, 1, length).astype(np.float32)


def by_numpy(values_D, clip, map_, scale, coins=None):
    """Do in numpy, whole vectors at a time, what the loops do."""
    lanes = np.zeros(16)
    for value in range(16):
        lane = values_D[value::16].astype(np.float64)
        lanes[value] = np.add.accumulate(lane * lane)[-1]  # one after the other, never in pairs
    norm = math.sqrt(sum(lanes.tolist()))
    factor = clip / norm if norm > clip else 1.0
    work = values_D.astype(np.float64) * factor
    if map_.kind is MapKind.ROTATION:
        padded = np.zeros(map_.output_length)
        padded[: work.size] = work
        bits = Keystream(SEED, Label.MAP_SIGNS).read(padded.size // 8)
        work = butterflies(padded * (1.0 - 2.0 * np.unpackbits(bits, bitorder="little")), 4096)
    work = work * scale
    if coins is None:
        return np.rint(work)
    floor = np.floor(work)
    drawn = Keystream(coins, Label.ROUNDING).read(4 * work.size).view("<u4")
    return floor + (drawn < (work - floor) * 2.0**32)


@pytest.mark.parametrize("kind", [MapKind.IDENTITY, MapKind.ROTATION])
@pytest.mark.parametrize("coins", [None, COINS])
@pytest.mark.parametrize(
    ("bits", "clip", "scale"), [(8, 9.0, 1500.0), (15, 1e9, 999.7), (32, 3.0, 1e9)]
)
def test_every_integer_is_numpys(kind, coins, bits, clip, scale):
    values_D = normal(LENGTH)
    rounded_d = round_delta(values_D, clip, linear_map(kind), scale, bits, coins)
    assert rounded_d is not None
    assert np.array_equal(rounded_d, by_numpy(values_D, clip, linear_map(kind), scale, coins))


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 2**32), extra=st.integers(0, 5000))
def test_norms_and_lengths_that_end_anywhere(seed, extra):
    values_D = normal(compiled.COMPILED_FROM + extra, seed)
    exact = math.sqrt(math.fsum(float(v) ** 2 for v in values_D[: 1 << 12].tolist()))
    assert l2_norm(np.pad(values_D[: 1 << 12], (0, LENGTH))) == pytest.approx(exact, rel=1e-14)
    map_ = linear_map(MapKind.ROTATION, values_D.size)
    rounded_d = round_delta(values_D, 1e9, map_, 100.0, 16)
    assert np.array_equal(rounded_d, by_numpy(values_D, 1e9, map_, 100.0))


def test_rotated_blocks_are_butterflies_to_the_bit_and_the_matrix_product_on_integers():
    values_d = normal(1 << 18).astype(np.float64)
    assert np.array_equal(rotate_blocks(values_d, 4096), butterflies(values_d, 4096))
    whole_d = np.rint(values_d * 2.0**30)
    short = whole_d[:4096]  # below the compiled length: matrix products
    assert np.array_equal(rotate_blocks(whole_d, 4096)[:4096], rotate_blocks(short, 4096))


@pytest.mark.parametrize("kind", [MapKind.IDENTITY, MapKind.ROTATION])
def test_the_pipeline_takes_the_same_integers_either_way(kind, monkeypatch):
    plan = replace(site_plan(LENGTH), map_kind=kind)
    delta = Delta(normal(LENGTH) * np.float32(1e-3), plan.spec_digest)
    quick = encode.encode_delta(plan, delta).vector_D
    monkeypatch.setattr(encode, "is_dense", lambda _: False)
    assert np.array_equal(quick, encode.encode_delta(plan, delta).vector_D)


def test_what_leaves_the_ring_or_is_no_number_is_refused_as_by_the_stages():
    plan = replace(site_plan(LENGTH), bits=8)
    with pytest.raises(UsageError, match="leaves the 8-bit ring"):
        encode.encode_delta(plan, Delta(normal(LENGTH), plan.spec_digest))
    values_D = normal(LENGTH)
    values_D[-1] = np.nan
    with pytest.raises(PeerError) as caught:
        encode.encode_delta(plan, Delta(values_D, plan.spec_digest))
    assert caught.value.reason is Reason.NOT_FINITE
    assert round_delta(normal(LENGTH), 1e9, linear_map(MapKind.IDENTITY), 1e9, 32) is None


def test_short_vectors_and_subsets_are_left_to_the_stages():
    assert not is_dense(linear_map(MapKind.IDENTITY, 4096))
    assert not is_dense(LinearMap(MapKind.RANDOM_K, LENGTH, 0, 100, SEED))


def test_squares_are_added_in_the_order_that_is_written():
    values_D = normal(4099)
    lanes = np.zeros(16)
    LOOPS.square_sums(values_D, lanes)
    for lane in range(16):
        squares = values_D[lane::16].astype(np.float64) ** 2
        assert lanes[lane] == np.add.accumulate(squares)[-1]
