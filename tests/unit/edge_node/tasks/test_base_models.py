"""Base models: the digest covers every file, and other files are never trained with."""

import hashlib
import os

import pytest

from edge_node.tasks.base_models import LocalBaseModel, check_base_models, folder_digest
from privacy.errors import PeerError, Reason, UsageError


@pytest.fixture
def folder(tmp_path):
    model = tmp_path / "model"
    (model / "sub").mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "sub" / "weights.bin").write_bytes(bytes(1000))
    return model


def test_the_digest_is_that_of_sha256sum(folder):
    files = [("config.json", b"{}"), ("sub/weights.bin", bytes(1000))]
    text = "".join(f"{hashlib.sha256(raw).hexdigest()}  {name}\n" for name, raw in files)
    assert folder_digest(folder) == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("change", ["content", "name", "more", "less"])
def test_every_file_counts_whatever_its_time_and_size(folder, change):
    before = folder_digest(folder)
    weights = folder / "sub" / "weights.bin"
    stamp = weights.stat()
    if change == "content":
        weights.write_bytes(b"\x01" + bytes(999))
        os.utime(weights, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    elif change == "name":
        weights.rename(folder / "weights.bin")
    elif change == "more":
        (folder / ".hidden").write_text("")
    else:
        weights.unlink()
    assert folder_digest(folder) != before


def test_links_to_files_count_as_files_and_links_to_folders_are_refused(folder, tmp_path):
    before = folder_digest(folder)
    moved = tmp_path / "blob"
    (folder / "config.json").rename(moved)
    (folder / "config.json").symlink_to(moved)
    assert folder_digest(folder) == before
    (folder / "more").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(UsageError, match="link to a folder"):
        folder_digest(folder)


def test_what_is_no_model_is_refused(folder, tmp_path):
    with pytest.raises(UsageError, match="no folder"):
        folder_digest(folder / "config.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no file"):
        folder_digest(tmp_path / "empty")


def test_another_model_than_the_jobs_is_refused(folder):
    right = LocalBaseModel("tiny", folder, folder_digest(folder))
    check_base_models((right,))
    with pytest.raises(PeerError, match="'tiny' is not the one") as caught:
        check_base_models((right, LocalBaseModel("tiny", folder, "0" * 64)))
    assert caught.value.reason is Reason.POLICY
