"""The same content gives the same table, facts and users, whatever file it comes in."""

import contextlib
import csv
import sqlite3
import sys
import types

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_node.data.loading import load_dataset

torch = pytest.importorskip("torch")
pyarrow = pytest.importorskip("pyarrow")

SETTINGS = {
    "deadline": None,
    "derandomize": True,
    "suppress_health_check": [HealthCheck.function_scoped_fixture],
}
GRADES = ("low", "mid", "high")
numbers = st.floats(width=32, allow_infinity=False) | st.integers(-(2**24), 2**24)
values = numbers.map(lambda value: value + 0.0)  # SQLite keeps no sign of zero
records = st.lists(
    st.tuples(
        values,
        st.integers(-(2**30), 2**30),
        st.sampled_from([*GRADES, None]),
        st.sampled_from(["ann", "Bob", "ünï", "x,y", 'say "so"', None]),
    ),
    min_size=1,
    max_size=12,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("plugs")


def load(folder, **plug):
    common = {"users": ["who"], "categories": {"grade": list(GRADES)}}
    return load_dataset("d", {**common, **plug}, folder)


def columns_of(records):
    """As numpy has them: no missing text, so the empty one stands for it."""
    real, whole, grade, who = zip(*records, strict=True)
    return {
        "real": np.array(real, dtype=np.float64),
        "whole": np.array(whole, dtype=np.int64),
        "grade": np.array([text or "" for text in grade]),
        "who": np.array([text or "" for text in who]),
    }


def arrow_of(records):
    real, whole, grade, who = zip(*records, strict=True)
    return pyarrow.table(
        {
            "real": pyarrow.array([float(v) for v in real], pyarrow.float64(), from_pandas=True),
            "whole": pyarrow.array(whole, pyarrow.int32()),
            "grade": pyarrow.array(grade, pyarrow.string()).dictionary_encode(),
            "who": pyarrow.array(who, pyarrow.string()),
        }
    )


def with_npz(folder, records):
    np.savez_compressed(folder / "d.npz", **columns_of(records))
    return load(folder, loader="npz", path="d.npz")


def with_csv(folder, records):
    with (folder / "d.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["real", "whole", "grade", "who"])
        writer.writerows(records)
    return load(folder, loader="csv", path="d.csv")


def with_parquet(folder, records):
    import pyarrow.parquet as library

    library.write_table(arrow_of(records), folder / "d.parquet", row_group_size=5)
    return load(folder, loader="parquet", path="d.parquet")


def with_sql(folder, records):
    (folder / "url").write_text("sqlite:///d.db")
    (folder / "url").chmod(0o600)
    (folder / "d.db").unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(folder / "d.db")) as database:
        database.execute("CREATE TABLE d (real REAL, whole INT, grade TEXT, who TEXT)")
        database.executemany("INSERT INTO d VALUES (?, ?, ?, ?)", records)
        database.commit()
    query = "SELECT real, whole, grade, who FROM d ORDER BY rowid"
    return load(folder, loader="sql", url_file="url", query=query)


def with_function(folder, records):
    module = types.ModuleType("a_sites_own_loader")
    whole = columns_of(records)
    half = len(records) // 2
    module.rows = lambda path, options: (
        {name: array[part] for name, array in whole.items()}
        for part in (slice(half), slice(half, None))
    )
    sys.modules[module.__name__] = module
    try:
        return load(folder, loader="a_sites_own_loader:rows")
    finally:
        del sys.modules[module.__name__]


OTHERS = (with_csv, with_parquet, with_sql, with_function)


@settings(max_examples=20, **SETTINGS)
@given(records)
def test_every_plug_gives_the_same(folder, records):
    first = with_npz(folder, records)
    real, whole, grade, _ = zip(*records, strict=True)
    codes = [np.nan if text is None else GRADES.index(text) for text in grade]
    expected = np.array([real, whole, codes]).T.astype(np.float32)
    np.testing.assert_array_equal(first.table_NW, expected)
    for plug in OTHERS:
        other = plug(folder, records)
        assert other.columns == first.columns
        np.testing.assert_array_equal(other.table_NW, first.table_NW, err_msg=plug.__name__)
        assert other.facts == first.facts, plug.__name__
        assert other.fingerprint == first.fingerprint, plug.__name__
        np.testing.assert_array_equal(other.users["who"], first.users["who"])


shapes = st.sampled_from([(), (1,), (3,), (2, 2)])


@settings(max_examples=10, **SETTINGS)
@given(st.lists(shapes, min_size=1, max_size=4), st.integers(1, 9))
def test_shaped_columns_are_the_same_in_each_file_of_arrays(folder, shapes, n_rows):
    from pyarrow import parquet
    from safetensors.numpy import save_file

    source = np.random.default_rng(len(shapes))
    arrays = {f"c{n}": source.normal(size=(n_rows, *s)) for n, s in enumerate(shapes)}
    tables = []
    np.savez(folder / "s.npz", **arrays)
    tables.append(load_dataset("d", {"loader": "npz", "path": "s.npz"}, folder))
    save_file(arrays, folder / "s.safetensors")
    tables.append(load_dataset("d", {"loader": "safetensors", "path": "s.safetensors"}, folder))
    torch.save({name: torch.from_numpy(a) for name, a in arrays.items()}, folder / "s.pt")
    tables.append(load_dataset("d", {"loader": "torch", "path": "s.pt"}, folder))
    parquet.write_table(pyarrow.table({n: nested(a) for n, a in arrays.items()}), folder / "s.pq")
    tables.append(load_dataset("d", {"loader": "parquet", "path": "s.pq"}, folder))
    expected = np.concatenate([a.reshape(n_rows, -1) for a in arrays.values()], axis=1)
    for table in tables:
        assert table.schema == tables[0].schema
        assert tuple(column.shape for column in table.schema.columns) == tuple(shapes)
        np.testing.assert_array_equal(table.table_NW, expected.astype(np.float32))
        assert table.fingerprint == tables[0].fingerprint


def nested(array):
    """As Arrow's lists of lists, fixed in length on the inside only."""
    flat = pyarrow.array(array.reshape(-1))
    for size in array.shape[:1:-1]:
        flat = pyarrow.FixedSizeListArray.from_arrays(flat, size)
    if array.ndim == 1:
        return flat
    offsets = np.arange(array.shape[0] + 1, dtype=np.int32) * array.shape[1]
    return pyarrow.ListArray.from_arrays(pyarrow.array(offsets), flat)


def test_hugging_face_folders_and_their_splits(folder):
    library = pytest.importorskip("datasets")
    records = [(0.5, 7, "mid", "ann"), (float("nan"), -3, None, "ann"), (2.0, 2**20, "low", None)]
    expected = with_npz(folder, records)
    library.disable_progress_bars()
    plain = library.Dataset(arrow_of(records))
    plain.save_to_disk(folder / "hf")
    library.DatasetDict({"train": plain, "test": plain.select([0])}).save_to_disk(folder / "dict")
    for plug in ({"path": "hf"}, {"path": "dict", "split": "train"}):
        data = load(folder, loader="huggingface", **plug)
        assert data.fingerprint == expected.fingerprint
        assert data.facts == expected.facts
    assert len(load(folder, loader="huggingface", path="dict", split="test")) == 1


def test_parquet_folders_are_read_in_order_of_name(folder):
    import pyarrow.parquet as library

    parts = folder / "parts"
    parts.mkdir()
    for name, value in (("b", 2.0), ("a", 1.0), ("c", 3.0)):
        library.write_table(pyarrow.table({"x": [value]}), parts / f"{name}.parquet")
    data = load_dataset("d", {"loader": "parquet", "path": "parts"}, folder)
    np.testing.assert_array_equal(data.table_NW, [[1], [2], [3]])


@pytest.mark.parametrize("order", ["C", "F"])
def test_one_array_is_named_as_a_whole_or_by_column(folder, order):
    array = np.asarray(np.arange(12, dtype=np.int16).reshape(4, 3), order=order)
    np.save(folder / "m.npy", array)
    torch.save(torch.from_numpy(array.copy()).to(torch.bfloat16), folder / "m.pt")
    np.savez(folder / "m.npz", all=array)
    for loader, path in (("npy", "m.npy"), ("torch", "m.pt")):
        plug = {"loader": loader, "path": path}
        apart = load_dataset("d", {**plug, "columns": ["a", "b", "c"]}, folder)
        whole = load_dataset("d", {**plug, "columns": ["all"]}, folder)
        assert apart.columns == ("a", "b", "c")
        assert whole.schema["all"].shape == (3,)
        np.testing.assert_array_equal(apart.table_NW, array)
        np.testing.assert_array_equal(whole.table_NW, array)
    np.testing.assert_array_equal(
        load_dataset("d", {"loader": "npz", "path": "m.npz"}, folder).table_NW, array
    )


def test_a_structured_array_names_its_own_columns(folder):
    array = np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "<i4"), ("b", "<f8")])
    np.save(folder / "r.npy", array)
    data = load_dataset("d", {"loader": "npy", "path": "r.npy"}, folder)
    assert data.columns == ("a", "b")
    np.testing.assert_array_equal(data.table_NW, [[1, 2.5], [3, 4.5]])


def test_users_beyond_what_float32_holds_stay_apart(folder):
    """2^24 and 2^24 + 1 are one float32: two persons must not become one."""
    who = np.array([2**24, 2**24 + 1, 2**24, 2**62 + 1, 2**62])
    np.savez(folder / "u.npz", who=who, x=np.arange(5.0))
    plug = {"loader": "npz", "path": "u.npz", "users": ["who"]}
    data = load_dataset("d", plug, folder)
    assert data.users["who"].tolist() == [0, 1, 0, 2, 3]
    assert data.columns == ("x",)
