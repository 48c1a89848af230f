"""Keep the aggregator's state durable: transactions, blobs and the journal.

SQLite in WAL mode with ``synchronous=FULL`` (a commit is on the disk when it returns), or
PostgreSQL by URL with the same statements. One process owns the state (``__main__`` holds a lock on
the folder); a lock here keeps its threads' transactions apart, so "look, then insert" is safe.
Who may enrol lies in ``registry``, what a job is in ``jobs``; both use ``transaction``.
"""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, create_engine, event, insert, select
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry

from aggregator.tables import JOURNAL, METADATA
from privacy.errors import UsageError
from tidegate.keys import write_private

INLINE_BYTES = 1 << 20
"""Blobs up to this size lie in the database and cost no fsync of their own."""

_BUSY_MS = 10_000


@dataclass(frozen=True)
class JournalEntry:
    """One event that changed a round, as it was made durable before it was acted on.

    Attributes:
        job_id: The job.
        round: Its round, from 1; 0 for events of the job itself.
        attempt: The attempt, from 1; 0 for events of the round itself.
        kind: For example "attempt-opened", "attempt-aborted", "round-committed", "job-state".
        payload: JSON, UTF-8.
    """

    job_id: str
    round: int
    attempt: int
    kind: str
    payload: bytes = b"{}"


class Store:
    """The aggregator's database and blob folder.

    Attributes:
        folder: Holds ``blobs/`` and what others keep beside it.
    """

    def __init__(self, url: str, folder: Path) -> None:
        """Open, and make what is missing.

        Args:
            url: SQLAlchemy URL.
            folder: Holds ``blobs/``.

        Raises:
            UsageError: The URL is none, or the database cannot be opened.
        """
        self._lock = threading.Lock()
        self.folder = folder
        self._doomed: list[Path] = []
        self._blobs = folder / "blobs"
        self._blobs.mkdir(mode=0o700, parents=True, exist_ok=True)
        for leftover in self._blobs.glob("*.new"):
            leftover.unlink()
        try:
            self._engine = create_engine(url)
            if self._engine.dialect.name == "sqlite":
                event.listen(self._engine, "connect", _make_sqlite_durable)
            METADATA.create_all(self._engine)
        except (ArgumentError, SQLAlchemyError, ImportError) as error:
            raise UsageError(f"the database of the aggregator cannot be opened: {error}") from error

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Give a connection whose statements become durable together, or not at all."""
        with self._lock:
            self._doomed.clear()
            with self._engine.begin() as connection:
                yield connection
            # Files go after the commit: a crash leaves a file too many, never one too few.
            for path in self._doomed:
                path.unlink(missing_ok=True)

    def write_journal(self, connection: Connection, entry: JournalEntry, now_s: float) -> None:
        """Add an entry to the journal within a transaction."""
        connection.execute(
            insert(JOURNAL),
            {
                "at_s": now_s,
                "job_id": entry.job_id,
                "round": entry.round,
                "attempt": entry.attempt,
                "kind": entry.kind,
                "payload": entry.payload,
            },
        )

    def read_journal(self, job_id: str, kind: str, last: int) -> list[JournalEntry]:
        """Return the last entries of one kind, oldest first."""
        query = (
            select(JOURNAL)
            .where(JOURNAL.c.job_id == job_id, JOURNAL.c.kind == kind)
            .order_by(JOURNAL.c.seq.desc())
            .limit(last)
        )
        with self.transaction() as connection:
            rows = connection.execute(query).all()
        return [
            JournalEntry(row.job_id, row.round, row.attempt, row.kind, bytes(row.payload))
            for row in reversed(rows)
        ]

    def put_blob(self, job_id: str, data: bytes) -> bytes | None:
        """Keep large bytes of a job under their SHA-256, durable at once; give small ones back.

        Returns:
            What belongs into the database column: the data, or None where a file holds it.
        """
        if len(data) <= INLINE_BYTES:
            return data
        path = self._path(job_id, hashlib.sha256(data).digest())
        if not path.exists():
            write_private(path, data)
        return None

    def get_blob(self, job_id: str, column: bytes | None, sha256: bytes) -> bytes:
        """Return bytes that ``put_blob`` kept.

        Raises:
            UsageError: The file is missing or damaged: the folder was changed by other hands.
        """
        if column is not None:
            return bytes(column)
        path = self._path(job_id, sha256)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UsageError(f"{path} cannot be read: restore it from a backup") from error
        if hashlib.sha256(data).digest() != sha256:
            raise UsageError(f"{path} is damaged: restore it from a backup")
        return data

    def doom_blob(self, job_id: str, sha256: bytes) -> None:
        """Delete a blob's file, if there is one, once the running transaction is durable."""
        self.doom(self._path(job_id, sha256))

    def doom(self, path: Path) -> None:
        """Delete a file, if there is one, once the running transaction is durable."""
        self._doomed.append(path)

    def _path(self, job_id: str, sha256: bytes) -> Path:
        # By job: two jobs may begin with one model, and each deletes its own.
        return self._blobs / f"{job_id}-{sha256.hex()}"


def _make_sqlite_durable(connection: object, _record: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()  # type: ignore[attr-defined]
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
    cursor.close()
