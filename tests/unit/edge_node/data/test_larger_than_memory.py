"""Tables larger than memory: streamed into one private file, taken from there, kept while right."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edge_node.data import kept_table
from edge_node.data.loading import load_dataset
from privacy.errors import UsageError

COLUMNS = 16
ROWS = 600_000  # 37 MiB of float32

# Loads a small file first, so that threads and caches of the libraries are there; then allows
# itself 20 MiB more than that.
SCRIPT = """
import json, resource, sys
from pathlib import Path
import numpy as np
from edge_node.data.loading import load_dataset

folder, loader, mib = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

def load(name, mib):
    plug = {"loader": loader, "path": f"{name}.{loader}", "in_memory_mib": mib}
    return load_dataset(name, plug, folder, folder / "state")

load("small", 0)
status = Path("/proc/self/status").read_text().split()
used = 1024 * int(status[status.index("VmData:") + 1])
resource.setrlimit(resource.RLIMIT_DATA, (used + (20 << 20),) * 2)
data = load("large", mib)
rows = np.random.default_rng(1).integers(0, len(data), 500)
taken = data.take(rows, ("c3", "c0"))
right = bool((taken == np.stack([rows % 100 + 3, rows % 100], axis=1)).all())
print(json.dumps({"rows": len(data), "right": right, "high": data.facts["c3"].high}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's RLIMIT_DATA")
@pytest.mark.parametrize("loader", ["csv", "parquet", "npz"])
def test_a_table_that_memory_cannot_hold_is_loaded_all_the_same(tmp_path, loader):
    for name, rows in (("small", 100), ("large", ROWS)):
        write(tmp_path / f"{name}.{loader}", rows)
    done = run(tmp_path, loader, 1)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"rows": ROWS, "right": True, "high": 102.0}
    assert run(tmp_path, loader, 1024).returncode != 0  # the limit is one


def run(folder, loader, in_memory_mib):
    environment = {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "1",
    }
    command = [sys.executable, "-c", SCRIPT, folder, loader, str(in_memory_mib)]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def write(path, rows):
    """Write a file in which column c of row r is r mod 100 + c, without a table in memory."""
    names = [f"c{n}" for n in range(COLUMNS)]
    block = np.arange(100)[:, None] + np.arange(COLUMNS)
    if path.suffix == ".csv":
        text = "".join(",".join(map(str, row)) + "\n" for row in block.tolist())
        path.write_text(",".join(names) + "\n" + text * (rows // 100))
        return
    table = np.tile(block.astype(np.float32), (rows // 100, 1))
    if path.suffix == ".npz":
        np.savez_compressed(path, **dict(zip(names, table.T, strict=True)))
        return
    pyarrow, library = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    arrow = pyarrow.table({name: table[:, n] for n, name in enumerate(names)})
    library.write_table(arrow, path, row_group_size=20_000)


@pytest.fixture
def plug(tmp_path):
    write_rows(tmp_path, 3000)
    return {"loader": "npz", "path": "x.npz", "users": ["who"], "in_memory_mib": 0}


def write_rows(folder, rows):
    np.savez(folder / "x.npz", a=np.arange(rows), b=np.ones((rows, 2)), who=np.arange(rows) % 7)


def load(folder, plug):
    return load_dataset("d", plug, folder, folder / "state")


def files(folder):
    return sorted(path.name for path in (folder / "state" / "data").iterdir())


def test_the_file_is_private_and_the_same_as_memory(tmp_path, plug):
    small = load_dataset("d", plug | {"in_memory_mib": 1}, tmp_path)
    large = load(tmp_path, plug)
    np.testing.assert_array_equal(large.table_NW, small.table_NW)
    np.testing.assert_array_equal(large.users["who"], small.users["who"])
    assert large.fingerprint == small.fingerprint
    assert large.schema == small.schema
    with pytest.raises(ValueError, match="read-only"):
        large.table_NW[0, 0] = 1
    assert len(files(tmp_path)) == 3
    for path in (tmp_path / "state" / "data").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "state" / "data").stat().st_mode & 0o777 == 0o700


def test_a_kept_file_is_taken_again_without_reading_the_source(tmp_path, plug, monkeypatch):
    first = load(tmp_path, plug)
    monkeypatch.setattr("edge_node.data.loading.TableWriter", None)
    again = load(tmp_path, plug)
    np.testing.assert_array_equal(again.table_NW, first.table_NW)
    np.testing.assert_array_equal(again.users["who"], first.users["who"])
    assert again.facts == first.facts
    assert again.fingerprint == first.fingerprint


def test_a_source_that_changed_is_read_anew_and_its_old_file_removed(tmp_path, plug):
    first = load(tmp_path, plug)
    before = files(tmp_path)
    write_rows(tmp_path, 2999)
    second = load(tmp_path, plug)
    assert len(second) == 2999
    assert len(first.take(np.array([2999]), ("a",))) == 1  # still mapped by whoever has it
    assert not (set(files(tmp_path)) & set(before) - {"d.json"})
    assert len(files(tmp_path)) == 3
    load(tmp_path, plug | {"columns": ["a"]})  # other settings are another table, too
    assert len(files(tmp_path)) == 3


@pytest.mark.parametrize("damage", ["cut", "no-meta", "bad-meta", "no-users"])
def test_a_damaged_file_is_made_anew(tmp_path, plug, damage):
    fingerprint = load(tmp_path, plug).fingerprint
    data = tmp_path / "state" / "data"
    (rows,), (users,) = data.glob("*.rows"), data.glob("*.users")
    if damage == "cut":
        os.truncate(rows, 100)
    elif damage == "no-meta":
        (data / "d.json").unlink()
    elif damage == "bad-meta":
        (data / "d.json").write_text("{")
    else:
        users.unlink()
    assert load(tmp_path, plug).fingerprint == fingerprint
    assert len(files(tmp_path)) == 3


def test_what_a_killed_run_left_behind_is_removed(tmp_path, plug):
    load(tmp_path, plug)
    (tmp_path / "state" / "data" / "d~abc.part").write_bytes(b"rows")
    (tmp_path / "state" / "data" / "other~abc.part").write_bytes(b"rows")
    write_rows(tmp_path, 10)
    load(tmp_path, plug)
    assert "d~abc.part" not in files(tmp_path)
    assert "other~abc.part" in files(tmp_path)


def test_a_source_that_cannot_tell_whether_it_changed_leaves_no_file(tmp_path, monkeypatch):
    (tmp_path / "my_large_loader.py").write_text(
        "def rows(path, options):\n    return {'a': range(5000)}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    data = load(tmp_path, {"loader": "my_large_loader:rows", "in_memory_mib": 0})
    sys.modules.pop("my_large_loader")
    assert data.take(np.array([4999]), ("a",)) == [[4999]]
    assert files(tmp_path) == []


def test_a_source_that_changes_while_it_is_read_is_refused(tmp_path, plug, monkeypatch):
    stamps = iter(["one", "two"])
    monkeypatch.setattr("edge_node.data.arrays.stamp_files", lambda _: next(stamps))
    with pytest.raises(UsageError, match="changed while it was read"):
        load(tmp_path, plug)
    assert files(tmp_path) == []


def test_a_write_that_fails_leaves_the_old_content(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    kept_table.write_private(path, b"old")
    monkeypatch.setattr(os, "fsync", _fail)
    with pytest.raises(OSError, match="no space"):
        kept_table.write_private(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


def _fail(_):
    raise OSError("no space")
