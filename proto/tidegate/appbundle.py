r"""Pack an app folder into one deterministic archive, and unpack it with nothing left to chance.

Sites judge an app by the SHA-256 of these bytes, so equal folders must give equal bytes: files are
sorted, and carry a path and content only; no times, owners, modes or links. The format is our own
and tiny, as every zip and tar reader has ways to be talked out of its folder::

    "tidegate-app-1\n"  then per file:  u16 path length, u32 content length, path, content

Paths are ASCII, relative, below 200 characters, and name ``.py`` or ``.toml`` files only.
"""

import hashlib
import os
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from privacy.errors import PeerError, Reason, UsageError

MAX_BYTES = 1 << 20
MAX_FILES = 64
MAGIC = b"tidegate-app-1\n"
EMPTY = MAGIC
"""The app of work that runs no code of an app; ``read`` refuses it for all other work."""

_SIZES = struct.Struct(">HI")
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
_PATH = re.compile(rf"({_PART}/){{0,7}}{_PART}\.(py|toml)")
_MAX_PATH = 200
_SKIPPED = {"__pycache__", "node_modules", "venv"}


def digest(bundle: bytes) -> bytes:
    """Return the digest that names a bundle in offers and site policies: 32 bytes."""
    return hashlib.sha256(bundle).digest()


def pack(folder: Path) -> bytes:
    """Pack the ``.py`` and ``.toml`` files of a folder and its sub-folders.

    Hidden folders, ``__pycache__`` and other kinds of file are left out.

    Raises:
        UsageError: No such file, a symbolic link or a name outside the allowed ones in the way, or
            more than 64 files or 1 MiB.
    """
    files = {}
    for path in _walk(folder):
        name = path.relative_to(folder).as_posix()
        if not _is_allowed(name):
            raise UsageError(
                f"{path}: use only letters, digits, '_', '-' and '.' in app file names"
            )
        try:
            files[name] = path.read_bytes()
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
        if len(files) > MAX_FILES:
            raise UsageError(f"{folder}: more than {MAX_FILES} .py and .toml files; move some away")
    if not files:
        raise UsageError(f"{folder}: no .py file there; name the folder of the app")
    bundle = _join(files)
    if len(bundle) > MAX_BYTES:
        raise UsageError(f"{folder}: more than {MAX_BYTES} bytes of code; move files away")
    return bundle


def read(bundle: bytes) -> dict[str, bytes]:
    """Take a bundle apart into contents by path.

    Raises:
        PeerError: Too long (TOO_LARGE), or not exactly what ``pack`` would write (MALFORMED).
    """
    if len(bundle) > MAX_BYTES:
        raise PeerError(Reason.TOO_LARGE, f"app bundle: more than {MAX_BYTES} bytes")
    if not bundle.startswith(MAGIC):
        raise _bad("is not of format 1")
    files: dict[str, bytes] = {}
    position, last = len(MAGIC), ""
    while position < len(bundle):
        name, content, position = _read_file(bundle, position)
        if name <= last:
            raise _bad("holds a path twice or out of order")
        if any(folder.as_posix() in files for folder in PurePosixPath(name).parents):
            raise _bad("holds a path both as file and as folder")
        files[name], last = content, name
        if len(files) > MAX_FILES:
            raise _bad(f"holds more than {MAX_FILES} files")
    if not files:
        raise _bad("holds no file")
    return files


def unpack(bundle: bytes, folder: Path) -> None:
    """Write the files of a bundle below a new or empty folder.

    Everything is checked before the first byte is written; files are made with O_EXCL and
    O_NOFOLLOW in an empty folder, so nothing that exists is followed or overwritten.

    Raises:
        PeerError: As ``read``.
        UsageError: The folder is not empty.
    """
    files = read(bundle)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise UsageError(f"{folder}: is not empty; unpack an app into a new folder")
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            file.write(content)


def _walk(folder: Path) -> Iterator[Path]:
    """Give the app files of a folder in any order; refuse links, which could point anywhere."""
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise UsageError(f"{folder}: cannot be read: {error.strerror}") from None
    for path in entries:
        if path.name.startswith(".") or path.name in _SKIPPED:
            continue
        if path.is_symlink():
            raise UsageError(f"{path}: is a symbolic link; put the file itself into the app")
        if path.is_dir():
            yield from _walk(path)
        elif path.suffix in {".py", ".toml"} and path.is_file():
            yield path


def _join(files: Mapping[str, bytes]) -> bytes:
    parts = [MAGIC]
    for name in sorted(files):
        raw = name.encode("ascii")
        parts += [_SIZES.pack(len(raw), len(files[name])), raw, files[name]]
    return b"".join(parts)


def _read_file(bundle: bytes, position: int) -> tuple[str, bytes, int]:
    start = position + _SIZES.size
    if start > len(bundle):
        raise _bad("is cut short")
    name_size, size = _SIZES.unpack_from(bundle, position)
    end = start + name_size + size
    if name_size > _MAX_PATH or end > len(bundle):
        raise _bad("is cut short")
    try:
        name = bundle[start : start + name_size].decode("ascii")
    except UnicodeDecodeError:
        raise _bad("holds a path that is not ASCII") from None
    if not _is_allowed(name):
        raise _bad("holds a path that is not allowed")
    return name, bundle[start + name_size : end], end


def _is_allowed(name: str) -> bool:
    return len(name) <= _MAX_PATH and _PATH.fullmatch(name) is not None


def _bad(message: str) -> PeerError:
    return PeerError(Reason.MALFORMED, f"app bundle: {message}")
