"""Keep what turns older versions into newer ones, for sites that come late: the delta log.

The sums of the newest ``LOG_VERSIONS`` versions, and the newest checkpoint. A site that is further
behind takes the checkpoint and the sums since. The log is durable with the version that it ends in;
what is dropped goes in the same transaction. Versions that come whole have no sum: of those only
the newest is on offer, from memory.

On disk there are at most the sums since the newest checkpoint and, of older ones, as many as
weigh no more than ``_OLD_SUMS`` checkpoints.
"""

import contextlib
import hashlib
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy import Connection, delete, insert, select, update

from aggregator.broadcast import ModelVersion, VersionContents
from aggregator.shelf import Content, FileContent, HeldContent, chunks_of
from aggregator.store import Store
from aggregator.tables import VERSION_LOG, VERSIONS
from privacy.errors import UsageError
from tidegate.broadcast import LOG_VERSIONS, Broadcast, ContentName, VersionLog
from tidegate.checkpoint import CHUNK_BYTES
from tidegate.keys import write_private_parts
from tidegate.version_chain import chain_start

INLINE_BYTES = 1 << 18
"""Contents up to this size lie in the database and cost no fsync of their own."""

_OLD_SUMS = 4
_KINDS = ("sum", "announcement", "checkpoint")


@dataclass(frozen=True)
class _Kept:
    """A version of the log, with what is on offer of it."""

    broadcast: Broadcast
    head: bytes
    packed: Content | None
    announcement: Content | None
    chunks: dict[bytes, Content]

    def contents(self) -> dict[bytes, Content]:
        """Give what is on offer, by digest."""
        held = dict(self.chunks)
        opened, announced = self.broadcast.opened, self.broadcast.announcement
        if opened is not None and self.packed is not None:
            held[opened.packed.sha256] = self.packed
        if announced is not None and self.announcement is not None:
            held[announced.sha256] = self.announcement
        return held


@dataclass(frozen=True)
class LogOffer:
    """What the sites may fetch, and the log that says so.

    Attributes:
        log: Names the log.
        contents: By digest; the log itself is one of them.
    """

    log: ContentName
    contents: dict[bytes, Content]


class DeltaLog:
    """One job's log; used by the job's thread alone."""

    def __init__(self, store: Store, job_id: str) -> None:
        """Load what is durable.

        Raises:
            UsageError: A file is missing: the folder was changed by other hands.
        """
        self._store = store
        self._job_id = job_id
        self._folder = store.folder / "versions" / job_id
        self._kept: list[_Kept] = []
        self._before = chain_start(job_id)
        self._load()

    def append(
        self, model: ModelVersion, contents: VersionContents
    ) -> Callable[[Connection], None]:
        """Take a fresh version in; gives what makes that durable, within the version's transaction.

        Large contents are on the disk when this returns. Nothing is on offer before ``offer``.
        """
        packed = self._put(model.version, "sum", [contents.packed])
        checkpoint: bytes | None = None
        chunks: dict[bytes, Content] = {}
        if contents.checkpoint is not None:
            checkpoint = self._put(model.version, "checkpoint", contents.checkpoint.parts)
            file = self._open(model.version, "checkpoint", checkpoint)
            chunks = chunks_of(contents.checkpoint.digests, file)
        announcement = self._put(model.version, "announcement", [model.announcement])
        self._kept.append(
            self._entry(model.broadcast, model.chain_head, chunks, packed, announcement)
        )
        row = {
            "job_id": self._job_id,
            "version": model.version,
            "packed": packed,
            "announcement": announcement,
            "checkpoint": checkpoint,
        }
        dropped = self._trim()
        fresh_root = model.broadcast.checkpoint is not None

        def write(connection: Connection) -> None:
            this = VERSION_LOG.c.job_id == self._job_id
            connection.execute(insert(VERSION_LOG), row)
            if dropped:
                last = max(kept.broadcast.version for kept in dropped)
                connection.execute(delete(VERSION_LOG).where(this, VERSION_LOG.c.version <= last))
                for kept in dropped:
                    for kind in _KINDS:
                        self._doom(kept.broadcast.version, kind)
            if fresh_root:
                older = VERSION_LOG.c.version < model.version
                connection.execute(update(VERSION_LOG).where(this, older), {"checkpoint": None})
                for kept in self._kept[:-1]:
                    self._doom(kept.broadcast.version, "checkpoint")

        return write

    def offer(self, newest: ModelVersion) -> LogOffer:
        """Say what is on offer while a version is the newest.

        Args:
            newest: The version that the log ends in.
        """
        log = VersionLog(self._before, tuple(kept.broadcast for kept in self._kept)).to_bytes()
        contents: dict[bytes, Content] = {}
        for kept in self._kept:
            contents.update(kept.contents())
        if newest.broadcast.checkpoint is not None and not self._kept[-1].chunks:
            whole = newest.whole()
            contents.update(chunks_of(newest.digests or whole.digests, whole))
        name = ContentName.of(log)
        contents[name.sha256] = HeldContent(log)
        return LogOffer(name, contents)

    def _load(self) -> None:
        query = (
            select(VERSION_LOG, VERSIONS.c.broadcast, VERSIONS.c.chain_head)
            .join(
                VERSIONS,
                (VERSIONS.c.job_id == VERSION_LOG.c.job_id)
                & (VERSIONS.c.version == VERSION_LOG.c.version),
            )
            .where(VERSION_LOG.c.job_id == self._job_id)
            .order_by(VERSION_LOG.c.version)
        )
        with self._store.transaction() as connection:
            rows = connection.execute(query).all()
            if rows and rows[0].version:
                before = select(VERSIONS.c.chain_head).where(
                    VERSIONS.c.job_id == self._job_id, VERSIONS.c.version == rows[0].version - 1
                )
                self._before = bytes(connection.execute(before).scalar_one())
        for row in rows:
            broadcast = Broadcast.from_bytes(bytes(row.broadcast))
            chunks: dict[bytes, Content] = {}
            if self._has(row.version, row.checkpoint):
                file = self._open(row.version, "checkpoint", row.checkpoint)
                chunks = chunks_of(_digests(file), file)
            head = bytes(row.chain_head)
            self._kept.append(self._entry(broadcast, head, chunks, row.packed, row.announcement))

    def _entry(
        self,
        broadcast: Broadcast,
        head: bytes,
        chunks: dict[bytes, Content],
        packed: bytes | None,
        announcement: bytes | None,
    ) -> _Kept:
        """Put a version of the log together; what is None lies in a file."""
        version = broadcast.version
        return _Kept(
            broadcast,
            head,
            None if broadcast.opened is None else self._open(version, "sum", packed),
            None
            if broadcast.announcement is None
            else self._open(version, "announcement", announcement),
            chunks,
        )

    def _trim(self) -> list[_Kept]:
        """Forget the oldest versions that are beyond what the log holds."""
        roots = [n for n, kept in enumerate(self._kept) if kept.broadcast.checkpoint is not None]
        least = len(self._kept) - roots[-1]
        weight = _OLD_SUMS * _size(self._kept[roots[-1]].broadcast.checkpoint)
        count = 0
        for kept in reversed(self._kept):
            opened = kept.broadcast.opened
            weight -= 0 if opened is None else opened.packed.size
            if count >= LOG_VERSIONS or (count >= least and weight < 0):
                break
            count += 1
        dropped, self._kept = self._kept[:-count], self._kept[-count:]
        if dropped:
            self._before = dropped[-1].head
        if roots[-1] == len(self._kept) + len(dropped) - 1:
            self._kept[:-1] = [replace(kept, chunks={}) for kept in self._kept[:-1]]
        return dropped

    def _path(self, version: int, kind: str) -> Path:
        return self._folder / f"{version}.{kind}"

    def _has(self, version: int, column: bytes | None) -> bool:
        return column is not None or self._path(version, "checkpoint").exists()

    def _put(self, version: int, kind: str, parts: Iterable[bytes | memoryview]) -> bytes | None:
        """Keep large bytes in a file; small ones are given back for the database."""
        pieces = list(parts)
        if sum(map(len, pieces)) <= INLINE_BYTES:
            return b"".join(pieces)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private_parts(self._path(version, kind), pieces)
        return None

    def _open(self, version: int, kind: str, column: bytes | None) -> Content:
        if column is not None:
            return HeldContent(bytes(column))
        path = self._path(version, kind)
        try:
            return FileContent(path)
        except OSError as error:
            raise UsageError(f"{path} cannot be read: restore it from a backup") from error

    def _doom(self, version: int, kind: str) -> None:
        self._store.doom(self._path(version, kind))


def kept_logs(store: Store) -> set[str]:
    """Name the jobs that have a log."""
    with store.transaction() as connection:
        return set(connection.execute(select(VERSION_LOG.c.job_id).distinct()).scalars())


def forget_versions(store: Store, job_id: str) -> None:
    """Drop the log of a job that is over; its newest model stays."""
    with store.transaction() as connection:
        connection.execute(delete(VERSION_LOG).where(VERSION_LOG.c.job_id == job_id))
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(store.folder / "versions" / job_id)


def _size(name: ContentName | None) -> int:
    return 0 if name is None else name.size


def _digests(file: Content) -> tuple[bytes, ...]:
    return tuple(
        hashlib.sha256(file.read(offset, CHUNK_BYTES)).digest()
        for offset in range(0, file.size, CHUNK_BYTES)
    )
