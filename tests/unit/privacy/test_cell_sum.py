"""Sums of sparse records: the same integers as dense ones, and nothing exceeds D2."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from privacy.cell_sum import NO_CELL, CellSum
from privacy.compress import MapKind
from privacy.errors import PeerError, Reason, UsageError
from privacy.noise import skellam_table
from privacy.pipeline import Mode
from privacy.quantise import RecordSum, Rounding
from tests.support.encoding_plans import SEED, make_plan

WIDTHS = (3, 1, 5)
LENGTH = sum(WIDTHS)


def plan_for(clip=2.0, scale=16.0, n_max=1000, mode=Mode.RECORD_DISTRIBUTED, **options):
    return make_plan(
        mode, gradient=LENGTH, metrics=0, clips=(clip, 0.0), scale=scale, n_max=n_max, **options
    )


def integers(plan, cells, values=None, mask=None, *, rounding_seed=None):
    """Give the integers below the noise: the noise of a seed is known."""
    total = CellSum(plan, WIDTHS, rounding_seed)
    total.add(
        np.asarray(cells, np.int64).reshape(-1, 3),
        None if values is None else np.asarray(values, np.float32).reshape(-1, 3),
        mask,
    )
    if plan.mode is Mode.NONE:
        return total.finish(None).vector_D
    return total.finish(SEED).vector_D - skellam_table(plan.noise_variance).sample(SEED, LENGTH)


def dense_rows(cells, values):
    """Write records out as whole rows, in plain Python."""
    rows = np.zeros((len(cells), LENGTH), np.float32)
    for record, (places, amounts) in enumerate(zip(cells, values, strict=True)):
        offset = 0
        for place, amount, width in zip(places, amounts, WIDTHS, strict=True):
            if place != NO_CELL:
                rows[record, offset + place] += amount
            offset += width
    return rows


ANY = st.floats(width=32)
SMALL = st.floats(-1, 1, width=32)


@st.composite
def records(draw, elements, least=0):
    count = draw(st.integers(least, 12))
    cells = [[draw(st.integers(-1, width - 1)) for width in WIDTHS] for _ in range(count)]
    return (
        np.array(cells, np.int64).reshape(-1, 3),
        draw(arrays(np.float32, (count, 3), elements=elements)),
    )


@given(records(SMALL))
def test_the_sum_is_that_of_dense_records(drawn):
    cells_NK, values_NK = drawn
    plan = plan_for()
    dense = RecordSum(plan.record_rule)
    dense.add(dense_rows(cells_NK, values_NK), np.zeros((len(cells_NK), 0), np.float32))
    assert integers(plan, cells_NK, values_NK).tolist() == dense.finish().values_d.tolist()


@given(records(ANY, least=1), st.data(), st.sampled_from([None, SEED]))
def test_one_record_moves_the_sum_by_at_most_the_sensitivity(drawn, data, coins):
    cells_NK, values_NK = drawn
    plan = plan_for(clip=1.0)
    left_out = data.draw(st.integers(0, len(cells_NK) - 1))
    mask = np.arange(len(cells_NK)) != left_out  # the other records keep their coins
    with_it = integers(plan, cells_NK, values_NK, rounding_seed=coins)
    without = integers(plan, cells_NK, values_NK, mask, rounding_seed=coins)
    assert float(np.linalg.norm(with_it - without)) <= plan.sensitivity


def test_records_above_the_bound_or_not_finite_count_as_zero():
    plan = plan_for(clip=1.0)
    cells = [[0, 0, 0]] * 4
    values = [[0.5, 0.5, 0.5], [0.9, 0.9, 0.9], [np.nan, 0, 0], [0, np.inf, 0]]
    assert integers(plan, cells, values).tolist() == [8, 0, 0, 8, 8, 0, 0, 0, 0]


def test_a_value_without_a_cell_is_not_looked_at():
    plan = plan_for()
    result = integers(plan, [[NO_CELL, 0, NO_CELL]], [[np.nan, 0.25, 1e38]])
    assert result.tolist() == [0, 0, 0, 4, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("cells", [[3, 0, 0], [0, 1, 0], [0, 0, 5], [-2, 0, 0], [2**62, 0, 0]])
@pytest.mark.parametrize("mode", [Mode.RECORD_DISTRIBUTED, Mode.NONE])
def test_a_record_with_a_cell_of_another_range_counts_as_zero(cells, mode):
    plan = plan_for(mode=mode, bits=32) if mode is Mode.NONE else plan_for()
    assert not integers(plan, [cells]).any()


def test_without_values_each_cell_counts_one():
    plan = plan_for()
    result = integers(plan, [[2, 0, 4], [2, NO_CELL, 4], [0, 0, 0]])
    assert result.tolist() == [16, 0, 32, 32, 16, 0, 0, 0, 32]


def test_masked_rows_are_no_records_and_not_counted():
    plan = plan_for(n_max=1)
    mask = np.array([False, True])
    assert integers(plan, [[0, 0, 0], [1, 0, 1]], mask=mask).tolist() == [
        *(0, 16, 0, 16, 0, 16, 0, 0, 0)
    ]
    with pytest.raises(UsageError, match="n_max"):
        integers(plan, [[0, 0, 0], [1, 0, 1]])


def test_nothing_gives_noise_alone_and_a_sum_is_used_once():
    plan = plan_for()
    assert not integers(plan, []).any()
    total = CellSum(plan, WIDTHS)
    total.finish(SEED)
    with pytest.raises(UsageError, match="of its own"):
        total.finish(SEED)


def test_dither_is_without_bias_and_leaves_whole_steps_alone():
    plan = plan_for(n_max=10**6)
    count = 20_000
    cells = np.tile(np.array([[0, 0, 0]]), (count, 1))
    values = np.tile(np.array([[0.3 / 16, 1.0, -0.3 / 16]]), (count, 1))
    result = integers(plan, cells, values, rounding_seed=SEED)
    deviation = math.sqrt(0.3 * 0.7 * count)
    assert abs(result[0] - 0.3 * count) < 4 * deviation
    assert result[3] == 16 * count
    assert abs(result[4] + 0.3 * count) < 4 * deviation
    assert integers(plan, cells, values)[0] == 0  # the nearest step is biased


def test_without_privacy_values_are_summed_and_rounded_once():
    plan = plan_for(mode=Mode.NONE, clip=1000.0, bits=32)
    result = integers(plan, [[0, 0, 0]] * 100, [[0.01, 2.0, -0.004]] * 100)
    assert result.tolist() == [16, 0, 0, 3200, round(-0.4 * 16), 0, 0, 0, 0]


def test_without_privacy_a_sum_beyond_the_plans_range_is_refused():
    plan = plan_for(mode=Mode.NONE, clip=10.0, bits=32)
    with pytest.raises(UsageError, match="max_records"):
        integers(plan, [[0, 0, 0]] * 11)


@pytest.mark.parametrize(
    "plan",
    [
        plan_for(rounding=Rounding.SUM),
        plan_for(mode=Mode.SITE),
        plan_for(kind=MapKind.ROTATION),
        make_plan(gradient=LENGTH, metrics=2),
    ],
)
def test_plans_for_other_work_are_refused(plan):
    with pytest.raises(UsageError):
        CellSum(plan, WIDTHS)


def test_sums_that_could_not_be_exact_are_refused():
    plan = dataclasses.replace(plan_for(clip=2.0**12, scale=16.0, z=0.01), n_max=2**40)
    with pytest.raises(PeerError) as caught:
        CellSum(plan, WIDTHS)
    assert caught.value.reason is Reason.POLICY


@pytest.mark.parametrize("widths", [(), (9, 0), (4, 4), (10, -1)])
def test_ranges_fill_the_vector_exactly(widths):
    with pytest.raises(UsageError, match="ranges"):
        CellSum(plan_for(), widths)


def test_seeds_fit_the_mode():
    with pytest.raises(UsageError, match="seeds"):
        CellSum(plan_for(), WIDTHS).finish(None)
    with pytest.raises(UsageError, match="seeds"):
        CellSum(plan_for(mode=Mode.NONE, bits=32), WIDTHS).finish(SEED)


@pytest.mark.parametrize(
    ("cells", "values", "mask"),
    [
        (np.zeros((2, 3), np.int32), None, None),
        (np.zeros((2, 2), np.int64), None, None),
        (np.zeros((2, 3), np.int64), np.zeros((2, 3)), None),
        (np.zeros((2, 3), np.int64), np.zeros((3, 3), np.float32), None),
        (np.zeros((2, 3), np.int64), None, np.zeros(3, np.bool_)),
        (np.zeros((2, 3), np.int64), None, np.zeros(2)),
    ],
)
def test_arrays_of_other_shapes_or_types_are_refused(cells, values, mask):
    with pytest.raises(UsageError):
        CellSum(plan_for(), WIDTHS).add(cells, values, mask)
