"""Offer contents to sites by their digests: from memory, or from a file that is read as it is sent.

A content is offered by somebody, a job's app or its versions, and goes when that offer is replaced;
two offers may hold the same bytes. Who is sending one goes on undisturbed meanwhile.
"""

import os
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from privacy.errors import PeerError, Reason
from privacy.secagg.messages import Fingerprint
from tidegate.checkpoint import CHUNK_BYTES, Checkpoint, chunk_size, root_of


class Content(Protocol):
    """Bytes of a known length."""

    @property
    def size(self) -> int:
        """Return the length in bytes."""
        ...

    def read(self, offset: int, size: int) -> bytes | memoryview:
        """Return a run of bytes, shorter where the content ends; may block for a disk."""
        ...


@dataclass(frozen=True)
class HeldContent:
    """A content in memory."""

    data: bytes = field(repr=False)

    @property
    def size(self) -> int:
        """Return the length in bytes."""
        return len(self.data)

    def read(self, offset: int, size: int) -> bytes | memoryview:
        """Return a run of bytes, with no copy."""
        return memoryview(self.data)[offset : offset + size]


class FileContent:
    """A content in a file, which may be unlinked while it is sent."""

    _descriptor = -1

    def __init__(self, path: Path) -> None:
        """Open the file.

        Raises:
            OSError: It cannot be read.
        """
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._descriptor).st_size

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def read(self, offset: int, size: int) -> bytes:
        """Return a run of bytes."""
        return os.pread(self._descriptor, size, offset)


@dataclass(frozen=True)
class PartContent:
    """A run of another content."""

    whole: Content
    begin: int
    size: int

    def read(self, offset: int, size: int) -> bytes | memoryview:
        """Return a run of bytes."""
        return self.whole.read(self.begin + offset, min(size, max(0, self.size - offset)))


def chunks_of(digests: tuple[bytes, ...], file: Content | Checkpoint) -> dict[bytes, Content]:
    """Offer a checkpoint by its chunks, and the list of them by its root."""
    offered: dict[bytes, Content] = {
        digest: PartContent(file, index * CHUNK_BYTES, chunk_size(file.size, index))
        for index, digest in enumerate(digests)
    }
    if len(digests) > 1:
        offered[root_of(digests)] = HeldContent(b"".join(digests))
    return offered


class ContentShelf:
    """The contents that sites may download now, each offer with those who may see it."""

    def __init__(self) -> None:
        """Start empty."""
        self._offers: dict[str, tuple[Mapping[bytes, Content], Container[Fingerprint]]] = {}

    def offer(
        self, offer: str, contents: Mapping[bytes, Content], audience: Container[Fingerprint]
    ) -> None:
        """Make or replace an offer; its audience may grow and shrink later."""
        self._offers[offer] = (contents, audience)

    def withdraw(self, offer: str) -> None:
        """Take an offer back."""
        self._offers.pop(offer, None)

    def get(self, sha256: bytes, site: Fingerprint) -> Content:
        """Return a content that is on offer to a site.

        Raises:
            PeerError: UNKNOWN_JOB, there is no such content, or not for this site: it is told no
                more than that.
        """
        for contents, audience in self._offers.values():
            found = contents.get(sha256)
            if found is not None and site in audience:
                return found
        raise PeerError(Reason.UNKNOWN_JOB, f"no content sha256:{sha256.hex()} is on offer")
