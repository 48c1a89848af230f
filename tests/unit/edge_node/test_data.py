"""The site's data plug: what it reads, and what it says when it cannot."""

import sys
from pathlib import Path

import numpy as np
import pytest

from edge_node.data import from_table
from edge_node.data.loading import load_dataset
from privacy.errors import UsageError


def table(**changes):
    return {"loader": "npz", "dataset_id": "loans-2026", "path": "rows.npz"} | changes


def load(folder, **changes):
    return load_dataset("loans", table(**changes), folder)


def test_npz_columns_come_as_float32_in_declared_order(tmp_path):
    np.savez(tmp_path / "rows.npz", age=np.arange(4), debt=np.array([0.5, np.nan, 2, 3]))
    data = load(tmp_path, columns=["debt", "age"])
    assert data.columns == ("debt", "age")
    assert data.dataset_id == "loans-2026"
    assert len(data) == 4
    assert data.table_NW.dtype == np.float32
    np.testing.assert_array_equal(
        data.table_NW, np.array([[0.5, 0], [np.nan, 1], [2, 2], [3, 3]], dtype=np.float32)
    )


def test_take_copies_rows_and_columns_in_the_order_asked_for(tmp_path):
    np.savez(tmp_path / "rows.npz", a=np.arange(5), b=10 + np.arange(5), c=20 + np.arange(5))
    data = load(tmp_path)
    taken = data.take(np.array([4, 0]), ("c", "a"))
    np.testing.assert_array_equal(taken, [[24, 4], [20, 0]])
    taken[:] = -1  # a caller that writes must not change the site's data
    np.testing.assert_array_equal(data.take(np.array([4]), ("a", "b", "c")), [[4, 14, 24]])
    assert data.take(np.array([], dtype=np.int64), ("b",)).shape == (0, 1)


def test_take_names_a_missing_column(tmp_path):
    np.savez(tmp_path / "rows.npz", a=np.arange(5))
    data = load(tmp_path)
    with pytest.raises(UsageError, match="has no column"):
        data.take(np.arange(2), ["a", "x"])


def test_the_table_cannot_be_written_to(tmp_path):
    np.savez(tmp_path / "rows.npz", a=np.arange(5))
    with pytest.raises(ValueError, match="read-only"):
        load(tmp_path).table_NW[0, 0] = 1


def test_csv_reads_every_spelling_of_a_missing_value(tmp_path):
    (tmp_path / "rows.csv").write_text(
        '\ufeff"a", b,c\r\n1,2.5,3\r\n,NA,\r\nnan,null,-1e3\r\n  ,5, N/A \r\n', encoding="utf-8"
    )
    data = load(tmp_path, loader="csv", path="rows.csv")
    nan = np.nan
    assert data.columns == ("a", "b", "c")
    np.testing.assert_array_equal(
        data.table_NW, [[1, 2.5, 3], [nan, nan, nan], [nan, nan, -1000], [nan, 5, nan]]
    )


def test_csv_with_a_header_only_has_no_rows(tmp_path):
    (tmp_path / "rows.csv").write_text("a,b\n")
    assert len(load(tmp_path, loader="csv", path="rows.csv")) == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n3\n", "columns"),
        ("a,b\n1,2,3\n", "names 2 columns"),
        ("a,b\n1,two\n", "two"),
        ("a,a\n1,2\n", "none twice"),
        ("a,\n1,2\n", "name every column"),
    ],
)
def test_csv_errors_say_what_is_wrong_and_where(tmp_path, text, says):
    (tmp_path / "rows.csv").write_text(text)
    with pytest.raises(UsageError, match=says) as caught:
        load(tmp_path, loader="csv", path="rows.csv")
    assert "[datasets.loans]" in str(caught.value)
    assert "rows.csv" in str(caught.value)


class Trap:
    """An object that leaves a file behind when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_an_archive_with_pickled_objects_is_refused_and_not_run(tmp_path):
    np.savez(tmp_path / "rows.npz", a=np.array([Trap(tmp_path / "ran")], dtype=object))
    with pytest.raises(UsageError, match="plain number arrays"):
        load(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"a": np.arange(3), "b": np.arange(4)}, "'b' has 4 rows, 'a' has 3"),
        ({"a": np.array(["x", "y"])}, "must be a list of numbers"),
        ({"a": np.zeros((2, 2))}, "must be a list of numbers"),
        ({"a": np.zeros(2, dtype=complex)}, "must be a list of numbers"),
    ],
)
def test_columns_of_the_wrong_kind_are_refused(tmp_path, arrays, says):
    np.savez(tmp_path / "rows.npz", **arrays)
    with pytest.raises(UsageError, match=says):
        load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"path": "gone.npz"}, "there is no file"),
        ({"loader": "parquet"}, "loader must be"),
        ({"loader": "os:system; x"}, "loader must be"),
        ({"loader": "nowhere_to_be_found:rows"}, "cannot import"),
        ({"loader": ""}, "loader must be given"),
        ({"dataset_id": 7}, "dataset_id must be given"),
        ({"columns": ["zz"]}, "no column"),
        ({"columns": "a"}, "list of names"),
        ({"colums": ["a"]}, "unknown keys"),
        ({"options": {"x": 1}}, "takes no options"),
    ],
)
def test_configuration_errors_name_the_table(tmp_path, changes, says):
    np.savez(tmp_path / "rows.npz", a=np.arange(3))
    with pytest.raises(UsageError, match=says) as caught:
        load(tmp_path, **changes)
    assert "[datasets.loans]" in str(caught.value)


def test_a_damaged_archive_is_refused(tmp_path):
    (tmp_path / "rows.npz").write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(UsageError, match=r"rows\.npz"):
        load(tmp_path)


def test_a_python_loader_gets_path_and_options(tmp_path, monkeypatch):
    (tmp_path / "my_bank_loader.py").write_text(
        "def rows(path, options):\n    return {'a': [options['first'], 2, path is None]}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    declared = {
        "loader": "my_bank_loader:rows",
        "dataset_id": "x",
        "options": {"first": 7},
    }
    data = load_dataset("loans", declared, tmp_path)
    sys.modules.pop("my_bank_loader")
    np.testing.assert_array_equal(data.table_NW, [[7], [2], [1]])


def test_rows_do_not_show_in_the_repr():
    data = from_table("d", "i", ("a",), np.full((1, 1), 4242, dtype=np.float32))
    assert "4242" not in repr(data)
