"""Rows by schema, rows by user: against the slowest way to say the same."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_node.data import from_table
from edge_node.data.groups import group_rows
from privacy.errors import UsageError
from tidegate.schema import Column, Schema, scalars

SITE = Schema((Column("a"), Column("image", shape=(2, 3)), Column("b"), Column("pair", shape=(2,))))


def site(rows=7):
    table = np.arange(rows * SITE.width, dtype=np.float32).reshape(rows, SITE.width)
    return from_table("d", "i", SITE, table)


orders = st.lists(st.sampled_from(SITE.columns), unique=True, min_size=1)
rows = st.lists(st.integers(0, 6), max_size=9)


@settings(deadline=None, derandomize=True)
@given(orders, rows)
def test_rows_lie_as_the_schema_asked_for_says(columns, indices):
    data, schema = site(), Schema(tuple(columns))
    taken = data.take_rows(np.array(indices, dtype=np.int64), schema)
    assert taken.shape == (len(indices), schema.width)
    assert taken.dtype == np.float32
    assert taken.flags.c_contiguous
    for row, index in enumerate(indices):
        for column in columns:
            here, there = schema.places[column.name], SITE.places[column.name]
            np.testing.assert_array_equal(taken[row, here], data.table_NW[index, there])


def test_few_numbers_of_a_wide_row_are_gathered_alike():
    names = tuple(f"c{n}" for n in range(50))
    data = from_table("d", "i", names, np.arange(500, dtype=np.float32).reshape(10, 50))
    taken = data.take_rows(np.array([9, 0]), scalars(("c40", "c3", "c7")))
    np.testing.assert_array_equal(taken, [[490, 453, 457], [40, 3, 7]])


def test_what_is_taken_is_a_copy_and_the_table_is_closed_to_writes():
    data = site()
    everything = data.take_rows(np.arange(7), SITE)
    everything[:] = -1
    np.testing.assert_array_equal(data.take(np.array([0]), ("a", "b")), [[0, 7]])
    with pytest.raises(ValueError, match="read-only"):
        data.table_NW[0, 0] = 1


def test_single_numbers_are_what_a_job_without_columns_gets():
    data = site()
    assert data.columns == ("a", "b")
    assert data.scalars == scalars(("a", "b"))
    assert data.take(np.array([], dtype=np.int64), data.columns).shape == (0, 2)


@pytest.mark.parametrize(
    ("column", "says"),
    [(Column("x"), "no column 'x'"), (Column("image", shape=(6,)), r"shape \[2, 3\], not \[6\]")],
)
def test_a_column_that_is_not_there_is_named(column, says):
    with pytest.raises(UsageError, match=says):
        site().take_rows(np.arange(2), Schema((column,)))


codes = st.lists(st.integers(-1, 5), max_size=30)


@settings(deadline=None, derandomize=True)
@given(codes, st.integers(1, 6))
def test_each_user_has_its_own_rows_in_order_and_no_more_than_allowed(codes, most):
    groups = group_rows(np.array(codes, dtype=np.int64))
    users = sorted({code for code in codes if code >= 0})
    assert len(groups) == len(users)
    indices, valid = groups.rows_of(np.arange(len(users)), most)
    assert indices.shape == valid.shape == (len(users), most)
    for place, user in enumerate(users):
        mine = [row for row, code in enumerate(codes) if code == user][:most]
        assert indices[place][valid[place]].tolist() == mine
        assert not indices[place][~valid[place]].any()


@settings(deadline=None, derandomize=True)
@given(codes, codes)
def test_one_user_more_changes_no_other_users_rows(before, after):
    """The sensitivity of a user's sum rests on this."""
    base = np.array([*before, 9, *after], dtype=np.int64)
    with_user, without = group_rows(base), group_rows(np.where(base == 9, -1, base))
    n_users = len(without)
    rows, valid = with_user.rows_of(np.arange(n_users), 3)  # 9 sorts last
    others, others_valid = without.rows_of(np.arange(n_users), 3)
    np.testing.assert_array_equal(rows, others)
    np.testing.assert_array_equal(valid, others_valid)


def test_no_user_is_drawn_and_at_least_one_row_must_be_allowed():
    groups = group_rows(np.array([-1, -1]))
    indices, valid = groups.rows_of(np.array([], dtype=np.int64), 4)
    assert indices.shape == valid.shape == (0, 4)
    with pytest.raises(ValueError, match="at least 1"):
        groups.rows_of(np.array([], dtype=np.int64), 0)


def test_whole_numbers_tell_users_apart_and_a_row_without_one_is_nobodys():
    table = np.array([[5], [7], [np.nan], [5], [7], [5]], dtype=np.float32)
    groups = from_table("d", "i", ("who",), table).groups("who")
    indices, valid = groups.rows_of(np.arange(2), 4)
    assert [row[there].tolist() for row, there in zip(indices, valid, strict=True)] == [
        [0, 3, 5],
        [1, 4],
    ]


@pytest.mark.parametrize(
    ("values", "column", "says"),
    [
        ([1.5, 2], "who", "whole numbers"),
        ([2.0**24, 2.0**24 + 2], "who", "whole numbers"),  # float32 merges such users
        ([1, np.inf], "who", "whole numbers"),
        ([1, 2], "whom", "no column 'whom'"),
    ],
)
def test_a_column_that_cannot_tell_users_apart_is_refused(values, column, says):
    data = from_table("d", "i", ("who",), np.array(values, dtype=np.float32).reshape(-1, 1))
    with pytest.raises(UsageError, match=says) as caught:
        data.groups(column)
    assert "users = [...]" in str(caught.value)


def test_the_fingerprint_follows_names_values_and_order():
    def of(names, values):
        return from_table("d", "i", names, np.array(values, dtype=np.float32)).fingerprint

    base = of(("a", "b"), [[1, 2], [3, 4]])
    assert base == of(("a", "b"), [[1, 2], [3, 4]])
    others = [
        of(("a", "c"), [[1, 2], [3, 4]]),
        of(("b", "a"), [[1, 2], [3, 4]]),
        of(("a", "b"), [[3, 4], [1, 2]]),
        of(("a", "b"), [[1, 2], [3, np.nan]]),
        of(("a", "b"), [[1, 2], [3, 4], [0, 0]]),
    ]
    assert len({base, *others}) == 6


def test_rows_do_not_show_in_the_repr():
    data = from_table("d", "i", ("a",), np.full((1, 1), 4242, dtype=np.float32))
    assert "4242" not in repr(data)
    assert "4242" not in repr(data.groups("a"))
