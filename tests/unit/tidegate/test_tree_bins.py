import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.schema import Column
from tidegate.tree_bins import as_edges, bin_values, equal_edges, log_edges, width_of

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=True)


def test_equal_edges_cut_the_declared_range():
    assert equal_edges(Column("x", low=0.0, high=8.0), 4) == (2.0, 4.0, 6.0)


@pytest.mark.parametrize(
    "column",
    [Column("x", levels=4, low=0.0, high=3.0), Column("x", dtype="int64", low=0.0, high=3.0)],
)
def test_whole_numbers_get_a_bin_each_where_there_are_enough(column):
    assert equal_edges(column, 4) == (0.5, 1.5, 2.5)
    assert len(equal_edges(column, 2)) == 1


def test_log_edges_are_fine_where_values_are_small():
    edges = log_edges(Column("x", low=10.0, high=1010.0), 8)
    assert len(edges) == 7
    assert 10 < edges[0] < 12
    assert (np.diff(edges) > 0).all()
    assert np.diff(edges)[-1] > 50 * np.diff(edges)[0]


def test_edges_that_are_one_in_single_precision_are_one():
    assert as_edges([1.0, 1.0 + 1e-12, 2.0]) == (1.0, 2.0)


@settings(max_examples=40, deadline=None)
@given(st.lists(FLOATS, min_size=1, max_size=20), st.lists(FLOATS, max_size=8))
def test_a_bin_says_the_same_as_comparing_with_its_edge(values, cuts):
    edges = as_edges([cut for cut in cuts if np.isfinite(cut)])
    column = np.array(values, dtype=np.float32)[:, np.newaxis]
    bins = bin_values(column, [edges])[:, 0]
    for place, edge in enumerate(edges):
        assert ((bins <= place) == (column[:, 0] < np.float32(edge))).all()
    assert bins.max() <= len(edges)


def test_missing_values_have_the_last_bin_and_infinities_the_outer_ones():
    values = np.array([[np.nan], [-np.inf], [np.inf], [1.0]], np.float32)
    assert bin_values(values, [(0.0, 1.0)])[:, 0].tolist() == [3, 0, 2, 2]
    assert width_of((0.0, 1.0)) == 4
    assert bin_values(values, [()])[:, 0].tolist() == [1, 0, 0, 0]
