"""What site.toml may say about a data set, which columns are taken, and what is said if none."""

import sys

import numpy as np
import pytest

from edge_node.data.loading import load_dataset
from privacy.errors import UsageError

ROWS = {"a": np.arange(5), "b": 10.5 + np.arange(5), "who": np.array(["x", "y", "x", "z", ""])}


@pytest.fixture
def folder(tmp_path):
    np.savez(tmp_path / "rows.npz", **ROWS)
    return tmp_path


def load(folder, **changes):
    plug = {"loader": "npz", "dataset_id": "loans-2026", "path": "rows.npz"} | changes
    return load_dataset("loans", plug, folder)


def test_columns_come_as_float32_in_the_order_of_the_file(folder):
    data = load(folder)
    assert (data.name, data.dataset_id, len(data)) == ("loans", "loans-2026", 5)
    assert data.columns == ("a", "b")
    assert data.table_NW.dtype == np.float32
    np.testing.assert_array_equal(data.table_NW, np.stack([ROWS["a"], ROWS["b"]], axis=1))
    assert data.left_out == {"who": "text"}


def test_columns_come_in_declared_order_and_no_others(folder):
    assert load(folder, columns=["b", "a"]).columns == ("b", "a")
    data = load(folder, columns=["b"])
    assert data.columns == ("b",)
    assert data.left_out == {"a": "numbers", "who": "text"}


def test_users_and_categories_make_numbers_of_text(folder):
    by_user = load(folder, users=["who"])
    assert by_user.users["who"].tolist() == [0, 1, 0, 2, -1]
    assert by_user.left_out == {}
    by_category = load(folder, categories={"who": ["z", "y", "x"]})
    np.testing.assert_array_equal(by_category.table_NW[:, 2], [2, 1, 2, 0, np.nan])


def test_a_data_set_is_charged_under_its_name_unless_told_otherwise(folder):
    plug = {"loader": "npz", "path": "rows.npz"}
    assert load_dataset("loans", plug, folder).dataset_id == "loans"


def test_numbers_too_large_for_float32_become_infinite_and_are_counted(folder):
    np.savez(folder / "rows.npz", a=np.array([1e300, 1.0]), b=np.array([2**24 + 1, 0]))
    data = load(folder)
    assert data.table_NW[0, 0] == np.inf
    assert data.facts["a"].high == 1e300  # the source's own, so that check_schema sees it
    assert data.facts["b"].high == 2**24 + 1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"path": "gone.npz"}, "there is no file"),
        ({"loader": "parquett"}, "must be one of npz"),
        ({"loader": "os:system; x"}, "must be one of npz"),
        ({"loader": "nowhere_to_be_found:rows"}, "cannot import"),
        ({"loader": ""}, "loader"),
        ({"loader": 7}, "loader"),
        ({"dataset_id": 7}, "dataset_id"),
        ({"dataset_id": "a b"}, "dataset_id"),
        ({"columns": ["zz"]}, "no column 'zz'; it has a, b, who"),
        ({"columns": []}, "columns"),
        ({"columns": ["a", "a"]}, "none twice"),
        ({"columns": "a"}, "columns"),
        ({"columns": ["who"]}, "'who' holds text, no numbers; give its categories"),
        ({"colums": ["a"]}, "did you mean 'columns'"),
        ({"options": {"x": 1}}, "unknown key 'options'"),
        ({"query": "SELECT 1"}, "unknown key 'query'"),
        ({"users": ["whom"]}, "no column 'whom'"),
        ({"users": ["a"], "columns": ["a"]}, "users"),
        ({"users": ["who"], "categories": {"who": ["x", "y"]}}, "users"),
        ({"categories": {"who": ["x"]}}, "at least two"),
        ({"categories": {"who": ["x", "x"]}}, "none twice"),
        ({"categories": {"who": ["x", "y"]}}, "1 texts that its categories do not name"),
        ({"categories": ["x", "y"]}, "categories"),
        ({"categories": {"who": ["x", "y"]}, "columns": ["a"]}, "columns must name 'who'"),
        ({"in_memory_mib": -1}, "in_memory_mib"),
    ],
)
def test_configuration_errors_name_the_table(folder, changes, says):
    with pytest.raises(UsageError, match=says) as caught:
        load(folder, **changes)
    assert "[datasets.loans]" in str(caught.value)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"a": np.arange(3), "b": np.arange(4)}, "'b' has 4 rows, 'a' has 3"),
        ({"a": np.array(["x", "y"])}, "no column of numbers"),
        ({"a": np.zeros(2, dtype=complex)}, "no column of numbers"),
        ({"a": np.float32(3)}, "single value"),
        ({"a": np.zeros((2**40, 0))}, "rows without numbers"),
    ],
)
def test_arrays_of_the_wrong_kind_are_refused(folder, arrays, says):
    np.savez(folder / "rows.npz", **arrays)
    with pytest.raises(UsageError, match=says):
        load(folder)


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def write(body):
        (tmp_path / "my_bank_loader.py").write_text(f"def rows(path, options):\n    {body}\n")
        return {"loader": "my_bank_loader:rows", "options": {"first": 7}}

    yield write
    sys.modules.pop("my_bank_loader", None)


def test_a_python_loader_gets_path_and_options(tmp_path, module):
    plug = module("return {'a': [options['first'], 2, path is None]}")
    np.testing.assert_array_equal(load_dataset("l", plug, tmp_path).table_NW, [[7], [2], [1]])


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return [1, 2]", "mapping from column names"),
        ("return None", "TypeError"),
        ("return {'a': 3}", "single value"),
        ("raise ValueError('no such branch')", "no such branch"),
        ("return ({'a': [1.0]} if n else {'b': [1.0], 'a': [2.0]} for n in range(2))", "left out"),
        ("return ({'a': [1.0]} if n else {'a': ['x']} for n in range(2))", "no column of numbers"),
        ("return ({'a': ['x']} if n else {'a': [1.0]} for n in range(2))", "no numbers"),
        ("return ({'a': [[1.0]]} if n else {'a': [1.0]} for n in range(2))", "shape"),
        ("return {'a': [1.0], 'b': [1.0, 2.0]}", "'b' has a block of shape"),
    ],
)
def test_a_python_loader_that_errs_is_told_so(tmp_path, module, body, says):
    with pytest.raises(UsageError, match=says) as caught:
        load_dataset("l", module(body), tmp_path)
    assert "[datasets.l]" in str(caught.value)


def test_a_missing_library_is_named_with_the_extra(tmp_path, monkeypatch):
    (tmp_path / "x.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        UsageError, match=r"pyarrow is not installed: pip install 'tidegate\[data\]"
    ):
        load_dataset("l", {"loader": "parquet", "path": "x.parquet"}, tmp_path)
