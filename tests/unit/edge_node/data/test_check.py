"""A job's columns against a site's: all that does not fit, in words that give nothing away."""

import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_node.data import from_table
from edge_node.data.check import check_schema, check_users, compare, shares_outside
from edge_node.data.loading import load_dataset
from privacy.errors import PeerError, Reason
from tidegate.schema import MAX_INTEGER, Column, Schema, scalars

SITE = Schema((Column("age"), Column("income"), Column("image", shape=(2, 2))))


def site(age=(20, 30, 40), income=(1.5, np.nan, 3)):
    table = np.zeros((len(age), SITE.width), dtype=np.float32)
    table[:, 0], table[:, 1] = age, income
    return from_table("credit", "loans", SITE, table)


def whole(**changes):
    return Schema((Column("age", "int64", **changes),))


def refusal(data, schema):
    with pytest.raises(PeerError) as caught:
        check_schema(data, schema)
    assert caught.value.reason is Reason.POLICY
    return str(caught.value)


@pytest.mark.parametrize(
    "schema",
    [
        SITE,
        whole(),
        whole(low=0, high=10),
        whole(low=0, high=40, levels=41),
        scalars(("income", "age")),
        Schema((Column("image", shape=(2, 2), low=-1, high=1),)),
    ],
)
def test_columns_that_fit_pass(schema):
    check_schema(site(), schema)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (scalars(("incom",)), "there is no 'incom' (nearest: 'income')"),
        (scalars(("zzz",)), "there is no 'zzz'"),
        (Schema((Column("image"),)), "'image' has shape [2, 2], not []"),
        (Schema((Column("age", shape=(1,)),)), "'age' has shape [], not [1]"),
        (Schema((Column("income", "int64"),)), "'income' is not int64 up to 2^24 throughout"),
        (whole(levels=40), "'age' is not int64 from 0 to 39 throughout"),
        (Schema((Column("income", levels=9),)), "'income' is not float32 from 0 to 8 throughout"),
    ],
)
def test_what_does_not_fit_is_named(schema, says):
    assert says in refusal(site(), schema)


def test_everything_that_does_not_fit_is_named_in_one_message():
    said = refusal(site(), scalars(("agee", "incom", "image", "age", "other")))
    assert [name in said for name in ("'agee'", "'incom'", "'image'", "'other'")] == [True] * 4
    many = refusal(site(), scalars(tuple(f"column-{n:04}" for n in range(4096))))
    assert len(many) < 1000
    assert "and 4088 more" in many


@pytest.mark.parametrize(
    ("value", "high"),
    [
        (2.0**24 + 2, None),
        (-(2.0**24) - 2, None),
        (0.5, None),
        (np.nan, None),
        (np.inf, None),
        (-1, 9),
        (10, 9),
        (0.5, 9),
        (np.nan, 9),
    ],
)
def test_every_way_in_which_values_do_not_fit_is_said_with_the_same_words(value, high):
    """The refusal is one bit a column; it must not be more (and no value may be in it)."""
    schema = whole() if high is None else whole(levels=high + 1)
    data = site(age=(1, value, 3))
    expected = "'age' is not int64 " + ("up to 2^24" if high is None else "from 0 to 9")
    said = refusal(data, schema)
    assert (
        said == f"policy: data set 'credit' does not fit the job's columns: {expected} throughout"
    )
    (mismatch,) = compare(data, schema)
    assert len(mismatch.seen) > len(mismatch.said)


def test_a_whole_number_that_float32_rounds_to_the_bound_is_seen(tmp_path):
    """2^24 + 1 is stored as 2^24: only the source's own value tells."""
    np.savez(tmp_path / "x.npz", age=np.array([MAX_INTEGER + 1]))
    data = load_dataset("credit", {"loader": "npz", "path": "x.npz"}, tmp_path)
    assert data.table_NW[0, 0] == MAX_INTEGER
    assert "up to 2^24" in refusal(data, whole())
    np.savez(tmp_path / "x.npz", age=np.array([MAX_INTEGER, -MAX_INTEGER]))
    check_schema(load_dataset("credit", {"loader": "npz", "path": "x.npz"}, tmp_path), whole())


def test_columns_that_are_kept_back_are_told_from_ones_that_are_not_there(tmp_path):
    np.savez(tmp_path / "x.npz", who=np.arange(3), town=np.array(["a", "b", "a"]), x=np.zeros(3))
    plug = {"loader": "npz", "path": "x.npz", "users": ["who"]}
    data = load_dataset("credit", plug, tmp_path)
    who, town = compare(data, scalars(("who", "town")))
    assert who.said == "'who' tells users apart and is not offered as numbers"
    assert town.said == "'town' is not offered as numbers"
    assert "categories" in town.seen


def test_values_outside_the_bounds_are_logged_and_refuse_nothing(caplog):
    schema = Schema((Column("age", low=25, high=35), Column("income", low=0, high=9)))
    assert shares_outside(site(), schema) == {"age": 2 / 3}
    assert shares_outside(site(income=(-1, np.nan, 3)), schema)["income"] == 0.5
    with caplog.at_level(logging.INFO, logger="edge_node"):
        check_schema(site(), schema)
    assert "outside the job's bounds" in caplog.text
    assert "age" in caplog.text


bounds = st.tuples(st.integers(-5, 5), st.integers(-5, 5)).filter(lambda pair: pair[0] < pair[1])


@settings(deadline=None, derandomize=True)
@given(st.lists(st.sampled_from([*range(-6, 7), np.nan]), max_size=20), bounds)
def test_shares_outside_are_those_counted_one_by_one(values, pair):
    data = from_table("d", "i", ("x",), np.array(values, dtype=np.float32).reshape(-1, 1))
    low, high = map(float, pair)
    known = [value for value in values if not np.isnan(value)]
    outside = [value for value in known if not low <= value <= high]
    expected = {"x": len(outside) / len(known)} if outside else {}
    assert shares_outside(data, Schema((Column("x", low=low, high=high),))) == expected


def test_an_empty_data_set_fits_any_kind():
    data = from_table("d", "i", ("age",), np.empty((0, 1), dtype=np.float32))
    check_schema(data, whole(levels=3))


def test_users_that_cannot_be_told_apart_refuse_the_job():
    check_users(site(), "age")
    with pytest.raises(PeerError, match="offers no column 'income'") as caught:
        check_users(site(), "income")
    assert caught.value.reason is Reason.POLICY
