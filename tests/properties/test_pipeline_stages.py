"""What must hold for every input of the encoding: inverse, bound, permutation, sensitivity."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from privacy import ring
from privacy.compress import CompressedDelta, LinearMap, MapKind
from privacy.decode import decode_sum
from privacy.errors import PeerError
from privacy.noise import skellam_table
from privacy.quantise import RecordSum, Rounding, round_conditionally
from privacy.spec import TensorSpec, VectorSpec
from tests.support.encoding_plans import (
    SEED,
    encode_records,
    make_low_rank_map,
    make_plan,
    make_rule,
)
from tests.support.ring_values import reduce_to_ring

REPEATABLE = settings(deadline=None, derandomize=True)
BITS = st.integers(8, 32)
GRADIENT, METRICS = 13, 2
KINDS = st.sampled_from(
    [
        (MapKind.IDENTITY, 0),
        (MapKind.ROTATION, 0),
        (MapKind.RANDOM_K, 4),
        (MapKind.ROTATION_RANDOM_K, 9),
    ]
)
# Every float32 there is: NaN, infinities, denormals, the largest, negative zero.
FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True)
TAME = st.floats(-1, 1, width=32)


def records(elements, min_rows=0, max_rows=12):
    shape = st.tuples(st.integers(min_rows, max_rows), st.just(GRADIENT + METRICS))
    return hnp.arrays(np.float32, shape, elements=elements)


def summed(rule, rows):
    total = RecordSum(rule)
    total.add(rows[:, :GRADIENT], rows[:, GRADIENT:])
    return total.finish()


def small_rule(kind, rounding=Rounding.RECORD, scale=64.0):
    return make_rule(
        gradient=GRADIENT,
        metrics=METRICS,
        kind=kind[0],
        kept=kind[1],
        scale=scale,
        rounding=rounding,
    )


@REPEATABLE
@given(BITS, st.data())
def test_packing_is_an_inverse_of_exact_length(bits, data):
    values = data.draw(
        hnp.arrays(np.uint32, st.integers(0, 200), elements=st.integers(0, 2**bits - 1))
    )
    packed = ring.pack(values, bits)
    assert len(packed) == math.ceil(values.size * bits / 8)
    assert np.array_equal(ring.unpack(packed, values.size, bits), values)


@REPEATABLE
@given(BITS, st.integers(0, 70), st.binary(max_size=300))
def test_any_accepted_bytes_are_the_encoding_of_their_values(bits, count, raw):
    raw = raw[: ring.packed_length(count, bits)]
    try:
        values = ring.unpack(raw, count, bits)
    except PeerError:
        return
    assert ring.pack(values, bits) == raw


@REPEATABLE
@given(BITS, hnp.arrays(np.int64, 20, elements=st.integers(-(2**62), 2**62)))
def test_reduce_and_centre_agree_with_python(bits, values):
    reduced = reduce_to_ring(values, bits)
    assert reduced.tolist() == [value % 2**bits for value in values.tolist()]
    half = 1 << (bits - 1)
    expected = [(value + half) % 2**bits - half for value in values.tolist()]
    assert ring.centre(reduced, bits).tolist() == expected


@REPEATABLE
@given(st.lists(st.lists(st.integers(1, 4), max_size=3), min_size=1, max_size=5), st.randoms())
def test_flatten_and_unflatten_are_inverses(shapes, random):
    spec = VectorSpec(tuple(TensorSpec(f"t{i}", tuple(s)) for i, s in enumerate(shapes)))
    flat = np.arange(spec.length, dtype=np.float32)
    views = list(spec.unflatten(flat).items())
    random.shuffle(views)
    assert np.array_equal(spec.flatten(dict(views)), flat)
    assert VectorSpec.from_bytes(spec.to_bytes()) == spec


@REPEATABLE
@given(KINDS, records(FLOATS), records(FLOATS, 1, 1), st.sampled_from([1e-3, 1.0, 64.0, 2.0**20]))
def test_one_record_moves_the_sum_by_at_most_d2(kind, others, record, scale):
    """Integer sensitivity, add or remove one record, whatever the records hold."""
    rule = small_rule(kind, scale=scale)
    without = summed(rule, others)
    with_it = summed(rule, np.concatenate([others, record]))
    moved = (with_it.values_d - without.values_d).tolist()
    assert math.sqrt(sum(step * step for step in moved)) <= rule.sensitivity


@REPEATABLE
@given(
    KINDS, records(FLOATS), records(FLOATS, 1, 1), st.sampled_from([2.0**-8, 1.0, 64.0, 2.0**20])
)
def test_one_record_moves_a_rounded_sum_by_at_most_d2(kind, others, record, scale):
    rule = small_rule(kind, Rounding.SUM, scale)
    without = summed(rule, others)
    with_it = summed(rule, np.concatenate([others, record]))
    moved = (with_it.values_d - without.values_d).tolist()
    assert math.sqrt(sum(step * step for step in moved)) <= rule.sensitivity


@REPEATABLE
@given(KINDS, records(FLOATS), st.randoms(use_true_random=False))
def test_the_order_of_records_does_not_matter(kind, rows, random):
    order = list(range(len(rows)))
    random.shuffle(order)
    rule = small_rule(kind)
    assert np.array_equal(summed(rule, rows).values_d, summed(rule, rows[order]).values_d)


@REPEATABLE
@given(KINDS, records(FLOATS), st.integers(0, 12))
def test_how_records_are_batched_does_not_matter(kind, rows, cut):
    rule = small_rule(kind)
    total = RecordSum(rule)
    for part in (rows[:cut], rows[cut:]):
        total.add(part[:, :GRADIENT], part[:, GRADIENT:])
    assert np.array_equal(total.finish().values_d, summed(rule, rows).values_d)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.sampled_from(list(MapKind)))
def test_a_long_record_rounds_alike_alone_and_among_others(numpy_seed, count, kind):
    """Batch mates must not reach a record through float arithmetic (blocked, vectorised, BLAS)."""
    rng = np.random.default_rng(numpy_seed)
    rule = make_rule(
        gradient=5697,
        metrics=13,
        kind=kind,
        kept=700 if kind.selects else 0,
        scale=2.0**13,
    )
    grads = rng.normal(scale=0.02, size=(count, 5697)).astype(np.float32)
    metrics = rng.random((count, 13)).astype(np.float32)
    whole = RecordSum(rule)
    whole.add(grads, metrics)
    alone = np.zeros(rule.linear_map.output_length, dtype=np.int64)
    for row in range(count):
        single = RecordSum(rule)
        single.add(grads[row : row + 1], metrics[row : row + 1])
        alone += single.finish().values_d
    assert np.array_equal(whole.finish().values_d, alone)


@pytest.mark.parametrize("rounding", [Rounding.RECORD, Rounding.SUM])
@REPEATABLE
@given(kind=st.sampled_from([MapKind.IDENTITY, MapKind.ROTATION]), rows=records(TAME))
def test_decode_of_encode_is_within_half_a_step_a_record(rounding, kind, rows):
    clips = (float(GRADIENT), float(METRICS))  # nothing is clipped
    plan = make_plan(
        gradient=GRADIENT, metrics=METRICS, kind=kind, clips=clips, rounding=rounding, bits=32
    )
    update = encode_records(plan, rows[:, :GRADIENT], rows[:, GRADIENT:], SEED)
    noise = skellam_table(plan.noise_variance).sample(SEED, plan.length)
    mean = decode_sum(plan, reduce_to_ring(update.vector_D - noise, 32), 1.0)
    roundings = len(rows) if rounding is Rounding.RECORD else 1
    decoded = np.concatenate([mean.gradient_D, mean.metric_sums_M])
    error = np.linalg.norm(decoded - rows.sum(axis=0, dtype=np.float64))
    assert error <= roundings * 0.5 * math.sqrt(plan.length) / plan.scale + 1e-9


@REPEATABLE
@given(st.sampled_from(list(MapKind)), st.integers(2, 700), st.data())
def test_map_is_linear_adjoint_and_never_lengthens(kind, length, data):
    tail = data.draw(st.integers(0, min(5, length - 1))) if kind.selects else 0
    kept = data.draw(st.integers(1, length - tail)) if kind.selects else 0
    seed = data.draw(st.binary(min_size=32, max_size=32))
    if kind is MapKind.LOW_RANK:
        shared = make_low_rank_map(length, 0, data.draw(st.sampled_from([0, 1])))
    else:
        shared = LinearMap(kind, length, tail, kept, seed)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    x, y = rng.normal(size=(2, length))
    mapped = shared.apply(x)
    w = rng.normal(size=mapped.size)
    assert mapped.shape == (shared.output_length,)
    assert np.vdot(mapped, w) == pytest.approx(np.vdot(x, shared.adjoint(w)), abs=1e-9)
    assert np.linalg.norm(mapped) <= np.linalg.norm(x) * (1 + 1e-12)
    assert np.allclose(shared.apply(2 * x - y), 2 * mapped - shared.apply(y), atol=1e-9)
    if not kind.rotates:  # a rotation pads, and the padding is not mapped back
        assert np.allclose(shared.apply(shared.adjoint(mapped)), mapped, atol=1e-9)
    if not kind.loses:
        assert np.allclose(shared.adjoint(mapped), x, atol=1e-9)


@REPEATABLE
@given(
    hnp.arrays(np.float64, st.integers(1, 40), elements=st.floats(-1, 1)),
    st.floats(0.01, 1000),
    st.binary(min_size=32, max_size=32),
)
def test_conditional_rounding_moves_each_coordinate_by_less_than_one(vector, scale, seed):
    norm = float(np.linalg.norm(vector))
    assume(norm > 0)
    rounded = round_conditionally(CompressedDelta(vector, norm), scale, seed)
    assert sum(value * value for value in rounded.values_d.tolist()) <= rounded.sensitivity**2
    assert np.all(np.abs(rounded.values_d - vector * scale) < 1)
