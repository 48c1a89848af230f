"""CSV: both ways to read it give the same table, or the same error."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_node.data import csv_file
from edge_node.data.loading import load_dataset
from privacy.errors import UsageError

pytest.importorskip("pyarrow")
NAN = np.nan
SETTINGS = {
    "deadline": None,
    "derandomize": True,
    "suppress_health_check": [HealthCheck.function_scoped_fixture],
}


def load(folder, text, **changes):
    (folder / "rows.csv").write_bytes(text.encode() if isinstance(text, str) else text)
    plug = {"loader": "csv", "path": "rows.csv"} | changes
    return load_dataset("loans", plug, folder)


def plainly(folder, text, **changes):
    """Read it as without pyarrow."""

    def none(*_):
        raise UsageError("pyarrow is not installed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_file, "_read_with_pyarrow", none)
        return load(folder, text, **changes)


@pytest.mark.parametrize("way", [load, plainly])
def test_every_spelling_of_a_missing_value_is_read(tmp_path, way):
    text = '\ufeff"a", b,c\r\n1,2.5,3\r\n,NA,\r\nnan,null,-1e3\r\n  ,5, N/A \r\n'
    data = way(tmp_path, text)
    assert data.columns == ("a", "b", "c")
    np.testing.assert_array_equal(
        data.table_NW, [[1, 2.5, 3], [NAN, NAN, NAN], [NAN, NAN, -1000], [NAN, 5, NAN]]
    )


@pytest.mark.parametrize("way", [load, plainly])
@pytest.mark.parametrize("text", ["a,b\n", "a,b", "a,b\r\n\r\n\n"])
def test_a_header_only_has_no_rows(tmp_path, way, text):
    assert way(tmp_path, text).table_NW.shape == (0, 2)


@pytest.mark.parametrize("way", [load, plainly])
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n3\n", "line 3 has 1 fields, the header names 2"),
        ("a,b\n1,2,3\n", "line 2 has 3 fields"),
        ("a,b\n1,2\n\n1,two\n", "line 4, column 'b': this is no number"),
        ("a,b\n1,1_0\n", "line 2, column 'b'"),
        ("a,b\n1,0x10\n", "line 2, column 'b'"),
        ("a,a\n1,2\n", "none twice"),
        ("a,\n1,2\n", "name every column"),
        ("", "name every column"),
        (b"a,\xff\n1,2\n", "utf-8"),
        (b"a,b\n1,\xff\n", "line 2"),
        ('a,b\n1,"2\n', "line 2"),
    ],
)
def test_errors_say_what_is_wrong_and_where_and_repeat_no_value(tmp_path, way, text, says):
    with pytest.raises(UsageError, match=says) as caught:
        way(tmp_path, text)
    assert "[datasets.loans]" in str(caught.value)
    assert "rows.csv" in str(caught.value)
    assert "two" not in str(caught.value).replace("none twice", "")


def test_what_pyarrow_refuses_is_read_plainly_from_there_on(tmp_path):
    """Blanks around a missing value, in the third block of the fast way."""
    lines = [f"{n},{n / 8}" for n in range(200_000)]
    lines[150_000] = "1,  NA "
    data = load(tmp_path, "a,b\n" + "\n".join(lines))
    expected = np.stack([np.arange(200_000), np.arange(200_000) / 8], axis=1)
    expected[150_000] = [1, NAN]
    np.testing.assert_array_equal(data.table_NW, expected.astype(np.float32))


cells = st.one_of(
    st.floats(allow_nan=True).map(repr),
    st.integers(-(10**20), 10**20).map(str),
    st.sampled_from(["", "NA", " N/A", "null ", "None", "NaN", "nan", "inf", "-Infinity", '""']),
    st.sampled_from(["+1", "1.", ".5", "1e5", " 7 ", '"3"', '"NA"', "1e999", "-0"]),
    st.sampled_from(["1_0", "0x1", "true", "--1", "1,", "1 2"]),
)
texts = st.sampled_from(["ann", " ann", "Bob ", "NA", "", '"x,y"', '"a ""b"""', "é", " ", "007"])
ends = st.sampled_from(["\n", "\r\n", "\n\n"])


@settings(max_examples=200, **SETTINGS)
@given(st.lists(st.tuples(cells, cells, texts, ends), max_size=5))
def test_both_ways_agree(tmp_path, rows):
    text = "a,b,who\n" + "".join(f"{a},{b},{who}{end}" for a, b, who, end in rows)
    for changes in ({"columns": ["a", "b"]}, {"users": ["who"]}):
        found = []
        for way in (load, plainly):
            try:
                data = way(tmp_path, text, **changes)
                found.append((data.fingerprint, data.facts, len(data)))
            except UsageError as error:
                found.append(str(error))
        assert found[0] == found[1]


@settings(max_examples=50, **SETTINGS)
@given(st.lists(cells, max_size=5))
def test_both_ways_agree_on_a_single_column(tmp_path, rows):
    text = "a\n" + "".join(f"{cell}\n" for cell in rows)
    found = []
    for way in (load, plainly):
        try:
            found.append(way(tmp_path, text).table_NW.tobytes())
        except UsageError as error:
            found.append(str(error))
    assert found[0] == found[1]
