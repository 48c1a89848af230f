import os
import stat
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from privacy.errors import PeerError, Reason, UsageError
from tidegate import appbundle
from tidegate.appbundle import MAGIC


def entry(name, content=b"x", size=None):
    raw = name if isinstance(name, bytes) else name.encode()
    return struct.pack(">HI", len(raw), len(content) if size is None else size) + raw + content


@pytest.fixture
def app(tmp_path):
    folder = tmp_path / "app"
    (folder / "parts").mkdir(parents=True)
    (folder / "task.py").write_text("import parts.net\n")
    (folder / "parts" / "net.py").write_text("")
    (folder / "job.toml").write_text("[job]\n")
    return folder


def test_a_bundle_gives_the_folder_back(app, tmp_path):
    bundle = appbundle.pack(app)
    appbundle.unpack(bundle, tmp_path / "out")
    assert appbundle.pack(tmp_path / "out") == bundle
    assert (tmp_path / "out" / "parts" / "net.py").read_bytes() == b""
    assert list(appbundle.read(bundle)) == ["job.toml", "parts/net.py", "task.py"]


def test_the_digest_depends_on_paths_and_contents_only(app):
    before = appbundle.pack(app)
    (app / "__pycache__").mkdir()
    (app / "__pycache__" / "task.py").write_text("no")
    (app / ".git").mkdir()
    (app / ".git" / "config.toml").write_text("no")
    (app / "data.csv").write_text("1,2\n")
    (app / "task.py").chmod(0o755)
    os.utime(app / "task.py", (1, 1))
    assert appbundle.pack(app) == before
    (app / "task.py").rename(app / "other.py")
    assert appbundle.digest(appbundle.pack(app)) != appbundle.digest(before)


def test_unpacked_files_are_private(app, tmp_path):
    appbundle.unpack(appbundle.pack(app), tmp_path / "out")
    assert stat.S_IMODE((tmp_path / "out" / "task.py").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o700


@pytest.mark.parametrize("target", ["task.py", "parts"])
def test_links_are_refused(app, target):
    (app / "link.py").symlink_to(app / target)
    with pytest.raises(UsageError, match="symbolic link"):
        appbundle.pack(app)


def test_bad_folders_are_refused(app, tmp_path):
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "missing", app / "task.py"):
        with pytest.raises(UsageError, match=folder.name):
            appbundle.pack(folder)
    (app / "a b.py").write_text("")
    with pytest.raises(UsageError, match="letters, digits"):
        appbundle.pack(app)


def test_too_many_and_too_large_are_refused(app):
    (app / "big.py").write_bytes(b"#" * appbundle.MAX_BYTES)
    with pytest.raises(UsageError, match="bytes"):
        appbundle.pack(app)
    (app / "big.py").unlink()
    for number in range(62):
        (app / f"m{number}.py").touch()
    with pytest.raises(UsageError, match="64"):
        appbundle.pack(app)


@pytest.mark.parametrize(
    "name",
    [
        "../evil.py", "a/../../evil.py", "/etc/evil.py", "./task.py", "a//b.py", "a/./b.py",
        ".hidden.py", "a/.ssh/b.py", "task.sh", "task", "task.py/", "a\\b.py", "a\x00.py", "é.py",
        "a\n.py", "", ".py", "x" * 198 + ".py", "/".join("abcdefghij") + ".py", b"\xff.py",
    ],
)  # fmt: skip
def test_paths_out_of_the_folder_are_refused(name, tmp_path):
    with pytest.raises(PeerError) as caught:
        appbundle.unpack(MAGIC + entry(name), tmp_path / "out")
    assert caught.value.reason is Reason.MALFORMED
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "bundle",
    [
        b"",
        b"PK\x03\x04",
        MAGIC,
        MAGIC + b"\x00",
        MAGIC + entry("a.py") + b"\x00",
        MAGIC + entry("a.py", size=2),
        MAGIC + entry("a.py", size=2**32 - 1),
        MAGIC + entry("b.py") + entry("a.py"),
        MAGIC + entry("a.py") + entry("a.py"),
        MAGIC + entry("a.py") + entry("a.py/b.py"),
        MAGIC + b"".join(entry(f"m{n:03}.py") for n in range(65)),
    ],
)
def test_what_pack_would_not_write_is_refused(bundle):
    with pytest.raises(PeerError) as caught:
        appbundle.read(bundle)
    assert caught.value.reason is Reason.MALFORMED


def test_a_giant_is_refused():
    with pytest.raises(PeerError) as caught:
        appbundle.read(bytes(appbundle.MAX_BYTES + 1))
    assert caught.value.reason is Reason.TOO_LARGE


def test_nothing_that_exists_is_overwritten(app, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "task.py").symlink_to(tmp_path / "victim")
    with pytest.raises(UsageError, match="not empty"):
        appbundle.unpack(appbundle.pack(app), out)
    assert not (tmp_path / "victim").exists()


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_change_of_a_byte_gives_anything_but_a_bundle_or_a_peer_error(data):
    bundle = bytearray(MAGIC + entry("a.py", b"one") + entry("b/c.py", b"") + entry("d.toml"))
    for _ in range(data.draw(st.integers(1, 4))):
        bundle[data.draw(st.integers(0, len(bundle) - 1))] = data.draw(st.integers(0, 255))
    try:
        files = appbundle.read(bytes(bundle))
    except PeerError:
        return
    assert appbundle._join(files) == bytes(bundle)
