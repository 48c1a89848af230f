"""Files that lie, unpickle, explode or end early: one clear refusal, and nothing run."""

import io
import pickle
import shutil
import struct
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from edge_node.data.loading import load_dataset
from privacy.errors import UsageError


class Trap:
    """An object that leaves a file behind when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def refusal(folder, loader, path, **changes):
    plug = {"loader": loader, "path": path} | changes
    with pytest.raises(UsageError) as caught:
        load_dataset("d", plug, folder)
    message = str(caught.value)
    assert "[datasets.d]" in message
    assert path in message
    assert "\n" not in message
    return message


@pytest.fixture
def trap(tmp_path):
    yield Trap(tmp_path / "ran")
    assert not (tmp_path / "ran").exists()


def test_a_pickle_in_an_npz_is_refused_and_not_run(tmp_path, trap):
    np.savez(tmp_path / "x.npz", a=np.array([trap], dtype=object))
    assert "Python objects" in refusal(tmp_path, "npz", "x.npz")


def test_a_pickle_in_an_npy_is_refused_and_not_run(tmp_path, trap):
    np.save(tmp_path / "x.npy", np.array([trap], dtype=object))
    refusal(tmp_path, "npy", "x.npy", columns=["a"])
    (tmp_path / "y.npy").write_bytes(pickle.dumps(trap))
    refusal(tmp_path, "npy", "y.npy", columns=["a"])


def test_a_pickle_in_a_pt_is_refused_and_not_run(tmp_path, trap):
    torch = pytest.importorskip("torch")
    torch.save({"a": trap}, tmp_path / "x.pt")
    assert "no .pt file of plain tensors" in refusal(tmp_path, "torch", "x.pt")
    (tmp_path / "y.pt").write_bytes(pickle.dumps(trap))
    refusal(tmp_path, "torch", "y.pt")
    torch.save({"a": torch.zeros(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    refusal(tmp_path, "torch", "old.pt")


def test_a_pt_of_anything_but_plain_tensors_is_refused(tmp_path):
    torch = pytest.importorskip("torch")
    for content in (
        [torch.zeros(2)],
        {"a": [1.0]},
        {3: torch.zeros(2)},
        {"a": torch.eye(2).to_sparse()},
        {"a": torch.zeros(2, dtype=torch.complex64)},
        {"a": torch.nn.Parameter(torch.zeros(2))},
        {"a": torch.zeros(2), "b": 1},
        {},
    ):
        torch.save(content, tmp_path / "x.pt")
        refusal(tmp_path, "torch", "x.pt")


def npy(header, data=b""):
    padded = header.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded + data


def npz(folder, content, **changes):
    with zipfile.ZipFile(folder / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", content)
    return refusal(folder, "npz", "x.npz", **changes)


def test_an_npz_whose_header_promises_more_than_is_there_is_refused(tmp_path):
    header = "{'descr': '<f8', 'fortran_order': False, 'shape': (%s,)}"
    assert "not as long" in npz(tmp_path, npy(header % 10**15, bytes(16)))
    assert "not as long" in npz(tmp_path, npy(header % 1, bytes(16)))
    npz(tmp_path, npy(header % -1, bytes(16)))
    npz(tmp_path, npy("{'descr': '<f8'", bytes(16)))
    npz(tmp_path, npy("-" * 118))
    npz(tmp_path, npy("__import__('os').getcwd()", bytes(16)))
    npz(tmp_path, b"\x93NUMPY\x09\x00" + bytes(64))
    npz(tmp_path, b"")


def test_a_header_of_absurd_size_is_refused_unparsed(tmp_path):
    header = b"{" + b"[" * 100_000
    raw = b"\x93NUMPY\x02\x00" + struct.pack("<I", len(header)) + header
    npz(tmp_path, raw)
    (tmp_path / "x.npy").write_bytes(raw)
    refusal(tmp_path, "npy", "x.npy", columns=["a"])
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", 2**40) + b"{}")
    refusal(tmp_path, "safetensors", "x.safetensors")


def test_an_npz_that_unpacks_beyond_memory_and_disk_is_stopped(tmp_path, monkeypatch):
    """64 MiB of zeros in 64 KiB: it may not fill memory without a folder, nor a disk with one."""
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros(2**24, dtype=np.float32))
    assert (tmp_path / "x.npz").stat().st_size < 2**17
    plug = {"loader": "npz", "path": "x.npz", "in_memory_mib": 16}
    with pytest.raises(UsageError, match="larger than in_memory_mib"):
        load_dataset("d", plug, tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=64 << 20))
    with pytest.raises(UsageError, match="does not fit on the disk"):
        load_dataset("d", plug, tmp_path, tmp_path / "state")
    assert not list((tmp_path / "state" / "data").iterdir())


@pytest.mark.parametrize("loader", ["npz", "npy", "safetensors", "torch", "parquet"])
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not really", b"PAR1PAR1", bytes(4096)])
def test_garbage_is_refused(tmp_path, loader, content):
    (tmp_path / "x.bin").write_bytes(content)
    refusal(tmp_path, loader, "x.bin", columns=["a"])


@pytest.mark.parametrize("loader", ["npz", "npy", "safetensors", "torch", "parquet"])
def test_a_file_that_ends_early_or_was_damaged_is_refused(tmp_path, loader):
    """Cut anywhere it is refused; a flipped byte may change a value, but never crashes."""
    whole = good(loader)
    for end in range(0, len(whole), max(1, len(whole) // 23)):
        (tmp_path / "x.bin").write_bytes(whole[:end])
        refusal(tmp_path, loader, "x.bin", columns=["a"])
    for place in range(0, len(whole), max(1, len(whole) // 41)):
        flipped = bytearray(whole)
        flipped[place] ^= 0xFF
        (tmp_path / "x.bin").write_bytes(flipped)
        try:
            plug = {"loader": loader, "path": "x.bin", "columns": ["a"]}
            load_dataset("d", plug, tmp_path)
        except UsageError:
            continue


def good(loader):
    file = io.BytesIO()
    values = np.arange(500, dtype=np.float32)
    if loader == "npz":
        np.savez_compressed(file, a=values)
    elif loader == "npy":
        np.save(file, values)
    elif loader == "safetensors":
        from safetensors.numpy import save

        file.write(save({"a": values}))
    elif loader == "torch":
        torch = pytest.importorskip("torch")
        torch.save({"a": torch.from_numpy(values)}, file)
    else:
        pyarrow, library = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        library.write_table(pyarrow.table({"a": values}), file)
    return file.getvalue()


def test_a_folder_that_is_no_saved_data_set_is_refused(tmp_path):
    pytest.importorskip("datasets")
    (tmp_path / "hf").mkdir()
    refusal(tmp_path, "huggingface", "hf")
    (tmp_path / "hf" / "state.json").write_text("{}")
    (tmp_path / "hf" / "dataset_info.json").write_text("[]")
    refusal(tmp_path, "huggingface", "hf")


def test_lists_of_different_lengths_are_no_shape(tmp_path):
    pyarrow, library = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    library.write_table(pyarrow.table({"a": [[1.0, 2.0], [3.0]]}), tmp_path / "x.parquet")
    assert "not all 2 long" in refusal(tmp_path, "parquet", "x.parquet")
