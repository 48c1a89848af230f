"""The columns of a job: what may be declared, and where each lies in a row."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.errors import UsageError
from tidegate.schema import MAX_INTEGER, Column, Schema, read_schema, scalars
from tidegate.toml_table import Table


def read(text):
    return read_schema(Table.parse(text.encode(), "job.toml", ("columns",)))


def column(**values):
    lines = (f"{key} = {value}" for key, value in ({"name": '"x"'} | values).items())
    return "[[columns]]\n" + "\n".join(lines) + "\n"


def test_a_job_without_columns_has_no_schema():
    assert read("") is None


def test_every_key_of_a_column_is_read():
    text = (
        column(name='"age"', dtype='"int64"', low=18, high=120)
        + column(name='"image"', shape="[3, 2, 2]", low=0, high=1)
        + column(name='"grade"', dtype='"int64"', levels=5)
        + column(name='"note"')
    )
    schema = read(text)
    assert schema == Schema(
        (
            Column("age", "int64", (), 18.0, 120.0),
            Column("image", "float32", (3, 2, 2), 0.0, 1.0),
            Column("grade", "int64", (), 0.0, 4.0, 5),
            Column("note"),
        )
    )
    assert schema.width == 15
    assert schema.places["image"] == slice(1, 13)
    assert schema.places["note"] == slice(14, 15)
    assert schema["grade"].levels == 5
    assert "grade" in schema
    assert "grades" not in schema
    assert [c.is_bounded for c in schema.columns] == [True, True, True, False]


@given(st.lists(st.lists(st.integers(1, 5), max_size=3), min_size=1, max_size=8))
def test_the_places_of_columns_tile_the_row(shapes):
    schema = Schema(tuple(Column(f"c{n}", shape=tuple(s)) for n, s in enumerate(shapes)))
    covered = [place for c in schema.columns for place in range(*_ends(schema.places[c.name]))]
    assert covered == list(range(schema.width))


def _ends(place):
    return place.start, place.stop


def test_equal_schemas_are_one_key():
    assert {scalars(("a", "b")): 1}[scalars(("a", "b"))] == 1
    assert scalars(("a", "b")) != scalars(("b", "a"))
    with pytest.raises(KeyError):
        scalars(("a",))["b"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (column() + column(), "must differ"),
        (column(low=1), "high"),
        (column(high=1), "low"),
        (column(low=2, high=2), "above low"),
        (column(levels=3, low=0, high=2), "levels"),
        (column(levels=1), "levels"),
        (column(dtype='"int64"', low=0, high=MAX_INTEGER + 1), "int64"),
        (column(dtype='"int64"', low=-MAX_INTEGER - 1, high=0), "int64"),
        (column(dtype='"int46"'), "did you mean 'int64'"),
        (column(shape="[0]"), "shape"),
        (column(shape="[1, 1, 1, 1, 1, 1, 1, 1, 1]"), "shape"),
        (column(shape="[16777216, 16777216]"), "numbers a record"),
        (column(low="nan", high=1), "low"),
        (column(low=0, high="inf"), "high"),
        (column(name='"a b"'), "name"),
        (column(name='""'), "name"),
        (column(level=3), "did you mean 'levels'"),
        ("[[columns]]\n", "name is missing"),
        ("[columns]\n", "array"),
    ],
)
def test_a_wrong_column_is_refused_by_key(text, says):
    with pytest.raises(UsageError, match=says) as caught:
        read(text)
    assert "columns" in str(caught.value)
