"""The low-rank map: norm at most 1 whatever the basis, exact decoding, turns that balance."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.basis import Basis, first_basis, next_basis
from privacy.compress import draw_signs
from privacy.errors import PeerError, Reason, UsageError
from privacy.low_rank import LowRank, Matrix, find_matrices, small_spans
from privacy.low_rank_map import LowRankMap
from privacy.spec import TensorSpec, VectorSpec

SEED = bytes(range(32))
MATRICES = (Matrix(3, 12, 20, 0), Matrix(250, 15, 7, 1))
LENGTH, METRICS = 380, 4


def named(columns, parity=0, rank=3, small_kept=9, matrices=MATRICES):
    """Make a map with given int8 bases, or those drawn from the seed."""
    layout = LowRank(rank, matrices, small_kept)
    basis = first_basis(layout, parity, SEED) if columns is None else Basis(columns)
    decided = LowRank(rank, matrices, small_kept, parity, basis.digest)
    return LowRankMap(decided, LENGTH + METRICS, METRICS, SEED, basis)


def bases(parity, rank=3, fill=None):
    shapes = LowRank(rank, MATRICES, 1).basis_shapes(parity)
    if fill is not None:
        return st.just(tuple(np.full(shape, fill, np.int8) for shape in shapes))
    entries = st.integers(-127, 127)
    return st.tuples(
        *(
            st.lists(entries, min_size=rows * cols, max_size=rows * cols).map(
                lambda flat, shape=(rows, cols): np.array(flat, np.int8).reshape(shape)
            )
            for rows, cols in shapes
        )
    ).filter(lambda columns: all(c.any() for c in columns))


def matrix_of(linear_map):
    return linear_map.apply(np.eye(linear_map.length)).T


@settings(max_examples=25)
@given(st.data(), st.sampled_from([0, 1]))
def test_no_basis_gives_a_norm_above_one(data, parity):
    columns = data.draw(st.one_of(bases(parity), bases(parity, fill=127), bases(parity, fill=-1)))
    assert np.linalg.norm(matrix_of(named(columns, parity)), 2) <= 1 + 1e-12


@pytest.mark.parametrize("parity", [0, 1])
def test_the_adjoint_is_the_transposed_map(parity):
    linear_map = named(None, parity)
    mapped = matrix_of(linear_map)
    back = linear_map.adjoint(np.eye(linear_map.output_length))
    np.testing.assert_allclose(back, mapped, atol=1e-12)
    record = np.random.default_rng(0).standard_normal(linear_map.length)
    np.testing.assert_allclose(linear_map.apply(record), mapped @ record, atol=1e-12)


@pytest.mark.parametrize("parity", [0, 1])
def test_a_batch_is_mapped_like_its_records_one_by_one(parity):
    linear_map = named(None, parity)
    records = np.random.default_rng(1).standard_normal((5, linear_map.length)).astype(np.float32)
    rows = [linear_map.apply(record) for record in records]
    np.testing.assert_allclose(linear_map.apply(records), rows, atol=1e-12)
    mapped = linear_map.apply(records)
    np.testing.assert_array_equal(
        linear_map.decode(np.rint(mapped * 99)),
        [linear_map.decode(row) for row in np.rint(mapped * 99)],
    )


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.sampled_from([0, 1]), st.integers(8, 24))
def test_decoding_is_exact_in_any_order(seed, parity, bits):
    """Against Python's integers: float64 products of whole numbers below 2^53 never round."""
    rng = np.random.default_rng(seed)
    columns = tuple(
        rng.integers(-127, 128, shape).astype(np.int8)
        for shape in LowRank(3, MATRICES, 1).basis_shapes(parity)
    )
    linear_map = named(columns, parity)
    half = 1 << (bits - 1)
    sum_d = rng.integers(-half, half, linear_map.output_length)
    decoded = linear_map.decode(sum_d.astype(np.float64))
    whole = rotated_back(linear_map, sum_d)
    begin = 0
    for matrix, columns_, factors in zip(
        MATRICES, linear_map.basis.columns, linear_map.basis.factors, strict=True
    ):
        rows, rank = matrix.factor_rows(parity), columns_.shape[1]
        factor = whole[begin : begin + rows * rank].reshape(rows, rank)
        begin += rows * rank
        product = factor.astype(object) @ columns_.astype(object).T
        entries = product if matrix.from_right(parity) else product.T
        side = int(np.sqrt(linear_map.block))
        expected = [float(v) / side * factors.decode for v in entries.reshape(-1)]
        np.testing.assert_array_equal(
            decoded[matrix.offset : matrix.offset + matrix.size], expected
        )
    assert bits <= linear_map.exact_bits()


def rotated_back(linear_map, sum_d):
    """Undo the rotation in Python integers, times the block's side."""
    block, count = linear_map.block, linear_map.output_length // linear_map.block
    hadamard = np.array(
        [[(-1) ** (i & j).bit_count() for j in range(block)] for i in range(block)], dtype=object
    )
    blocks = np.array([int(v) for v in sum_d], dtype=object).reshape(count, block) @ hadamard
    signs = [int(v) for v in draw_signs(SEED, linear_map.output_length)]
    return blocks.T.reshape(-1) * np.array(signs, dtype=object)


@pytest.mark.parametrize("parity", [0, 1])
def test_an_orthogonal_basis_is_decoded_as_a_projection(parity):
    hadamard = np.array([[1, 1], [1, -1], [1, 1], [1, -1]], np.int8) * 100
    matrices = (Matrix(0, 4, 4, parity),)
    layout = LowRank(2, matrices, 1)
    basis = Basis((hadamard,))
    decided = replace(layout, parity=parity, basis_digest=basis.digest)
    linear_map = LowRankMap(decided, 17, 0, SEED, basis)
    whole = np.random.default_rng(2).standard_normal((4, 4))
    vector = np.append(whole.reshape(-1), 5.0)
    told = linear_map.decode(linear_map.apply(vector))
    span = hadamard.astype(float) @ hadamard.T / 40_000
    np.testing.assert_allclose(told[:16].reshape(4, 4), whole @ span, atol=1e-12)
    assert told[16] == pytest.approx(5.0)


def test_metrics_and_kept_small_coordinates_come_back_as_they_are():
    linear_map = named(None)
    vector = np.random.default_rng(3).standard_normal(linear_map.length)
    told = linear_map.decode(linear_map.apply(vector))
    np.testing.assert_allclose(told[-METRICS:], vector[-METRICS:], atol=1e-12)
    small = np.concatenate([np.arange(*span) for span in small_spans(MATRICES, LENGTH)])
    kept = small[told[small] != 0]
    assert kept.size == 9
    np.testing.assert_allclose(told[kept], vector[kept], atol=1e-12)


def test_the_next_basis_spans_what_the_sum_has_learnt():
    rng = np.random.default_rng(4)
    low = rng.standard_normal((12, 3)) @ rng.standard_normal((3, 20))
    gradient_D = np.zeros(LENGTH)
    gradient_D[3:243] = low.reshape(-1)
    even = named(None)
    learnt = next_basis(
        even.layout, even.basis, even.decode(even.apply(padded(gradient_D)))[:LENGTH], SEED
    )
    odd = named(learnt.columns, parity=1)
    told = odd.decode(odd.apply(padded(gradient_D)))[3:243].reshape(12, 20)
    assert np.linalg.norm(told - low) < 0.03 * np.linalg.norm(low)
    gram = [c.astype(int).T @ c.astype(int) for c in learnt.columns]
    for each in gram:
        off = each - np.diag(np.diag(each))
        assert np.abs(off).max() < 0.05 * np.diag(each).min()
    again = next_basis(even.layout, even.basis, np.zeros(LENGTH), SEED)
    assert [c.shape for c in again.columns] == [c.shape for c in learnt.columns]


def padded(gradient_D):
    return np.append(gradient_D, np.zeros(METRICS))


def test_matrices_are_the_large_tensors_and_take_turns():
    spec = VectorSpec(
        (
            TensorSpec("bias", (3,)),
            TensorSpec("wide", (10, 400)),
            TensorSpec("small", (50, 59)),
            TensorSpec("long", (4000,)),
            TensorSpec("conv", (80, 4, 4, 4)),
            TensorSpec("tall", (390, 10)),
        )
    )
    found = find_matrices(spec)
    assert [(m.offset, m.rows, m.cols) for m in found] == [
        (3, 10, 400),
        (10_953, 80, 64),
        (16_073, 390, 10),
    ]
    layout = LowRank(2, found, 5)
    lengths = [layout.payload(parity) for parity in (0, 1)]
    assert abs(lengths[0] - lengths[1]) <= 2 * 2 * 16
    assert small_spans(found, spec.length) == [(0, 3), (4003, 10_953)]


@pytest.mark.parametrize(
    "changes",
    [
        {"rank": 0},
        {"rank": 513},
        {"small_kept": -1},
        {"parity": 2},
        {"parity": 0},
        {"basis_digest": b"d" * 32},
        {"parity": 1, "basis_digest": b"d" * 31},
        {"matrices": (), "small_kept": 0},
        {"matrices": MATRICES[::-1]},
        {"matrices": (Matrix(0, 3, 3, 2),)},
        {"matrices": (Matrix(-1, 3, 3, 0),)},
        {"matrices": (Matrix(0, 0, 3, 0),)},
        {"matrices": (Matrix(0, 2**20, 2**20, 0),)},
    ],
)
def test_a_layout_out_of_range_is_refused(changes):
    fields = {"rank": 2, "matrices": MATRICES, "small_kept": 3}
    with pytest.raises(PeerError) as caught:
        LowRank(**{**fields, **changes})
    assert caught.value.reason is Reason.MALFORMED


def test_bases_that_are_none_are_refused():
    layout = LowRank(3, MATRICES, 9)
    raw = first_basis(layout, 1, SEED).to_bytes()
    assert Basis.from_bytes(layout, 1, raw).to_bytes() == raw
    zeros = bytes(36)
    for wrong in (raw[:-1], raw + b"\1", b"", zeros + raw[36:], b"\x80" + raw[1:]):
        with pytest.raises(PeerError) as caught:
            Basis.from_bytes(layout, 1, wrong)
        assert caught.value.reason is Reason.MALFORMED


def test_a_map_takes_no_basis_but_the_named_one():
    good = named(None)
    with pytest.raises(PeerError, match="names"):
        replace(good, basis=first_basis(good.layout, 0, bytes(32)))
    job = LowRank(3, MATRICES, 9)
    bare = LowRankMap(job, LENGTH + METRICS, METRICS, SEED)
    assert bare.output_length == max(named(None, p).output_length for p in (0, 1))
    with pytest.raises(UsageError, match="no version"):
        bare.apply(np.zeros(LENGTH + METRICS))
    with pytest.raises(PeerError, match="does not fit"):
        LowRankMap(job, 300, METRICS, SEED)
    with pytest.raises(PeerError, match="does not fit"):
        LowRankMap(replace(job, small_kept=100), LENGTH, 0, SEED)
    with pytest.raises(UsageError, match="coordinates"):
        good.apply(np.zeros(LENGTH))


def test_blocks_mix_all_parts_of_the_payload():
    """One step size serves all coordinates only if each block holds some of every matrix."""
    matrices = (Matrix(0, 4096, 8, 0), Matrix(4096 * 8, 4096, 8, 0))
    layout = LowRank(1, matrices, 4)
    basis = first_basis(layout, 0, SEED)
    linear_map = LowRankMap(
        replace(layout, parity=0, basis_digest=basis.digest), 4096 * 16 + 4, 0, SEED, basis
    )
    vector = np.zeros(linear_map.length)
    vector[: 4096 * 8] = np.random.default_rng(5).standard_normal(4096 * 8)
    mapped = linear_map.apply(vector).reshape(-1, linear_map.block)
    energy = (mapped**2).mean(axis=1)
    assert energy.max() < 1.3 * energy.min()
