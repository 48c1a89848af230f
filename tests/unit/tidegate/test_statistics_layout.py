"""What a record adds to the sums of statistics: public bounds, and nothing lost."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from privacy.cell_sum import NO_CELL
from privacy.errors import PeerError, UsageError
from privacy.pipeline import Mode
from privacy.spec import TensorSpec, VectorSpec
from tidegate.job_terms import privacy_terms, statistics_layout, update_spec
from tidegate.jobfile import JobFile
from tidegate.schema import Column, Schema
from tidegate.statistics_layout import ColumnLayout, StatisticsLayout

AGE = Column("age", low=20.0, high=100.0)
GRADE = Column("grade", low=0.0, high=2.0, levels=3)
LAYOUT = StatisticsLayout(Schema((AGE, GRADE)), 4)
JOB = """
[job]
name = "s"
dataset = "credit"
[statistics]
bins = 4
[[columns]]
name = "age"
low = 20.0
high = 100.0
[[columns]]
name = "grade"
levels = 3
[privacy]
{privacy}
[round]
target_sites = 5
"""
RECORD = 'mode = "record-distributed"\nepsilon = 0.5\ndelta_dp = 1e-6\n'


def job(privacy=RECORD):
    return JobFile.parse(JOB.format(privacy=privacy).encode())


def test_the_vector_is_counts_histograms_and_sums():
    assert [(t.name, t.shape) for t in LAYOUT.spec.tensors] == [
        ("records", (1,)),
        ("age/histogram", (7,)),
        ("age/moments", (2,)),
        ("grade/histogram", (5,)),
    ]
    assert LAYOUT.widths_K == (1, 7, 1, 1, 5)
    assert sum(LAYOUT.widths_K) == LAYOUT.spec.length
    assert LAYOUT.model_spec.length == LAYOUT.spec.length + 1


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        *((19.9, 0), (20.0, 1), (39.9, 1), (40.0, 2), (99.9, 4), (100.0, 4), (100.1, 5)),
        *((-math.inf, 0), (math.inf, 5), (math.nan, 6)),
    ],
)
def test_a_bounded_value_is_in_its_bin(value, cell):
    assert ColumnLayout(AGE, 4).cell_of(np.array([value])).tolist() == [cell]


@pytest.mark.parametrize(
    ("value", "cell"),
    [(0, 0), (2, 2), (3, 3), (-1, 3), (0.5, 3), (math.inf, 3), (-math.inf, 3), (math.nan, 4)],
)
def test_a_level_is_in_its_cell_and_no_level_apart(value, cell):
    assert ColumnLayout(GRADE, 3).cell_of(np.array([float(value)])).tolist() == [cell]


ANY = arrays(np.float32, st.tuples(st.integers(0, 8), st.just(2)), elements=st.floats(width=32))


@given(ANY)
def test_no_record_moves_the_vector_by_more_than_the_public_norm(rows):
    cells, values = LAYOUT.cells(rows)
    used = cells != NO_CELL
    assert (cells >= -1).all()
    assert (cells < np.array(LAYOUT.widths_K)).all()
    squares = np.where(used, values.astype(np.float64), 0.0) ** 2
    assert np.isfinite(values[used]).all()
    assert (np.sqrt(squares.sum(axis=1)) <= LAYOUT.norm).all()


@given(ANY)
def test_each_record_is_in_one_cell_of_each_histogram(rows):
    cells, values = LAYOUT.cells(rows)
    assert (cells[:, [0, 1, 4]] != NO_CELL).all()
    assert (values[:, [0, 1, 4]] == 1).all()
    missing = np.isnan(rows[:, 0])
    assert ((cells[:, 1] == 6) == missing).all()
    assert ((cells[:, 2] == NO_CELL) == missing).all()


def test_terms_follow_from_the_columns():
    terms = privacy_terms(job())
    assert terms.clipping_norm == pytest.approx(math.sqrt(1 + 3 + 1))
    assert (terms.rounds, terms.sampling_rate, terms.site_range) == (1, 1.0, 1_000_000)
    plain = privacy_terms(job('mode = "none"\nmax_records = 500'))
    assert (plain.mode, plain.clipping_norm, plain.site_range) == (Mode.NONE, 500, 0)


def test_the_model_must_be_the_sums_of_the_columns():
    assert update_spec(job(), statistics_layout(job()).model_spec) == LAYOUT.spec
    with pytest.raises(PeerError):
        update_spec(job(), VectorSpec((TensorSpec("w", (3,)),)))


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        (RECORD + "clipping_norm = 1.0", "clipping_norm"),
        (RECORD + "expected_batch_size = 10", "expected_batch_size"),
        (RECORD + 'rounding = "sum"', "rounding"),
        (RECORD + 'unit = "user"\nuser_column = "u"\nmax_rows_per_user = 2', "unit"),
        ('mode = "none"\nmax_records = 0', "max_records"),
    ],
)
def test_what_counting_has_no_use_for_is_refused(privacy, message):
    with pytest.raises(UsageError, match=message):
        job(privacy)
