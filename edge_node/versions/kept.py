"""Keep each job's newest model version on the site's disk, so that a restart downloads none anew.

One file a job, a checkpoint (``tidegate.checkpoint``), named by version and chain head and put in
place whole. A checkpoint that is being fetched lies beside it and is gone on with after a restart;
each of its chunks is looked at by its digest, so no byte of either file is trusted.
"""

import mmap
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from tidegate.checkpoint import Checkpoint
from tidegate.keys import write_private_parts

_NAME = re.compile(r"([0-9]{1,7})-([0-9]{1,10})-([0-9a-f]{64})\.safetensors")
_PART = "arriving.part"


@dataclass(frozen=True)
class KeptFile:
    """A version on disk, as its name says."""

    path: Path
    version: int
    announcement_bytes: int
    head: bytes

    def read(self) -> bytearray:
        """Read it whole."""
        content = bytearray(self.path.stat().st_size)
        with self.path.open("rb", buffering=0) as file:
            file.readinto(content)
        return content


class KeptVersions:
    """The folder of them."""

    def __init__(self, folder: Path) -> None:
        """Take a folder of its own."""
        self._folder = folder

    def newest(self, job_id: str) -> KeptFile | None:
        """Find a job's newest version; files before it, and what is no version, are removed."""
        found: list[KeptFile] = []
        folder = self._folder / job_id
        for path in folder.iterdir() if folder.is_dir() else ():
            named = _NAME.fullmatch(path.name)
            if named is not None:
                head = bytes.fromhex(named[3])
                found.append(KeptFile(path, int(named[1]), int(named[2]), head))
            elif path.name != _PART:
                path.unlink()  # half-written when the process died
        found.sort(key=lambda kept: kept.version)
        for old in found[:-1]:
            old.path.unlink()
        return found[-1] if found else None

    def put(self, job_id: str, where: tuple[int, bytes], file: Checkpoint, announced: int) -> None:
        """Keep a version in place of those before; blocks until it is on the disk."""
        version, head = where
        folder = self._make(job_id)
        path = folder / f"{version}-{announced}-{head.hex()}.safetensors"
        write_private_parts(path, file.parts)
        for old in folder.glob("*.safetensors"):
            if old != path:
                old.unlink()

    def arriving(self, job_id: str, size: int) -> mmap.mmap:
        """Open the room that a checkpoint is fetched into, with what an earlier try left there."""
        path = self._make(job_id) / _PART
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if os.fstat(descriptor).st_size != size:
                os.ftruncate(descriptor, 0)
                os.ftruncate(descriptor, size)
            return mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)

    def arrived(self, job_id: str) -> None:
        """Remove that room."""
        (self._folder / job_id / _PART).unlink(missing_ok=True)

    def forget(self, job_id: str) -> None:
        """Drop what a job has here."""
        shutil.rmtree(self._folder / job_id, ignore_errors=True)

    def _make(self, job_id: str) -> Path:
        folder = self._folder / job_id
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder
