"""Collect masked updates until each is whole and its digest checked; only then hand it on.

An attempt announces whose uploads it expects and of what size; everything else is refused. Small
uploads stay in memory, larger ones in files, so memory does not grow with the number of sites. An
upload resumes at the offset that arrived; other bytes under the same attempt are refused, as a
second masked vector of one site would take the first one's masks off (SA-1, one slot a step).
Nothing here outlives the process: a restart makes every live attempt void.
"""

import hashlib
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from privacy.errors import PeerError, Reason

MEMORY_BYTES = 1 << 20
"""Uploads up to this size are kept in memory."""


@dataclass
class Upload:
    """One site's upload of one attempt, as far as it has arrived."""

    size: int
    sha256: bytes
    target: BinaryIO = field(repr=False)
    path: Path | None
    received: int = 0
    whole: bool = False
    stream: int = 0
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256, repr=False)

    def read_at(self, offset: int, size: int) -> bytes:
        """Return bytes of a whole upload."""
        self.target.seek(offset)
        return self.target.read(size)

    def close(self) -> None:
        """Free the memory or the file."""
        self.target.close()
        if self.path is not None:
            self.path.unlink(missing_ok=True)


@dataclass
class _Expected:
    """What one attempt expects."""

    sites: frozenset[str]
    size: int
    uploads: dict[str, Upload] = field(default_factory=dict)


class Spool:
    """The uploads of the live attempts."""

    def __init__(self, folder: Path, memory_bytes: int = MEMORY_BYTES) -> None:
        """Take a folder of its own; what an earlier process left there is void and deleted."""
        self._folder = folder
        self._memory_bytes = memory_bytes
        self._attempts: dict[bytes, _Expected] = {}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for leftover in folder.iterdir():
            leftover.unlink()

    def expect(self, ctx: bytes, sites: frozenset[str], size: int) -> None:
        """Admit one upload of exactly this size from each of these sites."""
        self._attempts[ctx] = _Expected(sites, size)

    def discard(self, ctx: bytes) -> None:
        """Forget an attempt and its uploads; later ones are refused."""
        expected = self._attempts.pop(ctx, None)
        for upload in expected.uploads.values() if expected else ():
            upload.close()

    def keep(self, ctx: bytes, folder: Path) -> None:
        """Move an attempt's whole uploads to ``SITE.masked`` in a folder, before ``discard``."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        expected = self._attempts.get(ctx)
        for site, upload in expected.uploads.items() if expected else ():
            target = folder / f"{site}.masked"
            if upload.path is not None:
                upload.target.flush()
                upload.path.replace(target)
            else:
                target.write_bytes(upload.read_at(0, upload.received))

    def received(self, ctx: bytes, site: str) -> int:
        """Return how many bytes of a site's upload are here.

        Raises:
            PeerError: WRONG_CONTEXT, this attempt expects nothing of the site.
        """
        upload = self._expected(ctx, site).uploads.get(site)
        return upload.received if upload else 0

    def begin(self, ctx: bytes, site: str, size: int, sha256: bytes) -> Upload:
        """Open or resume an upload; a newer stream takes it over from an older one.

        Raises:
            PeerError: WRONG_CONTEXT; WRONG_SHAPE, the size is not the plan's; EQUIVOCATION, other
                bytes were announced for this attempt before.
        """
        expected = self._expected(ctx, site)
        if size != expected.size:
            raise PeerError(
                Reason.WRONG_SHAPE, f"an upload of {expected.size} bytes is due, not of {size}"
            )
        upload = expected.uploads.get(site)
        if upload is None:
            upload = self._make(ctx, site, size, sha256)
            expected.uploads[site] = upload
        if upload.sha256 != sha256:
            raise PeerError(
                Reason.EQUIVOCATION, f"site {site} announced another update for this attempt"
            )
        upload.stream += 1
        return upload

    def write(self, upload: Upload, stream: int, offset: int, data: bytes) -> None:
        """Append the next bytes; bytes that are here already are skipped.

        Args:
            upload: From ``begin``.
            stream: ``upload.stream`` as it was right after ``begin``.
            offset: Where the data begins.
            data: At most one message.

        Raises:
            PeerError: WRONG_CONTEXT, the attempt is over; REPLAY, a newer stream took over;
                MALFORMED, a gap; TOO_LARGE, more bytes than announced; WRONG_DIGEST, the last byte
                is here and the digest does not fit: what arrived is dropped.
        """
        if upload.target.closed:
            raise PeerError(Reason.WRONG_CONTEXT, "the attempt of this upload is over")
        if stream != upload.stream:
            raise PeerError(Reason.REPLAY, "a newer upload stream has taken over")
        if offset > upload.received:
            raise PeerError(
                Reason.MALFORMED, f"upload has a gap: at {offset}, {upload.received} arrived"
            )
        if offset + len(data) > upload.size:
            raise PeerError(Reason.TOO_LARGE, f"upload exceeds its {upload.size} bytes")
        new = memoryview(data)[upload.received - offset :]
        if not new or upload.whole:
            return
        upload.target.seek(upload.received)
        upload.target.write(new)
        upload.digest.update(new)
        upload.received += len(new)
        if upload.received == upload.size:
            self._finish(upload)

    def whole(self, ctx: bytes, site: str) -> Upload | None:
        """Return a site's upload once it is whole and checked."""
        expected = self._attempts.get(ctx)
        upload = expected.uploads.get(site) if expected else None
        return upload if upload is not None and upload.whole else None

    def _finish(self, upload: Upload) -> None:
        if upload.digest.digest() != upload.sha256:
            upload.received = 0
            upload.digest = hashlib.sha256()
            raise PeerError(Reason.WRONG_DIGEST, "upload does not have the announced SHA-256")
        upload.whole = True

    def _expected(self, ctx: bytes, site: str) -> _Expected:
        expected = self._attempts.get(ctx)
        if expected is None or site not in expected.sites:
            raise PeerError(
                Reason.WRONG_CONTEXT, f"no live attempt expects an upload of site {site}"
            )
        return expected

    def _make(self, ctx: bytes, site: str, size: int, sha256: bytes) -> Upload:
        if size <= self._memory_bytes:
            return Upload(size, sha256, BytesIO(), None)
        path = self._folder / f"{ctx.hex()[:32]}-{site}"
        return Upload(size, sha256, path.open("w+b"), path)
