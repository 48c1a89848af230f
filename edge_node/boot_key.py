"""Keep the key that wraps attempt secrets in memory-backed storage, apart from every backup.

secure-aggregation.md, "Keys and bundles": secrets of stock and live attempts are wrapped under this
key, so they survive a killed process but neither a reboot nor a restored backup. Whoever finds no
boot key makes a new one, and with it a new instance id.
"""

import hashlib
import os
import secrets
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from privacy.errors import UsageError

_KEY_BYTES = 32
_NONCE_BYTES = 12


@dataclass(frozen=True)
class BootKey:
    """The key of this boot, and whether it was made just now.

    Attributes:
        fresh: True when there was none: stock and live attempts are void.
        on_memory: False when the folder is not memory-backed; the log warns.
    """

    key: bytes = field(repr=False)
    fresh: bool
    on_memory: bool

    @cached_property
    def _cipher(self) -> AESGCM:
        return AESGCM(self.key)

    def wrap(self, secret: bytes, name: bytes) -> bytes:
        """Encrypt a secret, bound to its name (AES-256-GCM, random nonce)."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, secret, name)

    def unwrap(self, sealed: bytes, name: bytes) -> bytes:
        """Decrypt what `wrap` made under the same name.

        Raises:
            UsageError: Another key, another name, or altered bytes.
        """
        try:
            return self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], name)
        except InvalidTag as error:
            raise UsageError(
                "a stored secret does not open under this boot's key: the database was altered or"
                " restored; run `edge-node reconcile`"
            ) from error


def default_folder() -> Path:
    """Give the machine's memory-backed folder: $XDG_RUNTIME_DIR, else /dev/shm."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "tidegate"
    return Path("/dev/shm") / f"tidegate-{os.getuid()}"  # noqa: S108  # checked to be ours below


def load_or_make(site_folder: Path, boot_folder: Path | None) -> BootKey:
    """Load this boot's key of a site, or make one.

    Args:
        site_folder: The site's state folder: it names the key, so that sites on one machine differ.
        boot_folder: A memory-backed folder, or None for the machine's default.

    Raises:
        UsageError: The folder or file is not private to this user, or lies inside the site folder.
    """
    folder = boot_folder or default_folder()
    if folder.resolve().is_relative_to(site_folder.resolve()):
        raise UsageError(
            f"boot key folder {folder} lies inside the site's folder, hence in backups"
        )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _require_private(folder)
    path = key_path(site_folder, folder)
    on_memory = is_memory_backed(folder)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return BootKey(_make(path), fresh=True, on_memory=on_memory)
    with os.fdopen(descriptor, "rb") as file:
        key = file.read(_KEY_BYTES + 1)
    _require_private(path)
    if len(key) != _KEY_BYTES:
        path.unlink()
        return BootKey(_make(path), fresh=True, on_memory=on_memory)
    return BootKey(key, fresh=False, on_memory=on_memory)


def key_path(site_folder: Path, folder: Path) -> Path:
    """Give the file of a site's boot key within the memory-backed folder."""
    return folder / f"{hashlib.sha256(bytes(site_folder.resolve())).hexdigest()[:24]}.key"


def is_memory_backed(folder: Path) -> bool:
    """Say whether a folder lies on tmpfs or ramfs, as the kernel's mount table says."""
    resolved = folder.resolve()
    best, kind = -1, ""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) > 2 and resolved.is_relative_to(fields[1]) and len(fields[1]) > best:
            best, kind = len(fields[1]), fields[2]
    return kind in {"tmpfs", "ramfs"}


def _make(path: Path) -> bytes:
    key = secrets.token_bytes(_KEY_BYTES)
    temporary = path.with_suffix(f".{os.getpid()}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key)
    temporary.replace(path)
    return key


def _require_private(path: Path) -> None:
    status = path.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise UsageError(f"{path} must belong to this user and be closed to all others (chmod go=)")
