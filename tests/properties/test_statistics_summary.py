"""Statistics of any table: without noise those of numpy, with noise within their errors."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from privacy.cell_sum import CellSum
from privacy.decode import decode_sum
from privacy.errors import PeerError
from privacy.planning import CohortRules, derive_encoding
from privacy.ring import reduce_in_place
from tidegate.job_terms import privacy_terms, statistics_layout, update_spec
from tidegate.jobfile import JobFile
from tidegate.statistics_layout import StatisticsLayout
from tidegate.statistics_summary import summarise

RULES = CohortRules(1, 4, 5)
JOB = """
[job]
name = "s"
dataset = "credit"
[statistics]
bins = 64
[[columns]]
name = "age"
low = -10.0
high = 30.0
[[columns]]
name = "grade"
levels = 3
[privacy]
{privacy}
[round]
target_sites = 5
"""
RECORD = 'mode = "record-distributed"\nepsilon = {}\ndelta_dp = 1e-6\nmax_records = 100000'
NONE = 'mode = "none"\nmax_records = 1000'


def tensors_of(privacy, tables, number=0):
    """Count tables, a site each, exactly as site and aggregator do; the noise is seeded."""
    job = JobFile.parse(JOB.format(privacy=privacy).encode())
    layout = statistics_layout(job)
    spec = update_spec(job, layout.model_spec)
    plan = derive_encoding(privacy_terms(job), spec, RULES, bytes(32))
    total = np.zeros(plan.length, np.int64)
    for site, table in enumerate(tables):
        seed = bytes([site, number % 251]) + bytes(30)
        sums = CellSum(plan, layout.widths_K, seed)
        sums.add(*layout.cells(table))
        total += sums.finish(seed if plan.noise_variance else None).vector_D
    ring = reduce_in_place(total.astype(np.uint32), plan.bits)
    values = decode_sum(plan, ring, 1.0).gradient_D
    noise = math.sqrt(plan.noise_variance * len(tables)) / plan.scale
    return layout, layout.model_spec.unflatten(np.append(values, noise).astype(np.float32))


VALUES = st.one_of(st.floats(-15, 35, width=32), st.just(math.nan))
TABLES = arrays(np.float32, st.tuples(st.integers(0, 30), st.just(2)), elements=VALUES)


@given(st.lists(TABLES, min_size=1, max_size=3))
@settings(max_examples=60)
def test_without_noise_they_are_numpys(tables):
    summary = summarise(*tensors_of(NONE, tables))
    table = np.concatenate(tables).astype(np.float64)
    age, grade = summary.columns
    known = table[~np.isnan(table[:, 0]), 0]
    assert summary.records.value == len(table)
    assert summary.noise_std == 0
    if not len(table):
        assert math.isnan(age.missing.value)
        return
    assert age.missing.value == pytest.approx(np.isnan(table[:, 0]).mean(), abs=1e-6)
    grades = table[~np.isnan(table[:, 1]), 1]
    for level in range(3 if len(grades) else 0):
        assert grade.shares[level].value == pytest.approx((grades == level).mean(), abs=1e-6)
    if not len(known):
        assert math.isnan(age.mean.value)
        assert math.isnan(age.quantiles[0.5].value)
        return
    cut = np.clip(known, -10, 30)
    assert age.mean.value == pytest.approx(cut.mean(), abs=1e-3)
    assert age.std.value == pytest.approx(cut.std(), abs=0.1)
    assert age.std.value**2 == pytest.approx(cut.var(), abs=0.01)
    assert age.below.value == pytest.approx((known < -10).mean(), abs=1e-6)
    assert age.above.value == pytest.approx((known > 30).mean(), abs=1e-6)
    width = 40 / 64
    for share, found in age.quantiles.items():
        exact = np.quantile(cut, share, method="inverted_cdf")
        assert exact - width - 1e-6 <= found.value <= exact + width + 1e-6


def test_with_noise_they_lie_within_their_errors():
    random = np.random.default_rng(5)
    rows = 20_000
    table = np.stack([random.normal(12, 6, rows), random.integers(0, 3, rows)], 1)
    table[random.random((rows, 2)) < 0.1] = np.nan
    table = table.astype(np.float32)
    exact = summarise(*tensors_of(NONE.replace("1000", "100000"), [table]))
    parts = np.array_split(table, 5)
    scores = []
    for number in range(40):
        noised = summarise(*tensors_of(RECORD.format(0.5), parts, number))
        assert noised.noise_std > 10
        pairs = [(noised.records, exact.records)]
        for mine, true in zip(noised.columns, exact.columns, strict=True):
            pairs += [(mine.missing, true.missing), *zip(mine.shares, true.shares, strict=True)]
            if mine.mean is not None:
                pairs += [(mine.mean, true.mean), (mine.std, true.std)]
                pairs += [(mine.quantiles[p], true.quantiles[p]) for p in (0.25, 0.5, 0.75)]
        scores += [[(got.value - want.value) / got.error for got, want in pairs]]
    scores = np.array(scores)
    assert np.abs(scores).max() < 5
    # Errors that were far too large would pass the first check: each must fit its own numbers.
    spread = scores.std(axis=0)
    assert (spread > 0.5).all(), spread
    assert (spread < 1.6).all(), spread


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("privacy", [NONE, RECORD.format(1.0)])
@pytest.mark.parametrize("missing", [False, True])
def test_tiny_and_empty_tables_give_numbers_or_none(rows, privacy, missing):
    table = np.full((rows, 2), math.nan if missing else 1.0, np.float32)
    summary = summarise(*tensors_of(privacy, [table] * 5))
    for column in summary.columns:
        if column.mean is not None and not math.isnan(column.mean.value):
            assert column.low <= column.mean.value <= column.high
            assert column.std.value >= 0
            values = [estimate.value for estimate in column.quantiles.values()]
            if not any(map(math.isnan, values)):
                assert values == sorted(values)


@given(st.integers(0, 2**32 - 1), st.floats(0, 100))
def test_quantiles_of_pure_noise_still_ascend_within_the_bounds(seed, noise):
    layout, tensors = tensors_of(NONE, [np.zeros((3, 2), np.float32)])
    random = np.random.default_rng(seed)
    noised = {
        name: (a + random.normal(0, noise, a.shape)).astype("f4") for name, a in tensors.items()
    }
    age = summarise(layout, noised).columns[0]
    values = [estimate.value for estimate in age.quantiles.values()]
    if not any(map(math.isnan, values)):
        assert values == sorted(values)
        assert values[0] >= -10
        assert values[-1] <= 30


def test_a_model_of_another_job_is_refused():
    layout, tensors = tensors_of(NONE, [np.zeros((3, 2), np.float32)])
    with pytest.raises(PeerError, match="sums"):
        summarise(StatisticsLayout(layout.schema, 8), tensors)
    with pytest.raises(PeerError, match="NaN"):
        summarise(layout, {**tensors, "records": np.array([np.nan], np.float32)})
